"""Writing safetensors files: every tensor aligned, the same bytes for the same input, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gpt2fast.atomic import atomic_write
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.safetensors.dtypes import ITEM_SIZES, RANKS, RAW_BITS, dtype_name
from gpt2fast.safetensors.files import bytes_of
from gpt2fast.safetensors.header import METADATA, Entry, build_header

__all__ = ["save_file"]

Array = npt.NDArray[Any]


def save_file(
    tensors: Mapping[str, Array],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Write arrays, by name, to a safetensors file that appears at `path` whole or not at all."""
    entries = plan(tensors, dtypes or {})
    head = build_header(entries, check_metadata(metadata))
    with atomic_write(path) as file:
        write_content(file, head, entries, tensors)


def check_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`metadata` itself, which holds nothing but Unicode strings."""
    for name, value in (metadata or {}).items():
        for text in (name, value):
            if not isinstance(text, str):
                raise InputTypeError(f"metadata has {text!a}, of type {type(text).__name__}, expected strings")
            _check_unicode(text, "metadata")
    return metadata


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} {text!a} holds half of a surrogate pair, which is no character") from None


def plan(tensors: Mapping[str, Array], dtypes: Mapping[str, str]) -> dict[str, Entry]:
    """Where each tensor goes: the widest types first and by name within a type, so that every tensor is aligned."""
    found: dict[str, str] = {}
    for name, array in tensors.items():
        if not isinstance(name, str):
            raise InputTypeError(f"a tensor's name is {name!a}, of type {type(name).__name__}, expected a string")
        if name == METADATA:
            raise InputError(f"a tensor cannot be called {METADATA}, which is where the metadata goes")
        _check_unicode(name, "a tensor's name")
        if not isinstance(array, np.ndarray | np.generic):
            raise InputTypeError(f"tensor {name!a}: is of type {type(array).__name__}, expected a NumPy array")
        found[name] = _dtype(name, array, dtypes.get(name))
    unknown = [name for name in dtypes if name not in found]
    if unknown:
        raise InputError(f"dtypes names tensors that are not there: {', '.join(map(ascii, unknown))}")
    entries = {}
    place = 0
    for name in sorted(found, key=lambda name: (-RANKS[found[name]], name)):
        size = tensors[name].size * ITEM_SIZES[found[name]]
        entries[name] = Entry(found[name], tensors[name].shape, place, place + size)
        place += size
    return entries


def _dtype(name: str, array: Array, wanted: str | None) -> str:
    found = dtype_name(array.dtype)
    if wanted is None or wanted == found:
        if found is None:
            raise InputTypeError(f"tensor {name!a}: dtype {array.dtype} is not one of the format's")
        return found
    if wanted not in ITEM_SIZES:
        raise InputTypeError(f"tensor {name!a}: unknown dtype {wanted!a}, expected one of {', '.join(ITEM_SIZES)}")
    if array.dtype != RAW_BITS.get(wanted):
        raise InputTypeError(f"tensor {name!a}: dtype {array.dtype} cannot be written as {wanted}")
    return wanted


def write_content(file: BinaryIO, head: bytes, entries: Mapping[str, Entry], tensors: Mapping[str, Array]) -> None:
    """Write the header, then the tensors' values in row-major, little-endian order."""
    file.write(head)
    for name in entries:
        array = np.asarray(tensors[name])
        if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not np.little_endian):
            array = array.astype(array.dtype.newbyteorder("<"))
        file.write(bytes_of(np.ascontiguousarray(array)))
