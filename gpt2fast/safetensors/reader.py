"""All tensors of a safetensors file at once: copied into arrays, or mapped."""

from __future__ import annotations

import os
from io import FileIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, path_name
from gpt2fast.errors import InputError
from gpt2fast.safetensors.dtypes import numpy_dtype, refuse_packed
from gpt2fast.safetensors.files import bytes_of, empty, map_file, open_file, read_into
from gpt2fast.safetensors.header import Entry, Header, read_header, show

__all__ = ["File", "check_values", "load_file", "read_file", "read_metadata"]

Array = npt.NDArray[Any]


class File(NamedTuple):
    """What a safetensors file holds."""

    #: The arrays by name, in the order of the data.
    tensors: dict[str, Array]
    #: The metadata, empty where the file has none.
    metadata: dict[str, str]
    #: The format's name of each tensor's dtype, as `save_file` takes them.
    dtypes: dict[str, str]


def load_file(path: str | os.PathLike[str], *, mmap: bool = False) -> dict[str, Array]:
    """The tensors of a safetensors file by name, in the order of their data.

    The file is checked in full before any of its data is used: the header, every tensor's dtype and shape, and that the
    tensors cover the data without a gap, an overlap or a byte left over.

    By default the data is read into an array per tensor, from several threads where it is large.  With `mmap=True` the
    file is mapped and read when it is used.  The pages are private: writing to an array never changes the file, and the
    arrays stay valid after the dict is gone and after the file was replaced or deleted.  Two things to know:

    * Only aligned tensors can be used in place, others are copied.  The published GPT-2 files are such: their headers
      have a length that is no multiple of four (14,283 bytes), so mapping them saves nothing.  Those that `save_file`
      writes are aligned.
    * A program that shortens the mapped file in place, instead of replacing it, takes the data away under the arrays:
      the system ends a process that touches them then.  Without `mmap` this cannot happen.

    Where a file cannot be mapped it is read.  BF16 and the eight-bit floats come as the types of ml_dtypes where that
    is installed, else as unsigned integers of their bits; `as_float32` takes BF16 in either form.

    Raises MissingFileError where there is no such file, InputError where it is not a correct safetensors file, and
    InputTypeError where a dtype is unknown or has elements that are no whole bytes; `safe_open` reads the other tensors
    of such a file.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> path = os.path.join(directory.name, "model.safetensors")
    >>> from gpt2fast.safetensors import save_file
    >>> save_file({"w": np.float32([1.0, 2.0])}, path)
    >>> load_file(path, mmap=True)
    {'w': array([1., 2.], dtype=float32)}
    >>> directory.cleanup()
    """
    return read_file(path, mmap=mmap).tensors


def read_file(path: str | os.PathLike[str], *, mmap: bool = False) -> File:
    """The tensors, the metadata and the dtype names of a safetensors file; see `load_file`."""
    name = path_name(path)
    with open_file(path) as file:
        header = read_header(file, name)
        for key, entry in header.entries.items():
            refuse_packed(entry.dtype, f"{name}: tensor {show(key)}")
        tensors = _map_all(file, header, name) if flag("mmap", mmap) else _read_all(file, header, name)
    for key, entry in header.entries.items():
        check_values(tensors[key], entry.dtype, f"{name}: tensor {show(key)}")
    return File(tensors, header.metadata, {key: entry.dtype for key, entry in header.entries.items()})


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a safetensors file, empty where it has none; the header is checked, the data not read.

    Raises the errors of `load_file`.
    """
    with open_file(path) as file:
        return read_header(file, path_name(path)).metadata


def check_values(array: Array, dtype: str, where: str) -> None:
    """Refuse truth values that are neither 0 nor 1, which NumPy and what is built on it take for many things."""
    if dtype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise InputError(f"{where}: has a byte of {array.view(np.uint8).max()}, expected 0 or 1 in BOOL")


def _read_all(file: FileIO, header: Header, name: str) -> dict[str, Array]:
    tensors: dict[str, Array] = {
        key: empty(entry.shape, numpy_dtype(entry.dtype)) for key, entry in header.entries.items()
    }
    read_into(file, [bytes_of(array) for array in tensors.values() if array.nbytes], header.data_start, name)
    return tensors


def _map_all(file: FileIO, header: Header, name: str) -> dict[str, Array]:
    mapped = map_file(file, header.data_start + header.data_size, name)
    if mapped is None:
        return _read_all(file, header, name)

    def place(entry: Entry) -> Array:
        array: Array = np.ndarray(
            entry.shape, numpy_dtype(entry.dtype), buffer=mapped, offset=header.data_start + entry.begin
        )
        return array

    tensors = {key: place(entry) for key, entry in header.entries.items()}
    if not any(array.flags.aligned for array in tensors.values()):
        return _read_all(file, header, name)
    for key, array in tensors.items():
        if not array.flags.aligned:
            tensors[key] = np.empty(array.shape, array.dtype)
            read_into(file, [bytes_of(tensors[key])], header.data_start + header.entries[key].begin, name)
    return tensors
