"""Every kernel against its NumPy twin in float64: awkward sizes, one and two threads.

`test_cpu_levels.py` runs this file once more at every CPU level.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference_model as reference
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast.kernels import cpu
from gpt2fast.kernels.linear import Weight
from gpt2fast.kernels.norm import layer_norm_rows

SIZES = some.sampled_from([1, 2, 3, 7, 13, 16, 31, 32, 33, 48, 64, 65, 97, 128, 257])
THREADS = some.sampled_from([1, 2, 3])


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("layout", ["panels", "blas"])
@given(m=some.integers(1, 30), k=SIZES, n=SIZES, by_output=some.booleans(), threads=THREADS, seed=some.integers(0, 99))
def test_linear(layout, m, k, n, by_output, threads, seed):
    x, w, b, start = draw(seed, m, k), draw(seed + 1, k, n), draw(seed + 2, n), draw(seed + 3, m, n)
    given_as = np.ascontiguousarray(w.T) if by_output else w
    weight = getattr(Weight, layout)(given_as, b, by_output=by_output)
    tolerance = {"rtol": 1e-5, "atol": 1e-5 * np.sqrt(k)}
    exact = reference.linear(x.astype(np.float64), w, b)
    assert weight.shape == (k, n)
    np.testing.assert_allclose(weight.multiply(x, num_threads=threads), exact, **tolerance)
    np.testing.assert_allclose(weight.multiply(x, add_to=start, num_threads=threads), start + exact, **tolerance)
    without_bias = getattr(Weight, layout)(given_as, by_output=by_output)
    np.testing.assert_allclose(without_bias.multiply(x, num_threads=threads), exact - b, **tolerance)
    np.testing.assert_array_equal(weight.values(), w)
    np.testing.assert_array_equal(weight.outputs(n // 2, n), w[:, n // 2 :].T)


@pytest.mark.parametrize("layout", ["panels", "blas"])
@pytest.mark.parametrize("activation", sorted(reference.ACTIVATIONS))
def test_activation(layout, activation):
    x = np.concatenate([np.linspace(-12, 12, 4001), [-1e5, -88, -30, 0, 30, 88, 1e5, 1e-30]]).astype(np.float32)
    weight = getattr(Weight, layout)(np.ones((1, 37), np.float32), np.zeros(37, np.float32))
    y = weight.multiply(x[:, None], activation=activation)
    exact = reference.ACTIVATIONS[activation](x.astype(np.float64))
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y, np.repeat(exact[:, None], 37, axis=1), rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_what_is_not_finite_passes_on(dtype):
    weight = Weight.panels(np.ones((3, 1), np.float32), dtype=dtype)
    for value in (np.nan, np.inf):
        x = np.array([[1, value, 2]], np.float32)
        for activation in reference.ACTIVATIONS:
            if activation == "tanh" and value == np.inf:
                continue  # 1, by definition
            assert not np.isfinite(weight.multiply(x, activation=activation)).any()
        damaged = Weight.panels(x.T.copy(), dtype=dtype)
        assert not np.isfinite(damaged.multiply(np.ones((1, 3), np.float32))).any()


QUANTISED = some.sampled_from(["bfloat16", "int8", "int4"])


@given(
    dtype=QUANTISED,
    m=some.integers(1, 20),
    k=SIZES,
    n=SIZES,
    by_output=some.booleans(),
    threads=THREADS,
    seed=some.integers(0, 99),
)
def test_quantised(dtype, m, k, n, by_output, threads, seed):
    """The product of what the panels really hold with what the activations really become, to float32's precision."""
    x, w, b, start = draw(seed, m, k), draw(seed + 1, k, n), draw(seed + 2, n), draw(seed + 3, m, n)
    weight = Weight.panels(np.ascontiguousarray(w.T) if by_output else w, b, dtype=dtype, by_output=by_output)
    kept = weight.values().astype(np.float64)
    seen = reference.bfloat16(x) if dtype == "bfloat16" else reference.quantise(x)
    exact = reference.linear(seen, kept, b)
    tolerance = {"rtol": 1e-5, "atol": 1e-5 * np.sqrt(k)}
    np.testing.assert_allclose(weight.multiply(x, num_threads=threads), exact, **tolerance)
    np.testing.assert_allclose(weight.multiply(x, add_to=start, num_threads=threads), start + exact, **tolerance)
    activated = weight.multiply(x, activation="gelu_new", num_threads=threads)
    np.testing.assert_allclose(activated, reference.gelu_new(exact), rtol=1e-4, atol=2e-5 * np.sqrt(k))
    np.testing.assert_array_equal(weight.outputs(n // 2, n), weight.values()[:, n // 2 :].T)


@given(dtype=QUANTISED, k=SIZES, n=SIZES, by_output=some.booleans(), seed=some.integers(0, 99))
def test_quantisation_error(dtype, k, n, by_output, seed):
    """No weight is further from its original than half a step of its group; int4 may clip the largest."""
    w = draw(seed, k, n)
    kept = Weight.panels(np.ascontiguousarray(w.T) if by_output else w, dtype=dtype, by_output=by_output).values()
    if dtype == "bfloat16":
        assert (np.abs(kept - w) <= np.abs(w) * 2.0**-8).all()
        return
    codes = 127 if dtype == "int8" else 7
    for first in range(0, k, 64):
        group, error = w[first : first + 64], np.abs(kept - w)[first : first + 64]
        largest = np.abs(group).max(axis=0)
        assert (error <= largest * (0.501 / codes if dtype == "int8" else 0.36)).all()
        assert (error.std(axis=0) <= largest / codes * 0.6).all()


def test_rounding_to_bfloat16_is_to_nearest_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xBF80FFFF], np.uint32)
    kept = Weight.panels(bits.view(np.float32)[:, None].copy(), dtype="bfloat16").values()[:, 0].view(np.uint32)
    assert [hex(value) for value in kept] == ["0x3f800000", "0x3f820000", "0x3f810000", "0x7f800000", "0xbf810000"]


