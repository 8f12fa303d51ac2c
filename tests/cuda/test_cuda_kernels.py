"""The kernels of the .cu files, run on the CPU thread by thread, give what their twins in NumPy give.

Each runs with its threads in ascending and in descending order, which must not matter: where it does, a barrier is
missing.  Arguments are checked against the kernels' own types, and nothing may be written beside an array.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fake_devices import COMPILER, SANITIZERS, Emulation, Twin, emulated
from hypothesis import given, settings
from hypothesis import strategies as some

from gpt2fast.model.cuda.choice import DRAW
from gpt2fast.model.cuda.kv_cache import CudaKVCache
from gpt2fast.model.cuda.operations import BLOCK, DTYPES, QUERIES, ForwardPlan, Matrix, Operations
from gpt2fast.model.cuda.weights import narrow, widen
from gpt2fast.model.draw import Draw

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="the emulation takes g++ and the C library of Linux"
)

FUNCTIONS = ["gelu_new", "gelu", "relu", "silu", "quick_gelu", "tanh"]

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
    return ForwardPlan(**{
        name: device.upload(np.asarray(parts.get(name, empty), np.int64)) for name in ForwardPlan.__dataclass_fields__
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


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("width", [1, 48, 257])
def test_activate(dtype, function, width):
    def operation(do):
        x, bias = do.device.upload(random(3, width, scale=4)), do.device.upload(random(width, seed=1))
        return [do.activate(x, bias, function)]

    agree(operation, dtype)


def test_activate_far_out(dtype):
    x = np.array([[-200, -88, -20, -1e-8, 0, 1e-8, 20, 88, 200]], np.float32)
    for function in FUNCTIONS:
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


# Choices.  The kernel may leave one to the host, but only where it is told when.

slow = settings(max_examples=15 if SANITIZERS else 60)


def choices(logits, draws):
    """What the kernel says, which must not depend on the order of its threads, and what `Sampling.choose` says."""
    found = []
    for device in (Twin(), Emulation(), Emulation(backwards=True)):
        do = Operations(device, "float32", 8)
        told = np.array([(row, *draw) for row, draw in enumerate(draws)], DRAW).view(np.int64)
        found.append(do.choose(device.upload(np.float32(logits)), device.upload(told), len(draws)).tolist())
    assert found[1] == found[2], "the order of the threads matters"
    return found[1], found[0]


# Few different values, so that ties are common, and some that are far apart.
VALUES = some.sampled_from([-30.0, -3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 1.5, 4.0, 3e38, -3e38, -np.inf])
DRAWS = some.tuples(
    some.integers(0, 2**64 - 1),
    some.sampled_from([0.0, 5e-324, 1e-9, 0.1, 0.7, 1.0, 3.0, 1e9, 1e308]),
    some.sampled_from([0, 1, 2, 5, 30, 700]),
    some.sampled_from([0.0, 0.013, 0.31, 0.57, 0.83, 0.97, 1.0]),
    some.sampled_from([0.0, 0.011, 0.23, 0.91, 1.0]),
).filter(lambda draw: draw[1] < 1e9 or draw[2] or draw[3] == 1)  # hot, different logits have equal weights


@slow
@given(some.lists(VALUES, min_size=1, max_size=40), some.lists(DRAWS, min_size=1, max_size=4))
def test_choose(row, options):
    rows = np.float32([np.roll(row, i) for i in range(len(options))])
    found, expected = choices(rows, [Draw(len(row), *draw) for draw in options])
    assert found == expected


@slow
@given(
    some.integers(0, 2**32),
    some.sampled_from([500, 1023, 1025, 2100, 5000]),
    some.sampled_from([0.5, 3.0, 20.0]),
    DRAWS,
)
def test_choose_from_many(seed, n, deviation, options):
    """More logits than threads; the last ones, which are the highest, are no tokens."""
    row = random(1, n + 7, seed=seed, scale=deviation)
    row[0, -7:] = 1e9
    found, expected = choices(row, [Draw(n, *options)])
    # The host's turn: so flat a distribution that the 768 best do not reach p.
    assert found == expected or (found == [-1] and options[2] == 0 and options[3] > 0.3)


@pytest.mark.parametrize("top_k", [1, 40, 768])
def test_choose_from_many_equal_logits(top_k):
    """The lowest ids of equal ones are kept; the race between them is that of the host."""
    row = np.zeros((8, 3000), np.float32)
    row[4:] = np.arange(3000) % 2
    found, expected = choices(row, [Draw(3000, 977 * i, 1.0, top_k, 1.0 - i % 2 / 2, 0.0) for i in range(8)])
    assert found == expected


def test_choices_that_are_left_to_the_host():
    row = random(1, 5000)
    good = Draw(5000, 1, 1.0, 0, 1.0, 0.0)
    for value in (np.nan, np.inf, -np.inf):
        for place in (0, 4999):
            bad = row.copy()
            bad[0, place] = value
            found, expected = choices(bad, [good])
            assert found == expected
            assert (found == [-1]) == (value != -np.inf)
    nothing = np.full_like(row, -np.inf)
    assert choices(nothing, [good]) == choices(nothing, [good._replace(temperature=0.0)]) == ([-1], [-1])
    for draw in (good._replace(top_k=769), good._replace(temperature=9.0, top_p=0.9)):
        found, expected = choices(row, [draw])
        assert found == [-1] != expected
    for column in range(768):  # each of them has more of the best than its share
        row[0, column::1024] += 20 if column else 10
    assert choices(row, [good._replace(top_k=768)])[0] == [-1]


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
