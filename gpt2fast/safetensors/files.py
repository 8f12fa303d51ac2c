"""Opening checkpoint files, and getting their bytes into arrays: in parallel, without a copy, or by mapping.

Performance notes (30 November 2026, 2 cores, Linux, a file of 498 MB in the page cache, 148 float32 tensors):
- one `preadv` after the other into an array per tensor: 126 ms; from two threads, which is what is done: 80 ms;
- one array for all tensors: 88 ms with one thread, because more of it lies in huge pages, but then the smallest tensor
  that is kept keeps all of them;
- the reference package 0.8.0: 266 ms mapped and copied, 309 ms through `pread`;
- all of that in one process that loads again and again, where NumPy's huge pages shine.  In new processes on a virtual
  machine, taking turns with the reference (405 to 494 ms, 0.3 s of processor), they took 893 to 1417 ms (0.6 to 0.9 s);
  small pages, one fault each, 378 to 537 ms (0.3 s), and small pages that are there at once (MAP_POPULATE) 326 to 417
  ms (0.25 s), with one thread.  Hence these, in `empty`.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal import system
from gpt2fast._internal.arguments import path_name
from gpt2fast._internal.threads import default_num_threads
from gpt2fast.errors import InputError, MissingFileError

__all__ = ["bytes_of", "empty", "map_file", "open_file", "read_at", "read_into"]

# Reading is bound by memory, and few threads fill that.
_MOST_THREADS = 8
_SHARE = 32 << 20  # bytes that make it worth to start one more thread
_POPULATE = 1 << 20  # bytes from which an array has pages of its own
_MOST_BUFFERS = 512  # of one preadv; the limit is 1024 on Linux and macOS
_MOST_BYTES = 1 << 30  # of one preadv; Linux stops at 2 GB, macOS refuses more

# From Python 3.13 on a mapping need not keep a descriptor of its own open.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def open_file(path: str | os.PathLike[str], what: str = "a safetensors file") -> FileIO:
    """The file, opened for reading; `what` it is says a message.

    Raises MissingFileError where there is none, InputError where it is a directory, a pipe or a device.
    """
    name = path_name(path)
    try:
        # Asked before it is opened: opening a pipe would wait for its writer.
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"{name}: is {kind}, expected {what}")
        return FileIO(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"{name}: there is no such file") from None


def read_at(file: FileIO, count: int, offset: int) -> bytes:
    """`count` bytes from one place of the file, fewer where it ends before."""
    content = system.read_at(file.fileno(), min(count, _MOST_BYTES), offset)
    while len(content) < count:
        more = system.read_at(file.fileno(), min(count - len(content), _MOST_BYTES), offset + len(content))
        if not more:
            break
        content += more
    return content


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array to read into; a large one is of pages that the system provides all at once, not one fault at a time."""
    size = math.prod(shape) * dtype.itemsize
    pages = system.populated(size) if size >= _POPULATE else None
    array: npt.NDArray[Any] = np.empty(shape, dtype) if pages is None else np.ndarray(shape, dtype, buffer=pages)
    return array


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array, to read into or write from."""
    return array.reshape(-1).view(np.uint8).data


def read_into(file: FileIO, buffers: list[memoryview], offset: int, name: str) -> None:
    """Fill the buffers, one after the other, with the bytes of the file from `offset` on.

    Raises InputError that names the file where it ends before.
    """
    total = sum(map(len, buffers))
    threads = min(_MOST_THREADS, total // _SHARE)
    if threads > 1:
        threads = min(threads, default_num_threads())
    if threads <= 1:
        _read_part(file.fileno(), buffers, offset, name)
        return
    with ThreadPoolExecutor(threads) as pool:
        jobs = []
        for part in _split(buffers, -(-total // threads)):
            jobs.append(pool.submit(_read_part, file.fileno(), part, offset, name))
            offset += sum(map(len, part))
        for job in jobs:
            job.result()


def _split(buffers: list[memoryview], size: int) -> list[list[memoryview]]:
    """The buffers in parts of `size` bytes, the last of fewer."""
    parts: list[list[memoryview]] = [[]]
    room = size
    for buffer in buffers:
        while len(buffer) > room:
            parts[-1].append(buffer[:room])
            parts.append([])
            buffer, room = buffer[room:], size
        parts[-1].append(buffer)
        room -= len(buffer)
    return parts


def _read_part(descriptor: int, buffers: list[memoryview], offset: int, name: str) -> None:
    first = 0
    buffers = list(buffers)
    while first < len(buffers):
        batch = []
        room = _MOST_BYTES
        for buffer in buffers[first : first + _MOST_BUFFERS]:
            batch.append(buffer[:room])
            room -= len(batch[-1])
            if room == 0:
                break
        count = system.read_into(descriptor, batch, offset)
        if count == 0 and room < _MOST_BYTES:
            raise InputError(f"{name}: the file became shorter while it was read")
        offset += count
        while first < len(buffers) and count >= len(buffers[first]):
            count -= len(buffers[first])
            first += 1
        if count:
            buffers[first] = buffers[first][count:]


def map_file(file: FileIO, size: int, name: str) -> mmap.mmap | None:
    """The file's `size` bytes, mapped copy-on-write; None where the system cannot map it.

    Raises InputError where the file is not of that size any more.
    """
    try:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, **_MAP_OPTIONS)
    except (OSError, ValueError):
        mapped = None
    # A page past the end would be a bus error later on.
    found = os.fstat(file.fileno()).st_size
    if found != size:
        raise InputError(f"{name}: the file's size changed from {size} to {found} bytes while it was opened")
    return mapped
