"""Writing safetensors files: every tensor aligned, the same bytes for the same input, whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import path_name
from gpt2fast._internal.atomic import atomic_write
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
    """Write arrays, by name, to a safetensors file that appears at `path` whole or not at all.

    Arrays of any order, stride and byte order are written by value.  The widest types come first and names are sorted
    within a type, so every tensor is aligned, and the same tensors and metadata make the same bytes: those that the
    reference package writes.  `dtypes` gives the format's name for a tensor whose array has only its bits: "BF16" for
    one of uint16, an eight-bit float for one of uint8; what `read_file` returns as `dtypes` can be passed as it is.

    The file is written beside `path`, synchronised and renamed, so that a failure at any point leaves what was there.
    Writing over a file from which the arrays are mapped is safe.  See `_internal/atomic.py` for modes, links.

    Raises InputError for a name or metadata that is not Unicode text, or the name "__metadata__", InputTypeError for a
    dtype that the format does not have, MissingFileError where the directory does not exist, and OSError where the
    system refuses.

    >>> import tempfile
    >>> from gpt2fast.safetensors import read_file
    >>> directory = tempfile.TemporaryDirectory()
    >>> path = os.path.join(directory.name, "model.safetensors")
    >>> save_file({"w": np.arange(6.0).reshape(2, 3).T}, path, {"format": "np"})
    >>> read_file(path).tensors["w"].tolist(), read_file(path).metadata
    ([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], {'format': 'np'})
    >>> directory.cleanup()
    """
    path_name(path)
    entries = plan(tensors, {} if dtypes is None else dtypes)
    head = build_header(entries, check_metadata(metadata))
    with atomic_write(path) as file:
        write_content(file, head, entries, tensors)


def check_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`metadata` itself, which holds nothing but Unicode strings."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata is of type {type(metadata).__name__}, expected a dict of strings")
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
    check_names(tensors)
    if not isinstance(dtypes, Mapping):
        raise InputTypeError(f"dtypes is of type {type(dtypes).__name__}, expected a mapping by name")
    found: dict[str, Entry] = {}
    for name, array in tensors.items():
        # A masked array would be written without its mask.
        if not isinstance(array, np.ndarray | np.generic) or isinstance(array, np.ma.MaskedArray):
            raise InputTypeError(f"tensor {name!a}: is of type {type(array).__name__}, expected a NumPy array")
        dtype = _dtype(name, array, dtypes.get(name))
        found[name] = Entry(dtype, array.shape, 0, array.size * ITEM_SIZES[dtype])
    unknown = [name for name in dtypes if name not in found]
    if unknown:
        raise InputError(f"dtypes names tensors that are not there: {', '.join(map(ascii, unknown))}")
    return one_after_the_other(found)


def check_names(tensors: Mapping[str, object]) -> None:
    """Refuse what is no mapping by name, and names that a file cannot have."""
    if not isinstance(tensors, Mapping):
        raise InputTypeError(f"tensors is of type {type(tensors).__name__}, expected a dict of tensors by name")
    for name in tensors:
        if not isinstance(name, str):
            raise InputTypeError(f"a tensor's name is {name!a}, of type {type(name).__name__}, expected a string")
        if name == METADATA:
            raise InputError(f"a tensor cannot be called {METADATA}, which is where the metadata goes")
        _check_unicode(name, "a tensor's name")


def one_after_the_other(found: Mapping[str, Entry]) -> dict[str, Entry]:
    """The tensors, of which each begins at 0, in the order and at the places in which they are written."""
    entries = {}
    place = 0
    for name in sorted(found, key=lambda name: (-RANKS[found[name].dtype], name)):
        entries[name] = found[name]._replace(begin=place, end=place + found[name].end)
        place += found[name].end
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
        if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
            array = array.astype(array.dtype.newbyteorder("<"))
        file.write(bytes_of(np.ascontiguousarray(array)))
