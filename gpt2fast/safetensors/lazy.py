"""Single tensors and slices of a safetensors file, read without the rest."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from math import prod
from types import EllipsisType, MappingProxyType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import path_name
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.safetensors.dtypes import numpy_dtype, refuse_packed
from gpt2fast.safetensors.files import bytes_of, open_file, read_into
from gpt2fast.safetensors.header import Entry, read_header, show
from gpt2fast.safetensors.reader import check_values

__all__ = ["SafeOpen", "TensorSlice", "safe_open"]

Array = npt.NDArray[Any]
Index = tuple[int | slice, ...]

# Rows that are not wanted as a whole are read in blocks of this many bytes, and what is wanted taken out of them.
_BLOCK = 4 << 20


class SafeOpen:
    """An open safetensors file, checked, of which single tensors and slices are read on request.

    Several threads may read from one such file.
    """

    def __init__(self, path: str | os.PathLike[str], framework: str = "np") -> None:
        if not isinstance(framework, str) or framework not in ("np", "numpy"):
            raise InputError(f"framework is {framework!r}, expected 'np': gpt2fast reads tensors as NumPy arrays")
        self._name = path_name(path)
        self._file = open_file(path)
        try:
            self._header = read_header(self._file, self._name)
        except BaseException:
            self._file.close()
            raise

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Dtype, shape and place in the data of every tensor, by name."""
        return MappingProxyType(self._header.entries)

    @property
    def data_start(self) -> int:
        """Where in the file the data starts, in bytes."""
        return self._header.data_start

    def keys(self) -> list[str]:
        """The names of the tensors, in the order of their data."""
        return self._header.names()

    def metadata(self) -> dict[str, str]:
        """The file's metadata, empty where it has none."""
        return self._header.metadata

    def get_tensor(self, name: str) -> Array:
        """The values of one tensor.

        Raises InputError where there is none of that name, InputTypeError where its elements are no whole bytes.
        """
        return self.get_slice(name)[...]

    def get_slice(self, name: str) -> TensorSlice:
        """One tensor, of which that part is read that it is indexed with.

        Raises InputError where there is none of that name.
        """
        entry = self._header.get(name)
        if entry is None:
            raise InputError(f"{self._name}: there is no tensor {show(name) if isinstance(name, str) else repr(name)}")
        return TensorSlice(self._file, entry, self._header.data_start + entry.begin, self._name, name)

    def close(self) -> None:
        """Close the file.  Arrays that were read stay as they are."""
        self._file.close()

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def safe_open(path: str | os.PathLike[str], framework: str = "np") -> SafeOpen:
    """The safetensors file at `path`, opened and checked, of which tensors and slices are read on request.

    `framework` is there for programs written for the reference package, and can only be "np".

    Tensors whose elements are no whole bytes (F4, F6_E2M3, F6_E3M2) are listed, but cannot be read as arrays;
    `deserialize` gives their bytes.

    Raises MissingFileError where there is no such file, InputError where it is not a correct safetensors file, and
    InputTypeError where a dtype is unknown.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> path = os.path.join(directory.name, "model.safetensors")
    >>> from gpt2fast.safetensors import save_file
    >>> save_file({"w": np.arange(12.0).reshape(4, 3)}, path, {"made": "here"})
    >>> with safe_open(path) as file:
    ...     print(file.keys(), file.metadata(), file.get_slice("w").get_shape(), file.get_slice("w").get_dtype())
    ...     print(file.get_slice("w")[1:3, 0])
    ['w'] {'made': 'here'} [4, 3] F64
    [3. 6.]
    >>> directory.cleanup()
    """
    return SafeOpen(path, framework)


