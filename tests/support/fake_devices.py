"""Devices that are no GPU: their arrays are NumPy's, so everything above `gpt2fast.model.cuda.device` runs on them.

`Twin` has each kernel as a function of NumPy, plain and slow.  `Emulation` has the kernels of the .cu files themselves,
compiled as C++ and run thread by thread; see emulation.h.  Both are given what CuPy and the driver would be: launches
with grids and thread blocks, arguments by position, and `cublasGemmEx` with addresses and leading dimensions.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
from reference_model import ACTIVATIONS, layer_norm

from gpt2fast.errors import NonFiniteError
from gpt2fast.generation.sampling import Sampling
from gpt2fast.model.cuda.choice import DRAW
from gpt2fast.model.cuda.operations import BLOCK, DTYPES
from gpt2fast.model.cuda.weights import narrow, widen

DTYPE_NAMES = list(DTYPES)
COMPILER = shutil.which("g++")
#: The sanitizers that `make sanitize` wants the emulated kernels to be compiled with.
SANITIZERS = os.environ.get("GPT2FAST_SANITIZE")
_GUARD = 0 if SANITIZERS else 64  # bytes on both sides of an array that nobody writes to; a sanitizer has its own


class OutOfMemory(MemoryError):
    """What CuPy raises."""


class Memory:
    """The array module of a device with `limit` bytes: it knows how many are in use, and what was written where nothing
    should be.  Fresh memory is full of NaN."""

    def __init__(self, limit):
        self.limit, self.used, self.peak = limit, 0, 0
        self._held = {}

    def empty(self, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.used + size > self.limit:
            raise OutOfMemory(f"Out of memory allocating {size:,} bytes")
        self.used += size
        self.peak = max(self.peak, self.used)
        owner = np.full(size + 2 * _GUARD, 0xFF, np.uint8)  # views of it keep it
        self._held[id(owner)] = weakref.ref(owner)
        weakref.finalize(owner, self._give_back, id(owner), size)
        return owner[_GUARD : _GUARD + size].view(dtype).reshape(shape)

    def ascontiguousarray(self, values):
        array = self.empty(values.shape, values.dtype)
        array[...] = values
        return array

    def check(self):
        """Fail where something was written beside an array."""
        for held in list(self._held.values()):
            owner = held()
            assert owner is None or not _GUARD or (np.r_[owner[:_GUARD], owner[-_GUARD:]] == 0xFF).all(), (
                "written beside an array"
            )

    def _give_back(self, key, size):
        del self._held[key]
        self.used -= size


class FakeDevice:
    """What the two have in common."""

    name, description, capability = "cuda:0", "cuda:0 (none)", (9, 0)
    out_of_memory = OutOfMemory

    def __init__(self, limit=2**40):
        self.xp = Memory(limit)
        self.released = 0

    def current(self):
        return nullcontext()

    def address(self, array):
        return array.ctypes.data

    def upload(self, array):
        return self.xp.ascontiguousarray(array)

    def download(self, array):
        assert array.flags.c_contiguous
        return np.array(array)

    def memory(self):
        return self.xp.limit - self.xp.used, self.xp.limit

    def release(self):
        self.released += 1

    def gemm(self, op_a, op_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, sums, algorithm):
        """c [m, n] = alpha op(a) op(b) + beta c, all by columns, as cuBLAS documents it."""
        assert (sums, algorithm, c_type) == (68, -1, 0)  # CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT, CUDA_R_32F
        left = by_columns(a, a_type, k, m, lda).T if op_a else by_columns(a, a_type, m, k, lda)
        right = by_columns(b, b_type, n, k, ldb).T if op_b else by_columns(b, b_type, k, n, ldb)
        out = by_columns(c, c_type, m, n, ldc)
        alpha, beta = at(alpha, np.float32, ()), at(beta, np.float32, ())
        product = alpha * (widened(left, a_type) @ widened(right, b_type))
        out[...] = product + beta * out if beta else product


def at(address, dtype, shape):
    """The memory at an address as an array."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype).reshape(shape)


def is_array(argument):
    """Whether a kernel's argument is an array; a null pointer is the number."""
    if isinstance(argument, np.uintp):
        assert argument == 0
    return isinstance(argument, np.ndarray)


def by_columns(address, type_number, rows, columns, leading):
    """A matrix as BLAS sees it."""
    assert leading >= rows
    dtype = {0: np.float32, 2: np.float16, 14: np.uint16}[type_number]
    runs = at(address, dtype, (leading * (columns - 1) + rows,))
    return np.lib.stride_tricks.as_strided(runs, (rows, columns), (runs.itemsize, leading * runs.itemsize))


def widened(array, type_number):
    return widen(array, {0: "float32", 2: "float16", 14: "bfloat16"}[type_number])


# The twins.  T tokens, E the width of the network.


class Twin(FakeDevice):
    """Each kernel as a function of NumPy that takes the kernel's arguments."""

    def compile(self, path, names, options):
        twins = Twins(**dict(option[2:].lower().split("=") for option in options))
        return {name: self._launched(getattr(twins, name)) for name in names}

    @staticmethod
    def _launched(twin):
        return lambda grid, block, arguments: twin(*arguments)


