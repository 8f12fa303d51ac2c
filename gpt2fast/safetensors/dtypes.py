"""The number types of the safetensors format, and what NumPy makes of them."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np

from gpt2fast.errors import InputTypeError

__all__ = ["ITEM_SIZES", "RANKS", "RAW_BITS", "SUB_BYTE", "dtype_name", "numpy_dtype", "refuse_packed"]

_NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "F8_E5M2": "u1",
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "C64": "<c8",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}

#: Bytes per element, by dtype name.
ITEM_SIZES = {name: np.dtype(code).itemsize for name, code in _NUMPY.items()}
#: Types of the format whose elements are no whole bytes, and the bits of one.
SUB_BYTE = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
#: The place of each dtype in the order in which the reference package sorts tensors for writing, from the last to the
#: first.
RANKS = {name: rank for rank, name in enumerate(["BOOL", *SUB_BYTE, *list(_NUMPY)[1:]])}

# Types that NumPy has only through ml_dtypes; without it their bits come as unsigned integers.
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
#: The unsigned integers in which the bits of such a type come, and from which they can be written.
RAW_BITS = {name: np.dtype(_NUMPY[name]) for name in _ML_DTYPES}
_BY_ML_DTYPE = {theirs: name for name, theirs in _ML_DTYPES.items()}
_BY_NUMPY = {np.dtype(code): name for name, code in _NUMPY.items() if name not in _ML_DTYPES}


def refuse_packed(name: str, where: str) -> None:
    """Raise InputTypeError, which starts with `where`, for a type whose elements are no whole bytes."""
    if name in SUB_BYTE:
        raise InputTypeError(
            f"{where}: elements of dtype {name} are no whole bytes, which NumPy cannot hold; safe_open reads the other "
            "tensors, deserialize gives the bytes of this one"
        )


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The little-endian NumPy dtype in which tensors of the format's dtype `name` are read.

    BF16 and the eight-bit floats are those of ml_dtypes where that is installed, else unsigned integers of their bits.
    """
    if name in _ML_DTYPES and sys.byteorder == "little":
        try:
            import ml_dtypes

            dtype: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
            return dtype
        except (ImportError, AttributeError):  # not installed, or too old for this type
            pass
    return np.dtype(_NUMPY[name])


def dtype_name(dtype: np.dtype[np.generic]) -> str | None:
    """The format's name for a NumPy dtype of either byte order, None where it has none.

    >>> dtype_name(np.dtype(">f4")), dtype_name(np.dtype(np.complex128))
    ('F32', None)
    """
    if dtype.type.__module__ == "ml_dtypes":
        return _BY_ML_DTYPE.get(dtype.name)
    return _BY_NUMPY.get(dtype.newbyteorder("<"))