class TensorSlice:
    """One tensor of an open file: `slice[a:b]` reads rows a to b, and no others, into a new array.

    Integers, slices of any step and `...` can be combined as with a NumPy array.  Of dimensions after the first what is
    not asked for is skipped where it is large.
    """

    def __init__(self, file: FileIO, entry: Entry, start: int, path: str, name: str) -> None:
        self._file, self._entry, self._start = file, entry, start
        self._path, self._where = path, f"{path}: tensor {show(name)}"

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The format's name of the tensor's dtype, such as "F32"."""
        return self._entry.dtype

    def __getitem__(self, index: int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]) -> Array:
        """The values at `index`, as a new array.

        Raises InputError where an integer is out of range, there are too many indices or the file has been closed, and
        InputTypeError where an index is neither an integer, a slice nor `...`, or elements are no whole bytes.
        """
        if self._file.closed:
            raise InputError(f"{self._where}: the file has been closed")
        full = self._complete(index if isinstance(index, tuple) else (index,))
        refuse_packed(self._entry.dtype, self._where)
        dtype = numpy_dtype(self._entry.dtype)
        # NumPy says what comes out, of an array of this shape that takes no memory.
        shape = np.broadcast_to(np.empty((), dtype), self._entry.shape)[full].shape
        result: Array = np.empty(shape, dtype)
        if result.size:
            self._read(result, self._start, self._entry.shape, full)
        check_values(result, self._entry.dtype, self._where)
        return result

    def __iter__(self) -> Iterator[Array]:
        if not self._entry.shape:
            raise InputTypeError(f"{self._where}: has no dimensions to iterate over")
        return (self[row] for row in range(self._entry.shape[0]))

    def __len__(self) -> int:
        if not self._entry.shape:
            raise InputTypeError(f"{self._where}: has no dimensions, and so no length")
        return self._entry.shape[0]

    def _complete(self, index: tuple[Any, ...]) -> Index:
        """`index` with one integer of at least 0, or one slice, per dimension."""
        shape = self._entry.shape
        ellipses = sum(part is Ellipsis for part in index)
        if ellipses > 1 or len(index) - ellipses > len(shape):
            raise InputError(f"{self._where}: index {_show_index(index)} has too many parts for shape {list(shape)}")
        if ellipses == 0:
            index = (*index, ...)
        place = next(i for i, part in enumerate(index) if part is Ellipsis)
        missing = len(shape) - (len(index) - 1)
        parts = (*index[:place], *[slice(None)] * missing, *index[place + 1 :])
        return tuple(self._check(part, size) for part, size in zip(parts, shape, strict=True))

    def _check(self, part: Any, size: int) -> int | slice:
        if isinstance(part, slice):
            try:
                part.indices(size)
            except (TypeError, ValueError) as error:
                raise InputTypeError(f"{self._where}: {part} is not an index: {error}") from None
            return part
        try:
            if isinstance(part, bool | np.bool_):
                raise TypeError
            value = operator.index(part)
        except TypeError:
            raise InputTypeError(
                f"{self._where}: an index is of type {type(part).__name__}, expected integers, slices and ..."
            ) from None
        if not -size <= value < size:
            raise InputError(f"{self._where}: index {value} is out of range for a dimension of {size}")
        return value % size

    def _read(self, out: Array, start: int, shape: tuple[int, ...], index: Index) -> None:
        """Fill `out` with the values at `index` of a tensor of this shape whose bytes begin at `start`."""
        if not index:
            read_into(self._file, [bytes_of(out)], start, self._path)
            return
        head, rest = index[0], index[1:]
        row = prod(shape[1:]) * out.itemsize
        if not isinstance(head, slice):
            self._read(out, start + head * row, shape[1:], rest)
            return
        rows = range(shape[0])[head]
        if rows.step == 1 and _is_whole(rest, shape[1:]):
            read_into(self._file, [bytes_of(out)], start + rows[0] * row, self._path)
            return
        per_block = _BLOCK // (abs(rows.step) * row)
        if per_block < 2:
            for i, number in enumerate(rows):
                self._read(out[i, ...], start + number * row, shape[1:], rest)
            return
        for i in range(0, len(rows), per_block):
            part = rows[i : i + per_block]
            first, last = min(part), max(part)
            block: Array = np.empty((last - first + 1, *shape[1:]), out.dtype)
            read_into(self._file, [bytes_of(block)], start + first * row, self._path)
            # A negative step starts from the last row of the block, as it should.
            inner: tuple[int | slice, ...] = (slice(None, None, rows.step), *rest)
            out[i : i + per_block] = block[inner]


def _is_whole(index: Index, shape: tuple[int, ...]) -> bool:
    return all(
        isinstance(part, slice) and part.indices(size) == (0, size, 1) for part, size in zip(index, shape, strict=True)
    )


def _show_index(index: tuple[Any, ...]) -> str:
    return "[" + ", ".join("..." if part is Ellipsis else str(part)[:40] for part in index) + "]"
