"""The operations of the network on a device: matrix products of cuBLAS, and the kernels of kernels.cu and choice.cu.

Matrices, the cache and what goes into a product are of one dtype: float32, float16, or bfloat16, which NumPy does not
know and which is here the uint16 of its bits.  What comes out of a product, sums, and the residual stream are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt2fast.model.cuda.device import Device

__all__ = ["BLOCK", "DTYPES", "MAX_HEAD_DIM", "QUERIES", "ForwardPlan", "Matrix", "Operations"]

#: How matrices can be kept, with what their arrays are made of.
DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}

#: Positions in a block of the cache, tokens in a tile of attention, and the widest head: as in kernels.cu, where a
#: thread block's share of the fast memory sets the last one.
BLOCK, QUERIES, MAX_HEAD_DIM = 32, 4, 512
_ATTENTION_THREADS, _CHOICE_THREADS = 128, 1024

_FUNCTIONS = {"gelu_new": 0, "gelu": 1, "relu": 2, "silu": 3, "quick_gelu": 4, "tanh": 5}
_KERNELS = ["embed", "layer_norm", "activate", "append", "attend"]

# cuBLAS's and CUDA's numbers: operations, types, the type of sums, the choice of an algorithm.
_AS_IT_IS, _TRANSPOSED = 0, 1
_FLOAT32 = 0
_TYPES = {"float32": _FLOAT32, "float16": 2, "bfloat16": 14}
_SUMS_IN_FLOAT32, _DEFAULT_ALGORITHM = 68, -1
# A null pointer, by its bytes: not every CuPy passes None as one.
_NULL = np.uintp(0)
# Factors, which cuBLAS reads from the host's memory.
_FACTORS = np.array([0, 1], np.float32)
_ZERO, _ONE = _FACTORS.ctypes.data, _FACTORS.ctypes.data + 4


#: Weight, bias and epsilon of a LayerNorm.
Norm = tuple[Any, Any, float]


@dataclass(frozen=True)
class Matrix:
    """A matrix of k inputs and n outputs on the device: `data` is [k, n], or [n, k] where it is `by_output`."""

    data: Any
    k: int
    n: int
    by_output: bool


@dataclass(frozen=True)
class ForwardPlan:
    """What a pass over T tokens of S texts is to do: int64 arrays on the device."""

    ids: Any  # [T]
    positions: Any  # [T] in their texts
    texts: Any  # [T] rows of `tables`
    tiles: Any  # [number, 4]: first token, how many, position of the first one, row of `tables`
    tables: Any  # [S, blocks] addresses of blocks of the cache
    outputs: Any  # tokens to give results for


class Operations:
    """The operations for one `dtype` and width of a head, on one device.

    Arrays that are given and made are contiguous and on the device.  Raises DeviceError where the kernels cannot be
    compiled.
    """

    def __init__(self, device: Device, dtype: str, head_dim: int) -> None:
        self.device = device
        self.dtype = dtype
        self.storage = DTYPES[dtype]
        options = f"-DWEIGHTS={list(DTYPES).index(dtype)}", f"-DHEAD_DIM={head_dim}"
        with device.current():
            self._kernels = {
                **device.compile(Path(__file__).with_name("kernels.cu"), _KERNELS, options),
                **device.compile(Path(__file__).with_name("choice.cu"), ["choose"], ()),
            }

    def embed(self, wte: Any, wpe: Any, plan: ForwardPlan) -> Any:
        """The embeddings of the plan's tokens, float32 [T, E], from those of ids and of positions."""
        tokens, width = len(plan.ids), wpe.shape[1]
        x = self._empty(tokens, width)
        arguments = wte, wpe, plan.ids, plan.positions, np.int32(width), x
        self._kernels["embed"]((tokens,), (_threads(width),), arguments)
        return x

    def layer_norm(self, x: Any, bias: Any, norm: Norm) -> Any:
        """LayerNorm, with (weight, bias, epsilon), of x [T, E]: [T, E] for a product.

        `bias` [E], unless it is None, is added to x, in place, first.
        """
        out = self._empty(*x.shape, dtype=self.storage)
        self._layer_norm(x, _NULL, _NULL if bias is None else bias, norm, out, _NULL, len(x))
        return out

    def layer_norm_of(self, x: Any, rows: Any, bias: Any, norm: Norm, *, exact: bool) -> Any:
        """LayerNorm of some rows of x plus `bias`: [rows, E] for a product, or `exact`, as float32."""
        out = self._empty(len(rows), x.shape[1], dtype=np.float32 if exact else self.storage)
        self._layer_norm(x, rows, bias, norm, *((_NULL, out) if exact else (out, _NULL)), len(rows))
        return out

    def _layer_norm(self, x: Any, rows: Any, bias: Any, norm: Norm, out: Any, exact: Any, count: int) -> None:
        (weight, shift, epsilon), width = norm, x.shape[1]
        arguments = x, rows, bias, weight, shift, np.float32(epsilon), np.int32(width), out, exact
        self._kernels["layer_norm"]((count,), (_threads(width),), arguments)

    def product(self, x: Any, matrix: Matrix, add_to: Any = None) -> Any:
        """x [T, k] times the matrix: float32 [T, n], new or added to `add_to`.

        cuBLAS counts matrices by columns, so it sees every array here transposed, and is asked for the transposed
        product: matrix^T x^T.
        """
        tokens, k, n = len(x), matrix.k, matrix.n
        out = self._empty(tokens, n) if add_to is None else add_to
        address = self.device.address
        self.device.gemm(
            *((_TRANSPOSED if matrix.by_output else _AS_IT_IS), _AS_IT_IS, n, tokens, k, _ONE),
            *(address(matrix.data), _TYPES[self.dtype], k if matrix.by_output else n),
            *(address(x), _TYPES[self.dtype], k),
            *(_ZERO if add_to is None else _ONE, address(out), _FLOAT32, n),
            *(_SUMS_IN_FLOAT32, _DEFAULT_ALGORITHM),
        )
        return out

    def activate(self, x: Any, bias: Any, function: str) -> Any:
        """The activation function of x [T, n] plus `bias` [n]: [T, n] for a product."""
        tokens, width = x.shape
        threads = _threads(width)
        out = self._empty(tokens, width, dtype=self.storage)
        arguments = x, bias, np.int32(_FUNCTIONS[function]), np.int32(width), out
        self._kernels["activate"]((-(-width // threads), tokens), (threads,), arguments)
        return out

    def attend(self, qkv: Any, bias: Any, plan: ForwardPlan, *, layer: int, n_head: int, scale: float) -> Any:
        """Causal attention of the plan's tokens: [T, E] for a product.

        Their queries, keys and values are in qkv [T, 3 E] plus `bias` [3 E]; keys and values join the cache first.
        """
        tokens, width = len(qkv), qkv.shape[1] // 3
        blocks, layer_number = np.int32(plan.tables.shape[1]), np.int32(layer)
        arguments = qkv, bias, plan.positions, plan.texts, plan.tables, blocks, layer_number, np.int32(n_head)
        self._kernels["append"]((tokens,), (_threads(width),), arguments)
        out = self._empty(tokens, width, dtype=self.storage)
        arguments = qkv, bias, plan.tiles, plan.tables, blocks, layer_number, np.float32(scale), out
        self._kernels["attend"]((len(plan.tiles), n_head), (_ATTENTION_THREADS,), arguments)
        return out

    def choose(self, logits: Any, draws: Any, count: int) -> Any:
        """The ids that draws choose from rows of logits [rows, n]: int32 [count], -1 where the host is to choose.

        `draws` has `count` times what `gpt2fast.model.cuda.choice.DRAW` says, as int64.
        """
        chosen = self._empty(count, dtype=np.int32)
        self._kernels["choose"]((count,), (_CHOICE_THREADS,), (logits, draws, np.int32(logits.shape[1]), chosen))
        return chosen

    def _empty(self, *shape: int, dtype: type[np.generic] = np.float32) -> Any:
        return self.device.xp.empty(shape, dtype)


def _threads(width: int) -> int:
    """Threads for a row of that width: whole warps, 256 at most."""
    return int(min(-(-width // 32) * 32, 256))
