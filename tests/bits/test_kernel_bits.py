"""Every kernel gives equal bits at every CPU level, for any shape, value and number of threads.

Of NaN only the place is promised, not which of its bit patterns it is: processors differ in that.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess

import numpy as np
import pytest
import reference_model as reference
import seeded
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast.checkpoint.config import Config
from gpt2fast.kernels import cpu, elementwise
from gpt2fast.kernels.linear import ACTIVATIONS, Weight
from gpt2fast.kernels.norm import layer_norm_rows
from gpt2fast.model.gpt2 import GPT2

LEVELS = cpu.supported_levels()
SIZES = some.integers(1, 140)
DTYPES = ("float32", "bfloat16", "int8", "int4")
#: From which exponent to before which, of 0 (subnormal) to 255 (infinity and NaN).
KINDS = {
    "ordinary": (117, 133),
    "small": (0, 40),
    "subnormal": (0, 2),
    "large": (200, 255),
    "all": (0, 255),
    "not finite": (120, 256),
}


def floats(seed, kind, *shape):
    """float32 of any sign and fraction, some of them 0 and -0."""
    generator = np.random.default_rng(seed)
    exponents = generator.integers(*KINDS[kind], shape, dtype=np.uint32)
    rest = generator.integers(0, 2**32, shape, dtype=np.uint32) & np.uint32(0x807FFFFF)
    if generator.random() < 0.3:  # few significant bits: sums then are often half way between two floats
        rest &= np.uint32(0x807F0000)
    bits = rest | exponents << np.uint32(23)
    bits[generator.random(shape) < 0.05] &= np.uint32(0x80000000)
    return bits.view(np.float32)


def bits_of(array):
    """The bits of an array, NaN as one pattern."""
    array = np.asarray(array)
    if array.dtype.kind != "f":
        return array.tobytes()
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array).tobytes()


@pytest.fixture(scope="module", autouse=True)
def _back_to_this_level():
    before = cpu.cpu_level()
    yield
    cpu.use_level(before)


def same_at_every_level(compute):
    """What `compute` returns, an array or a list of them, at the lowest level; it has these bits at all others."""
    results = []
    for level in LEVELS:
        cpu.use_level(level)
        result = compute()
        results.append(result if isinstance(result, list) else [result])
    for level, result in zip(LEVELS, results, strict=True):
        for first, other in zip(results[0], result, strict=True):
            assert bits_of(first) == bits_of(other), f"{level} differs from {LEVELS[0]}"
    return results[0]


KIND = some.sampled_from(sorted(KINDS))


@given(
    some.sampled_from(DTYPES),
    KIND,
    KIND,
    some.integers(1, 20),
    SIZES,
    SIZES,
    some.booleans(),
    some.integers(1, 3),
    some.integers(0),
)
def test_products(dtype, of_x, of_w, m, k, n, by_output, threads, seed):
    x, w = floats(seed, of_x, m, k), floats(seed + 1, of_w, *((n, k) if by_output else (k, n)))
    bias, start = floats(seed + 2, of_w, n), floats(seed + 3, of_x, m, n)

    def compute():
        weight = Weight.panels(w, bias, dtype=dtype, by_output=by_output, num_threads=threads)
        products = [weight.multiply(x, num_threads=threads), weight.multiply(x, add_to=start, num_threads=threads)]
        row = [weight.multiply(x[:1])[0], products[0][0]]
        assert bits_of(row[0]) == bits_of(row[1]), "a row alone differs from the row among others"
        return [weight.panels_data(), weight.values(), *products]

    same_at_every_level(compute)


@given(some.sampled_from(sorted(ACTIVATIONS)), KIND, SIZES, some.integers(0))
def test_activations(activation, kind, n, seed):
    x, one = floats(seed, kind, 3, 1), np.ones((1, n), np.float32)
    same_at_every_level(lambda: Weight.panels(one).multiply(x, activation=activation))


@given(KIND, some.integers(0, 12), some.integers(1, 300), some.integers(1, 3), some.integers(0))
def test_layer_norm(kind, m, n, threads, seed):
    x, weight, bias = floats(seed, kind, m, n), floats(seed + 1, "ordinary", n), floats(seed + 2, "ordinary", n)
    same_at_every_level(lambda: layer_norm_rows(x, weight, bias, 1e-5, num_threads=threads))


@given(KIND, some.integers(0, 300), some.integers(0))
def test_functions(kind, n, seed):
    x = floats(seed, kind, n)
    wide = np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64).view(np.float64)
    wide = np.where(np.arange(n) % 2, wide, x)
    same_at_every_level(
        lambda: [
            elementwise.exp(x),
            elementwise.erf(x),
            elementwise.exp(wide),
            elementwise.log(wide),
            np.array(elementwise.total(wide)),
        ]
    )


@given(KIND, some.integers(1, 9), some.integers(1, 300), some.integers(1, 3), some.integers(0))
def test_measures(kind, rows, n, threads, seed):
    logits = floats(seed, kind, rows, n)
    targets = np.random.default_rng(seed).integers(0, n, rows)
    same_at_every_level(lambda: elementwise.measures(logits, targets, num_threads=threads))


@given(
    some.sampled_from(["float32", "bfloat16", "int8", "int4", "float32, bfloat16", "int8, float32"]),
    some.integers(1, 3),
    some.integers(1, 40),
    some.sampled_from(sorted(set(ACTIVATIONS) - {"linear"})),
    some.lists(some.integers(1, 40), min_size=1, max_size=3),
    some.integers(1, 3),
    some.floats(0.1, 30),
)
def test_networks(dtypes, n_head, head_dim, activation, parts, threads, scale):
    """Attention too: heads of any width, texts cut anywhere."""
    dtype, _, cache_dtype = dtypes.partition(", ")
    config = Config(
        vocab_size=67, n_ctx=128, n_embd=n_head * head_dim, n_layer=1, n_head=n_head, n_inner=33,
        activation_function=activation,
    )  # fmt: skip
    tensors = {name: (values * scale).astype(np.float32) for name, values in seeded.tensors(config).items()}
    ids = np.random.default_rng(sum(parts)).integers(0, 67, sum(parts))

    def compute():
        model = GPT2.from_tensors(config, tensors, dtype=dtype, cache_dtype=cache_dtype or None, num_threads=threads)
        cache = model.new_cache()
        cut = [model(part, cache) for part in np.split(ids, np.cumsum(parts)[:-1])]
        return [model(ids), np.concatenate(cut)]

    whole, cut = same_at_every_level(compute)
    assert bits_of(whole) == bits_of(cut)


def test_fused_steps_round_once():
    """Products whose sum lies just beside half way between two floats, or where floats are subnormal."""
    one, ulp = np.float32(1), np.float32(2.0**-23)
    cases = [
        (one + ulp, one + ulp, np.float32(2.0**-60)),  # 1 + 2^-22 + 2^-46, and a little
        (one + ulp, one - ulp / 2, np.float32(2.0**-24)),
        (np.float32(2.0**-75), np.float32(2.0**-75), np.float32(2.0**-149)),
        (np.float32(1.5 * 2.0**-75), np.float32(2.0**-75), np.float32(-(2.0**-149))),
        (np.float32(2.0**-24), np.float32(1 + 2.0**-23), one),  # just above half an ulp of 1
        (np.float32(-(2.0**-25)), np.float32(1 + 2.0**-23), one),
        (np.float32(3e38), np.float32(2), np.float32(-3e38)),
    ]
    for x, w, before in cases:
        # The first step gives `before`, exactly; the second one is the case.
        rows, columns = np.array([[1, x]], np.float32), np.array([[before], [w]], np.float32)
        (result,) = same_at_every_level(lambda a=rows, b=columns: Weight.panels(b).multiply(a))
        exact = reference.fused(float(x), float(w), float(before))
        assert result[0, 0] == exact or np.isinf(result[0, 0])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets a register of x86")
@pytest.mark.skipif(shutil.which("cc") is None, reason="compiles a function")
def test_results_do_not_depend_on_the_callers_rounding(tmp_path):
    """A library that was linked with -ffast-math switches subnormal numbers off; kernels have them all the same, and
    the caller finds its own setting as it was."""
    source, library = tmp_path / "mxcsr.c", tmp_path / "mxcsr.so"
    source.write_text(
        "#include <xmmintrin.h>\nunsigned get(void) { return _mm_getcsr(); }\nvoid set(unsigned v) { _mm_setcsr(v); }"
    )
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    register = ctypes.CDLL(library)
    x, w = np.full((1, 1), 2.0**-100, np.float32), np.full((1, 1), 2.0**-40, np.float32)
    before = register.get()
    flush_and_round_up = 0x8040 | 0x4000
    try:
        for level in LEVELS:
            cpu.use_level(level)
            weight = Weight.panels(w)
            register.set(before | flush_and_round_up)
            results = weight.multiply(x), elementwise.exp(np.array([1.0, -740.0]))
            after = register.get()
            register.set(before)
            assert after & flush_and_round_up == flush_and_round_up
            assert results[0][0, 0] == np.float32(2.0**-140)
            assert bits_of(results[1]) == bits_of(elementwise.exp(np.array([1.0, -740.0])))
    finally:
        register.set(before)
