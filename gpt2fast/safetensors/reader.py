"""Reading safetensors files: all tensors at once, copied or mapped, or single tensors and slices."""

from __future__ import annotations

import mmap as _mmap
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.safetensors.dtypes import numpy_dtype
from gpt2fast.safetensors.header import Entry, Header, read_header

__all__ = ["File", "SafeOpen", "TensorSlice", "load_file", "read_file", "read_metadata", "safe_open"]

Array = npt.NDArray[Any]
Path = str | os.PathLike[str]


class File(NamedTuple):
    """A file's content: arrays by name, the metadata, and the format's dtype names."""

    tensors: dict[str, Array]
    metadata: dict[str, str]
    dtypes: dict[str, str]


def load_file(path: Path, *, mmap: bool = False) -> dict[str, Array]:
    """The tensors of a safetensors file by name, in the order of their data."""
    return read_file(path, mmap=mmap).tensors


def read_file(path: Path, *, mmap: bool = False) -> File:
    """The tensors and the metadata of a safetensors file."""
    with _open(path) as (descriptor, name):
        header = read_header(descriptor, name)
        tensors = _map_all(descriptor, header, name) if mmap else _read_all(descriptor, header, name)
        for key, entry in header.entries.items():
            if entry.dtype == "BOOL":
                _check_bool(tensors[key], f"{name}: tensor {key!a}")
    return File(tensors, header.metadata, {key: entry.dtype for key, entry in header.entries.items()})


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, empty where it has none; the header is checked, the data not read."""
    with _open(path) as (descriptor, name):
        return read_header(descriptor, name).metadata


class _open:
    """A file opened for reading: its descriptor, and its name for messages."""

    def __init__(self, path: Path) -> None:
        self.name = os.fsdecode(path)
        try:
            self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            raise MissingFileError(f"{self.name}: there is no such file") from None
        if os.path.isdir(path):
            os.close(self.descriptor)
            raise InputError(f"{self.name}: is a directory, expected a safetensors file")

    def __enter__(self) -> tuple[int, str]:
        return self.descriptor, self.name

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def _read_into(descriptor: int, buffers: list[memoryview], offset: int, name: str) -> None:
    """Fill `buffers`, one after the other, from one place of the file."""
    while buffers:
        count = os.preadv(descriptor, buffers[:512], offset)
        if count == 0:
            raise InputError(f"{name}: the file became shorter while it was read")
        offset += count
        done = 0
        while done < len(buffers) and count >= len(buffers[done]):
            count -= len(buffers[done])
            done += 1
        del buffers[:done]
        if count:
            buffers[0] = buffers[0][count:]


def _bytes_of(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _read_all(descriptor: int, header: Header, name: str) -> dict[str, Array]:
    tensors = {key: np.empty(entry.shape, numpy_dtype(entry.dtype)) for key, entry in header.entries.items()}
    _read_into(descriptor, [_bytes_of(a) for a in tensors.values() if a.nbytes], header.data_start, name)
    return tensors


def _map_all(descriptor: int, header: Header, name: str) -> dict[str, Array]:
    try:
        mapped = _mmap.mmap(descriptor, header.data_start + header.data_size, access=_mmap.ACCESS_COPY)
    except (OSError, ValueError):
        return _read_all(descriptor, header, name)
    if os.fstat(descriptor).st_size != len(mapped):
        raise InputError(f"{name}: the file's size changed while it was opened")
    tensors = {}
    for key, entry in header.entries.items():
        array: Array = np.ndarray(
            entry.shape, numpy_dtype(entry.dtype), buffer=mapped, offset=header.data_start + entry.begin
        )
        tensors[key] = array if array.flags.aligned else array.copy()
    return tensors


def _check_bool(array: Array, where: str) -> None:
    if array.size and array.view(np.uint8).max() > 1:
        raise InputError(f"{where}: has a byte that is neither 0 nor 1, expected in BOOL")


class SafeOpen:
    """An open safetensors file of which single tensors and slices are read."""

    def __init__(self, path: Path, framework: str = "np") -> None:
        if framework not in ("np", "numpy"):
            raise InputError(f"framework is {framework!r}, expected 'np'")
        self._file: _open | None = _open(path)
        try:
            self._header = read_header(self._file.descriptor, self._file.name)
        except BaseException:
            self.close()
            raise

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Dtype, shape and place of every tensor, by name."""
        return dict(self._header.entries)

    def keys(self) -> list[str]:
        """The names of the tensors, in the order of their data."""
        return list(self._header.entries)

    def metadata(self) -> dict[str, str]:
        """The file's metadata, empty where it has none."""
        return dict(self._header.metadata)

    def get_tensor(self, name: str) -> Array:
        """A copy of one tensor."""
        return self.get_slice(name)[...]

    def get_slice(self, name: str) -> TensorSlice:
        """A tensor that is read where it is indexed."""
        if name not in self._header.entries:
            raise InputError(f"{self._path}: there is no tensor {name!a}")
        return TensorSlice(self, name, self._header.entries[name])

    @property
    def _path(self) -> str:
        return self._opened.name

    @property
    def _opened(self) -> _open:
        if self._file is None:
            raise InputError("the file has been closed")
        return self._file

    def _read(self, entry: Entry, first: int, rows: int) -> Array:
        shape = (rows, *entry.shape[1:]) if entry.shape else ()
        array: Array = np.empty(shape, numpy_dtype(entry.dtype))
        if array.nbytes:
            start = self._header.data_start + entry.begin
            start += first * (array.nbytes // rows) if entry.shape else 0
            _read_into(self._opened.descriptor, [_bytes_of(array)], start, self._path)
        return array

    def close(self) -> None:
        """Close the file; arrays that were read stay."""
        if self._file is not None:
            self._file.__exit__()
            self._file = None

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class TensorSlice:
    """One tensor of an open file."""

    def __init__(self, file: SafeOpen, name: str, entry: Entry) -> None:
        self._file, self._name, self._entry = file, name, entry

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The format's name of the tensor's dtype, as in "F32"."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> Array:
        rows = self._entry.shape[0] if self._entry.shape else 1
        array = self._file._read(self._entry, 0, rows)
        if self._entry.dtype == "BOOL":
            _check_bool(array, f"{self._file._path}: tensor {self._name!a}")
        return np.array(array[index])

    def __iter__(self) -> Iterator[Array]:
        if not self._entry.shape:
            raise InputTypeError(f"tensor {self._name!a} has no dimensions to iterate over")
        return (self[i] for i in range(self._entry.shape[0]))


def safe_open(path: Path, framework: str = "np") -> SafeOpen:
    """A safetensors file, opened and checked, of which single tensors and slices are read on request."""
    return SafeOpen(path, framework)
