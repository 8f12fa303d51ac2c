"""The kernels of kernels.cu, run on the CPU thread by thread, give what their twins in NumPy give.

Each runs with its threads in ascending and in descending order, which must not matter: where it does, a barrier is
missing.  Arguments are checked against the kernels' own types, and nothing may be written beside an array.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fake_devices import COMPILER, SANITIZERS, Emulation, Twin, emulated

from gpt2fast.cuda.kv_cache import CudaKVCache
from gpt2fast.cuda.operations import BLOCK, DTYPES, QUERIES, Matrix, Operations, Plan
from gpt2fast.cuda.weights import narrow, widen

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="the emulation takes g++ and the C library of Linux"
)

# Of the largest value: a rounding to the dtype and a little for sums in another order.
TOLERANCE = {"float32": 2e-6, "float16": 2**-10, "bfloat16": 2**-7}


@pytest.fixture(params=DTYPES)
def dtype(request):
    return request.param


def agree(operation, dtype, head_dim=8):
    """Check that `operation`, a function from `Operations` to arrays, gives the same on all devices."""
    expected, upwards, downwards = (
        operation(Operations(device, dtype, head_dim)) for device in (Twin(), Emulation(), Emulation(backwards=True))
    )
    for i, (twin, up, down) in enumerate(zip(expected, upwards, downwards, strict=True)):
        np.testing.assert_array_equal(up, down, err_msg=f"array {i}: the order of the threads matters")
        assert up.dtype == twin.dtype
        twin, up = (widen(a, dtype) if a.dtype == DTYPES[dtype] else a for a in (twin, up))
        tolerance = (TOLERANCE[dtype] if up.dtype == DTYPES[dtype] else 2e-6) * np.nanmax(np.abs(twin))
        np.testing.assert_allclose(up, twin, rtol=TOLERANCE[dtype], atol=tolerance, err_msg=f"array {i}")


def random(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def plan(device, **parts):
    empty = np.zeros(0, np.int64)
    return Plan(**{
        name: device.upload(np.asarray(parts.get(name, empty), np.int64)) for name in Plan.__dataclass_fields__
    })  # fmt: skip


@pytest.mark.parametrize("width", [1, 31, 48, 300])
def test_embed(dtype, width):
    def operation(do):
        wte, wpe = (do.device.upload(array) for array in (narrow(random(7, width), dtype), random(5, width, seed=1)))
        return [do.embed(wte, wpe, plan(do.device, ids=[6, 0, 3, 3], positions=[0, 4, 1, 2]))]

    agree(operation, dtype)


@pytest.mark.parametrize("width", [1, 31, 48, 300, 1600])
@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(dtype, width, biased):
    def operation(do):
        x, bias, weight, shift = (
            do.device.upload(random(*shape, seed=seed, scale=3) + seed)
            for seed, shape in enumerate([(3, width), (width,), (width,), (width,)])
        )
        out = do.layer_norm(x, bias if biased else None, (weight, shift, 1e-5))
        some = do.layer_norm_of(x, do.device.upload(np.array([2, 0])), bias, (weight, shift, 1e-5), exact=False)
        exact = do.layer_norm_of(x, do.device.upload(np.array([1])), bias, (weight, shift, 1e-5), exact=True)
        return [x, out, some, exact]

    agree(operation, dtype)


@pytest.mark.parametrize("function", ["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"])
@pytest.mark.parametrize("width", [1, 48, 257])
def test_activate(dtype, function, width):
    def operation(do):
        x, bias = do.device.upload(random(3, width, scale=4)), do.device.upload(random(width, seed=1))
        return [do.activate(x, bias, function)]

    agree(operation, dtype)


def test_activate_far_out(dtype):
    x = np.array([[-200, -88, -20, -1e-8, 0, 1e-8, 20, 88, 200]], np.float32)
    for function in ("gelu_new", "gelu", "relu", "silu"):
        agree(lambda do, f=function: [do.activate(do.device.upload(x), do.device.upload(x[0] * 0), f)], dtype)


# What texts have in the cache, and how many tokens join.
TEXTS = [
    [(0, 1)],
    [(0, QUERIES + 1)],
    [(BLOCK - 1, 1), (BLOCK, 1), (BLOCK + 1, 1)],
    [(BLOCK - 2, QUERIES), (5 * BLOCK - 1, 3), (0, 2)],
    [(3 * BLOCK, BLOCK + 2)],
]


@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize(("head_dim", "heads"), [(64, 2), (8, 3), (33, 1), (80, 1)])
@pytest.mark.parametrize("scale", [0.125, 20.0])
def test_attend(dtype, texts, head_dim, heads, scale):
    """With the cache as it is after earlier passes: full of numbers up to the length of each text, of NaN beyond."""

    def operation(do):
        rows, counts = list(range(len(texts))), [count for _, count in texts]
        cache = CudaKVCache(
            do.device, do.storage, n_layer=2, n_head=heads, head_dim=head_dim, batch=len(texts), capacity=8 * BLOCK
        )
        for row, (length, count) in enumerate(texts):
            cache.reserve([row], [length])
            cache.grow([row], [length])
            for number, block in enumerate(cache._rows[row]):
                there = np.arange(BLOCK) < length - number * BLOCK
                keys, values = np.moveaxis(block.data.reshape(2, heads, 2, -1), 2, 0)  # views: [layers, heads, numbers]
                new = narrow(random(2, 2, heads, head_dim * BLOCK, seed=row * 10 + number), dtype)
                put = [array.reshape(2, heads, head_dim, BLOCK)[..., there] for array in new]
                keys.reshape(2, heads, head_dim, BLOCK)[..., there] = put[0]
                values.reshape(2, heads, BLOCK, head_dim)[:, :, there] = np.swapaxes(put[1], 2, 3)
            cache.reserve([row], [count])
        width, total = heads * head_dim, sum(counts)
        qkv, bias = do.device.upload(random(total, 3 * width)), do.device.upload(random(3 * width, seed=1))
        firsts = np.cumsum([0, *counts])
        told = plan(
            do.device,
            positions=np.concatenate([length + np.arange(count) for length, count in texts]),
            texts=np.repeat(rows, counts),
            tiles=[
                (firsts[row] + start, min(QUERIES, count - start), length + start, row)
                for row, (length, count) in enumerate(texts)
                for start in range(0, count, QUERIES)
            ],
            tables=cache.tables(rows),
        )
        out = do.attend(qkv, bias, told, layer=1, n_head=heads, scale=scale)
        return [out, *(block.data for row in cache._rows for block in row)]

    agree(operation, dtype, head_dim)


@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize(("tokens", "k", "n"), [(1, 3, 5), (4, 8, 1), (7, 5, 6)])
def test_product(dtype, by_output, tokens, k, n):
    """Against cuBLAS as it is documented: by columns, with leading dimensions."""
    do = Operations(Twin(), dtype, 8)
    x, matrix, before = narrow(random(tokens, k), dtype), narrow(random(k, n, seed=1), dtype), random(tokens, n, seed=2)
    data = do.device.upload(np.ascontiguousarray(matrix.T) if by_output else matrix)
    expected = widen(x, dtype) @ widen(matrix, dtype)
    weight = Matrix(data, k, n, by_output)
    np.testing.assert_allclose(do.product(do.device.upload(x), weight), expected, atol=1e-5)
    out = do.device.upload(before)
    assert do.product(do.device.upload(x), weight, add_to=out) is out
    np.testing.assert_allclose(out, before + expected, atol=1e-5)


def test_conversions_of_the_emulation():
    """float16 as NumPy has it, for every number there is and for those between."""
    do = Operations(Emulation(), "float16", 8)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].astype(np.float32)
    between = np.sort(finite)
    between = (between[1:] + between[:-1]) / 2
    for values in (finite, between, between * np.float32(1.0001), np.float32([65519, 65520, 1e9, -1e9, 1e-9, np.nan])):
        with np.errstate(over="ignore"):
            expected = np.maximum(values, 0).astype(np.float16)
        out = do.activate(do.device.upload(values[None]), do.device.upload(values * 0), "relu")
        np.testing.assert_array_equal(out[0], expected)


@pytest.mark.skipif(bool(SANITIZERS), reason="the sanitizer ends the process first")
def test_the_emulation_notices_a_missing_barrier_and_a_wrong_one(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text(
        'extern "C" __global__ void missing(float *x)\n{\n    __shared__ float last;\n'
        "    if (threadIdx.x == 63)\n        last = x[63];\n    x[threadIdx.x] = last;\n}\n"
        'extern "C" __global__ void parting(float *x)\n{\n'
        "    if (threadIdx.x == 0)\n        __syncthreads();\n    x[threadIdx.x] = 0;\n}\n"
        'extern "C" __global__ void beside(float *x)\n{\n    x[threadIdx.x + 1] = 0;\n}\n'
    )
    names = ("missing", "parting", "beside")
    results = []
    for backwards in (False, True):
        device = Emulation(backwards=backwards)
        kernels = device.compile(source, list(names), ())
        x = device.upload(np.arange(1, 65, dtype=np.float32))
        kernels["missing"]((1,), (64,), (x,))
        results.append(np.array(x))
        with pytest.raises(AssertionError, match="part at a barrier"):
            kernels["parting"]((1,), (64,), (x,))
        with pytest.raises(AssertionError, match="beside an array"):
            kernels["beside"]((1,), (64,), (x,))
        with pytest.raises(AssertionError, match="missing takes p8, is given f4"):
            kernels["missing"]((1,), (64,), (np.float32(1),))
    assert (results[0] != results[1]).any()
    assert emulated(source, names, ()) is emulated(source, names, ())