class Twins:
    """The kernels for one dtype and width of a head."""

    def __init__(self, weights=0, head_dim=0):
        self.dtype, self.head_dim = DTYPE_NAMES[int(weights)], int(head_dim)

    def embed(self, wte, wpe, ids, positions, width, x):
        x[...] = widen(wte[ids], self.dtype) + wpe[positions]

    def layer_norm(self, x, rows, bias, weight, shift, epsilon, width, out, exact):
        chosen = x[rows] if is_array(rows) else x
        if is_array(bias):
            chosen = chosen + bias
            if not is_array(rows):
                x[...] = chosen
        result = layer_norm(chosen, weight, shift, epsilon).astype(np.float32)
        if is_array(out):
            out[...] = narrow(result, self.dtype)
        else:
            exact[...] = result

    def activate(self, x, bias, function, width, out):
        name = ["gelu_new", "gelu", "relu", "silu", "quick_gelu", "tanh"][function]
        out[...] = narrow(ACTIVATIONS[name](x + bias).astype(np.float32), self.dtype)

    def append(self, qkv, bias, positions, texts, tables, blocks, layer, heads):
        new = (qkv + bias).reshape(len(qkv), 3, heads, self.head_dim)
        for token, (position, text) in enumerate(zip(positions, texts, strict=True)):
            keys, values = self._block(tables[text, position // BLOCK], layer, heads)
            keys[:, :, position % BLOCK] = narrow(new[token, 1], self.dtype)
            values[:, position % BLOCK] = narrow(new[token, 2], self.dtype)

    def attend(self, qkv, bias, tiles, tables, blocks, layer, scale, out):
        heads = qkv.shape[1] // 3 // self.head_dim
        queries = (qkv + bias)[:, : heads * self.head_dim].reshape(-1, heads, self.head_dim) * scale  # [T, H, D]
        for first, count, position, text in tiles:
            held = [
                self._block(address, layer, heads) for address in tables[text, : (position + count - 1) // BLOCK + 1]
            ]
            keys = widen(np.concatenate([block[0] for block in held], axis=2), self.dtype)  # [H, D, positions]
            values = widen(np.concatenate([block[1] for block in held], axis=1), self.dtype)  # [H, positions, D]
            for q in range(count):
                seen = position + q + 1
                scores = np.einsum("hd,hdp->hp", queries[first + q], keys[:, :, :seen])
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                result = np.einsum("hp,hpd->hd", weights, values[:, :seen]).ravel()
                out[first + q] = narrow(result.astype(np.float32), self.dtype)

    def choose(self, logits, draws, width, chosen):
        for place, draw in enumerate(draws.view(DRAW)):
            options = {name: draw[name].item() for name in ("temperature", "top_k", "top_p", "min_p")}
            try:
                row = logits[draw["row"], : draw["n_vocab"]]
                chosen[place] = Sampling(**options).choose(row, key=draw["key"].item())
            except NonFiniteError:
                chosen[place] = -1

    def _block(self, address, layer, heads):
        """Keys [H, D, BLOCK] and values [H, BLOCK, D] of one layer in the block of the cache at an address."""
        size = 2 * self.head_dim * BLOCK
        storage = np.dtype(DTYPES[self.dtype])
        data = at(address + layer * heads * size * storage.itemsize, storage, (heads, size))
        keys, values = data[:, : size // 2], data[:, size // 2 :]
        return keys.reshape(heads, self.head_dim, BLOCK), values.reshape(heads, BLOCK, self.head_dim)


# The kernels themselves.


class Emulation(FakeDevice):
    """The kernels of the .cu file on this CPU; with `backwards` the threads take their turns in descending order."""

    def __init__(self, limit=2**40, *, backwards=False):
        super().__init__(limit)
        self.backwards = backwards

    def compile(self, path, names, options):
        library = emulated(path, tuple(names), options)
        return {name: self._launched(library, name) for name in names}

    def _launched(self, library, name):
        run, signature = library[f"run_{name}"], library[f"signature_{name}"]
        run.restype, signature.restype = ctypes.c_bool, ctypes.c_char_p

        def launch(grid, block, arguments):
            assert all(size > 0 for size in (*grid, *block))
            assert block[0] <= 1024
            assert (*grid, 1)[1] <= 65535
            # As CuPy takes them: arrays as pointers, numbers by their bytes.
            found, values = "", []
            for argument in arguments:
                if is_array(argument):
                    assert argument.flags.c_contiguous
                    argument = np.uintp(argument.ctypes.data)
                assert isinstance(argument, np.generic)
                found += f"{argument.dtype.kind.replace('u', 'p')}{argument.itemsize}"
                values.append(np.array(argument))
            assert found == signature().decode(), f"{name} takes {signature().decode()}, is given {found}"
            sizes = [(ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, block)]
            pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
            assert run(*sizes, pointers, self.backwards), f"the threads of {name} part at a barrier"
            self.xp.check()

        return launch


_directory = tempfile.TemporaryDirectory()


@cache
def emulated(path, names, options):
    """The kernels of a .cu file as a library for this CPU."""
    source, library = (Path(_directory.name) / f"{path.stem}{''.join(options)}.{kind}" for kind in ("cpp", "so"))
    header = Path(__file__).with_name("emulation.h")
    source.write_text(f'#include "{header}"\n#include "{path}"\n' + "".join(f"EMULATE({name})\n" for name in names))
    flags = ["-std=c++17", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", *options]
    flags += ["-O1", "-g", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all"] if SANITIZERS else ["-O2"]
    command = [COMPILER, *flags, source, "-o", library]
    subprocess.run([str(part) for part in command], check=True)
    return ctypes.CDLL(str(library))
