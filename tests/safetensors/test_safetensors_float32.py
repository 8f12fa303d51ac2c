"""float32 from half precision is exact, for every one of the 65,536 values, without ml_dtypes and with it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors as st
from gpt2fast.safetensors import widen

ALL = np.arange(65536, dtype=np.uint16)


def bits(array):
    return array.view(np.uint32)


@pytest.mark.parametrize("keeps_subnormals", [True, False])
def test_every_f16(monkeypatch, keeps_subnormals):
    monkeypatch.setattr(widen, "_keeps_subnormals", lambda: keeps_subnormals)
    halves = ALL.view(np.float16)
    wide = st.as_float32(halves, "F16")
    # From the definition: sign, five bits of exponent with a bias of 15, ten bits of mantissa.
    sign, exponent, mantissa = (-1.0) ** (ALL >> 15), (ALL >> 10 & 31).astype(int), (ALL & 1023) / 1024
    expected = sign * np.where(exponent == 0, mantissa * 2.0**-14, (1 + mantissa) * 2.0 ** (exponent - 15.0))
    finite = exponent < 31
    np.testing.assert_array_equal(wide[finite], expected[finite])
    np.testing.assert_array_equal(np.signbit(wide), sign < 0)
    infinite = ~finite & (mantissa == 0)
    assert np.isinf(wide[infinite]).all()
    assert infinite.sum() == 2
    assert np.isnan(wide[~finite & ~infinite]).all()
    np.testing.assert_array_equal(wide[~np.isnan(wide)].astype(np.float16), halves[~np.isnan(wide)])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 65504.0, 2.0**-24])
def test_one_odd_f16_among_many(value):
    halves = np.ones(100_000, np.float16)
    halves[70_000] = value
    np.testing.assert_array_equal(st.as_float32(halves, "F16"), halves.astype(np.float32))


def test_this_process_keeps_subnormals():
    assert widen._keeps_subnormals()


@pytest.mark.parametrize("dtype", [np.uint16, ml_dtypes.bfloat16])
def test_every_bf16(dtype):
    wide = st.as_float32(ALL.view(dtype), "BF16")
    np.testing.assert_array_equal(bits(wide), ALL.astype(np.uint32) << 16)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "F64"])
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_any_size(name, size):
    values = np.random.default_rng(size).standard_normal(size)
    array = values.astype({"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64}[name])
    wide = st.as_float32(array, name)
    assert (wide.dtype, wide.shape) == (np.float32, (size,))
    np.testing.assert_array_equal(wide, array.astype(np.float32))


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "F64"])
def test_any_order(name):
    dtype = {"F16": "f2", "BF16": "u2", "F32": "f4", "F64": "f8"}[name]
    plain = np.arange(24).astype(dtype)
    for array in [
        plain.reshape(2, 3, 4),
        plain.reshape(2, 3, 4).T,
        plain[::-3],
        plain[0].reshape(()),
        np.broadcast_to(plain[1], (3, 2)),
        np.asfortranarray(plain.reshape(4, 6)),
        plain.astype(plain.dtype.newbyteorder(">")),
    ]:
        wide = st.as_float32(array, name)
        assert wide.shape == array.shape
        assert wide.dtype.isnative
        assert wide.flags.c_contiguous
        assert wide.flags.aligned
        expected = array.astype(np.float32)
        if name == "BF16":
            expected = (np.atleast_1d(array).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(array.shape)
        np.testing.assert_array_equal(wide, expected)


def test_float32_is_not_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert st.as_float32(array, "F32") is array
    misaligned = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(np.float32)
    assert st.as_float32(misaligned, "F32").flags.aligned


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.zeros(2, np.int32), "I32"),
        (np.zeros(2, np.uint8), "F8_E4M3"),
        (np.zeros(2, np.float16), "BF16"),
        (np.zeros(2, np.int16), "BF16"),
        (np.zeros(2, np.uint16), "F16"),
        (np.zeros(2, np.float64), "F32"),
        (np.zeros(2, np.float32), "float32"),
    ],
)
def test_other_types(array, name):
    with pytest.raises(gpt2fast.InputTypeError, match=name):
        st.as_float32(array, name)
