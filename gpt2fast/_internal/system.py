"""What Windows does otherwise than Linux and macOS: reads at an offset, locks, modes, limits and peak memory.

Mypy checks the half of each system (`make lint`).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from mmap import mmap

__all__ = [
    "close_and_unlink",
    "lock",
    "open_files_limit",
    "peak_memory",
    "populated",
    "read_at",
    "read_into",
    "set_mode",
]

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from io import FileIO
    from threading import Lock

    # Windows has no pread: a read moves the position of the file, so one thread at a time may seek and read.
    _POSITION = Lock()

    def read_at(descriptor: int, count: int, offset: int) -> bytes:
        """At most `count` bytes of the file from `offset` on, fewer at its end."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, count)

    def read_into(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        """Fill the buffers in turn with the bytes from `offset` on; how many were read, 0 at the end of the file."""
        total = 0
        with _POSITION, FileIO(descriptor, closefd=False) as file:
            file.seek(offset)
            for buffer in buffers:
                count = file.readinto(buffer) or 0
                total += count
                if count < len(buffer):
                    break
        return total

    def populated(size: int) -> mmap | None:
        """None: Windows cannot provide the pages of new memory ahead of their use."""
        return None

    def set_mode(descriptor: int, mode: int) -> None:
        """Nothing: files on Windows have no permission bits but one."""

    def lock(descriptor: int) -> None:
        """Lock the file for this process; BlockingIOError where another one has it locked."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None

    def close_and_unlink(descriptor: int, path: str) -> None:
        """Close the locked file and remove it, unless another process has opened it."""
        os.close(descriptor)  # an open file cannot be removed
        with suppress(PermissionError, FileNotFoundError):
            os.unlink(path)

    def open_files_limit() -> int | None:
        """None: sockets have no such limit."""
        return None

    class _MemoryCounters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS of psapi.h
        _fields_ = (
            ("cb", ctypes.c_uint32),
            ("PageFaultCount", ctypes.c_uint32),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        )

    def peak_memory() -> int:
        """The most memory that this process has had at a time, in bytes."""
        counters = _MemoryCounters(cb=ctypes.sizeof(_MemoryCounters))
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        query = kernel32.K32GetProcessMemoryInfo
        query.argtypes = (ctypes.c_void_p, ctypes.POINTER(_MemoryCounters), ctypes.c_uint32)
        if not query(kernel32.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
            raise ctypes.WinError(ctypes.get_last_error())
        return int(counters.PeakWorkingSetSize)

else:
    import fcntl
    import mmap as _mmap
    import resource

    # Linux alone has the flag.
    _POPULATED = _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS | getattr(_mmap, "MAP_POPULATE", 0)

    def read_at(descriptor: int, count: int, offset: int) -> bytes:
        """At most `count` bytes of the file from `offset` on, fewer at its end."""
        return os.pread(descriptor, count, offset)

    def read_into(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        """Fill the buffers in turn with the bytes from `offset` on; how many were read, 0 at the end of the file."""
        return os.preadv(descriptor, buffers, offset)

    def populated(size: int) -> mmap | None:
        """New memory whose pages are there already, None where the system cannot provide them."""
        if hasattr(_mmap, "MAP_POPULATE"):
            with suppress(OSError, ValueError):
                return mmap(-1, size, flags=_POPULATED)
        return None

    def set_mode(descriptor: int, mode: int) -> None:
        """Give the open file these permission bits."""
        os.fchmod(descriptor, mode)

    def lock(descriptor: int) -> None:
        """Lock the file for this process; BlockingIOError where another one has it locked."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close_and_unlink(descriptor: int, path: str) -> None:
        """Remove the locked file and close it, in this order: nobody else can lock it in between."""
        try:
            os.unlink(path)
        finally:
            os.close(descriptor)

    def open_files_limit() -> int | None:
        """How many files and sockets this process may have open, None for any number."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if files == resource.RLIM_INFINITY else files

    def peak_memory() -> int:
        """The most memory that this process has had at a time, in bytes."""
        found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return found if sys.platform == "darwin" else found * 1024  # macOS counts bytes, Linux kilobytes
