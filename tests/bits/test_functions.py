"""exp, log and erf are as exact as they say, and what is measured of logits is right; bfloat16 products are what the
instruction for them gives."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast.kernels import elementwise

HERE = Path(__file__).parent


def single_bits(value):
    return int(np.float32(value).view(np.uint32))


def exp_of_double(x):
    return np.exp(x)


erf_of_double = np.vectorize(math.erf, otypes=[np.float64])

#: Function, reference in double precision, the bits of the first and the last float32, and the most units in the last
#: place that the result is away.
SINGLES = {
    "exp of positive": (elementwise.exp, exp_of_double, single_bits(0), single_bits(88.37), 1.01),
    "exp of negative": (elementwise.exp, exp_of_double, single_bits(-0.0), single_bits(-87.3), 1.01),
    "erf": (elementwise.erf, erf_of_double, single_bits(0), single_bits(np.inf), 1.2),
    "erf of negative": (elementwise.erf, erf_of_double, single_bits(-0.0), single_bits(-np.inf), 1.2),
}


def worst(function, reference, first, last, step):
    """The largest distance from the reference, in units in the last place of float32."""
    largest = 0.0
    for start in range(first, last + 1, step << 20):
        x = np.arange(start, min(start + (step << 20), last + 1), step, dtype=np.uint64).astype(np.uint32)
        x = x.view(np.float32)
        exact = reference(x.astype(np.float64))
        unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        largest = max(largest, float((np.abs(function(x) - exact) / unit).max()))
    return largest


@pytest.mark.parametrize("name", SINGLES)
def test_float32(name):
    function, reference, first, last, limit = SINGLES[name]
    assert worst(function, reference, first, last, 16381) <= limit


@pytest.mark.skipif("GPT2FAST_EXHAUSTIVE" not in os.environ, reason="takes minutes: GPT2FAST_EXHAUSTIVE=1")
@pytest.mark.parametrize("name", SINGLES)
def test_every_float32(name):
    """All of them for exp, every 64th for erf, whose reference Python computes one by one."""
    function, reference, first, last, limit = SINGLES[name]
    assert worst(function, reference, first, last, 1 if "exp" in name else 64) <= limit


@given(some.floats(-745, 709.7), some.floats(-1, 1))
def test_exp_of_float64(x, y):
    values = np.array([x, y])
    exact = np.exp(values.astype(np.longdouble))
    unit = np.spacing(exact.astype(np.float64)).astype(np.longdouble)
    assert (np.abs(elementwise.exp(values) - exact) <= unit).all()


@given(some.floats(5e-324, 1.7e308), some.floats(0.5, 2))
def test_log_of_float64(x, y):
    values = np.array([x, y])
    exact = np.log(values.astype(np.longdouble))
    unit = np.spacing(np.abs(exact).astype(np.float64)).astype(np.longdouble)
    assert (np.abs(elementwise.log(values) - exact) <= unit).all()


def test_ends_of_the_ranges():
    inf, nan = np.inf, np.nan
    assert elementwise.exp(np.array([-inf, -746, 0, 710, inf])).tolist() == [0, 0, 1, inf, inf]
    assert elementwise.exp(np.array([-745.1, 709.78])).tolist() == [5e-324, math.exp(709.78)]
    assert elementwise.log(np.array([0, -0.0, 1, inf])).tolist() == [-inf, -inf, 0, inf]
    assert elementwise.log(np.array([5e-324, 2.0**-1022])).tolist() == [math.log(5e-324), math.log(2.0**-1022)]
    assert np.isnan(elementwise.log(np.array([-1, -inf, nan]))).all()
    single = np.float32
    assert elementwise.exp(np.array([-inf, -87.4, 0, 88.4, inf], single)).tolist() == [0, 0, 1, inf, inf]
    assert elementwise.erf(np.array([-inf, -5, 0, 5, inf], single)).tolist() == [-1, -1, 0, 1, 1]
    for function, dtype in ((elementwise.exp, np.float64), (elementwise.exp, single), (elementwise.erf, single)):
        assert np.isnan(function(np.array([nan], dtype))).all()


def test_arguments():
    x = np.linspace(-2, 2, 12).reshape(3, 4)
    out = np.empty((3, 4))
    assert elementwise.exp(x, out=out) is out
    np.testing.assert_array_equal(out, elementwise.exp(np.asfortranarray(x)))
    np.testing.assert_array_equal(elementwise.exp(x[:, ::2]), out[:, ::2])
    assert elementwise.exp(np.float64(1)).shape == ()
    assert elementwise.exp(np.empty((0, 3))).shape == (0, 3)
    same = x.copy()
    elementwise.exp(same, out=same)
    np.testing.assert_array_equal(same, out)
    with pytest.raises(TypeError, match="log of an array of float32; expected float64"):
        elementwise.log(x.astype(np.float32))
    with pytest.raises(TypeError, match="exp of an array of int64; expected float64 or float32"):
        elementwise.exp(np.arange(3))
    with pytest.raises(ValueError, match=r"out is float64 \(4, 3\)"):
        elementwise.exp(x, out=np.empty((4, 3)))
    assert elementwise.total(np.empty(0)) == 0


@given(some.integers(1, 400), some.integers(0, 9), some.floats(0.01, 300))
def test_measures(n, seed, scale):
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((5, n)) * scale).astype(np.float32)
    logits[0, : n // 2] = -np.inf
    targets = generator.integers(0, n, 5)
    found = elementwise.measures(logits[:, :n], targets)
    below = (logits - logits.max(axis=1, keepdims=True)).astype(np.longdouble)
    total = np.exp(below).sum(axis=1, keepdims=True)
    chosen = np.take_along_axis(below, targets[:, None], axis=1)
    with np.errstate(invalid="ignore"):
        mean = (np.exp(below) / total * np.where(np.isinf(below), 0, below)).sum(axis=1)
    np.testing.assert_allclose(found[:, 0], (chosen - np.log(total))[:, 0].astype(np.float64), rtol=1e-6, atol=1e-6)
    ranks = (logits > np.take_along_axis(logits, targets[:, None], axis=1)).sum(axis=1) + 1
    assert found[:, 1].tolist() == ranks.tolist()
    entropy = (np.log(total)[:, 0] - mean) / np.log(np.longdouble(2))
    np.testing.assert_allclose(found[:, 2], entropy.astype(np.float64), rtol=1e-5, atol=1e-5)
    with np.errstate(invalid="ignore"):
        away = np.where(np.isinf(below), 0, below) - mean[:, None]
    variance = (np.exp(below) / total * away**2).sum(axis=1)
    np.testing.assert_allclose(found[:, 3], variance.astype(np.float64), rtol=1e-5, atol=1e-5)
    assert (found[:, 3] >= 0).all()


def test_measures_of_what_is_not_finite():
    for logits in ([1, np.nan], [np.inf, 1], [-np.inf, -np.inf], [np.nan, np.nan]):
        for target in (0, 1):
            found = elementwise.measures(np.array([logits], np.float32), np.array([target]))
            assert np.isnan(found).all()
    with pytest.raises(IndexError, match="target 2 of row 0 is not among 2 logits"):
        elementwise.measures(np.zeros((1, 2), np.float32), np.array([2]))
    with pytest.raises(ValueError, match="there are 1 targets for 2 rows"):
        elementwise.measures(np.zeros((2, 2), np.float32), np.array([0]))


def has_bfloat16():
    try:
        return "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not has_bfloat16(), reason="this processor has no AVX-512 BF16")
def test_the_instruction_for_bfloat16_products(tmp_path):
    """It gives what bfloat16.inc.c defines: so kernels may use it wherever this passes."""
    program = tmp_path / "vdpbf16ps"
    flags = ["-O2", "-std=gnu11", "-mavx512f", "-mavx512bf16", "-mfma", "-ffp-contract=off"]
    built = subprocess.run(
        ["cc", *flags, HERE / "vdpbf16ps.c", "-o", program, "-lm"], capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"the compiler does not know the instruction: {built.stderr.strip().splitlines()[-1]}")
    run = subprocess.run([program, "100000"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