@given(
    m=some.integers(0, 20),
    n=SIZES,
    threads=THREADS,
    scale=some.sampled_from([1e-3, 1.0, 1e3]),
    shift=some.floats(-9, 9),
)
def test_layer_norm(m, n, threads, scale, shift):
    x = (draw(m, m, n) * np.float32(scale) + np.float32(shift)).astype(np.float32)
    weight, bias = draw(1, n), draw(2, n)
    y = layer_norm_rows(x, weight, bias, 1e-5, num_threads=threads)
    exact = reference.layer_norm(x.astype(np.float64), weight, bias, 1e-5)
    # What float32 can know: the mean is rounded to a few units in its last place, and divided by the deviation.
    deviation = np.sqrt(x.astype(np.float64).var(axis=-1, keepdims=True) + 1e-5)
    unit = 2.0**-24 * np.abs(x).max(axis=-1, initial=0, keepdims=True) / deviation
    assert (np.abs(y - exact) <= 1e-6 + 2e-6 * np.abs(exact) + 16 * unit * np.abs(weight)).all()


def test_shapes_are_checked():
    weight = Weight.panels(draw(0, 4, 6), draw(0, 6))
    with pytest.raises(ValueError, match="x has 5 columns, the weight 4 inputs"):
        weight.multiply(draw(0, 2, 5))
    with pytest.raises(ValueError, match="add_to is 2 by 5"):
        weight.multiply(draw(0, 2, 4), add_to=draw(0, 2, 5))
    with pytest.raises(ValueError, match="empty"):
        Weight.panels(draw(0, 0, 6))
    with pytest.raises(IndexError):
        weight.outputs(0, 7)
    with pytest.raises(ValueError, match="bias has 5 values"):
        Weight.blas(draw(0, 4, 6), draw(0, 5))
    with pytest.raises(ValueError, match="bias has 5 values"):
        Weight.panels(draw(0, 4, 6), draw(0, 5))


def test_level_is_one_of_the_supported():
    assert cpu.cpu_level() in cpu.supported_levels()
    assert cpu.supported_levels()[0] == "baseline"
