"""The bytes of an input, decompressed, front to back; and how far reading has come in the file itself."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import secrets
import select
import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from gpt2fast.corpus.dependencies import zstandard
from gpt2fast.corpus.inputs import STDIN, Input
from gpt2fast.errors import InputError

__all__ = ["ByteStream", "open_raw"]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


class ByteStream:
    """The decompressed bytes of an input, or those before its `end`.

    A compressed stream that ends early or goes wrong raises InputError, which names the file; what a compressed file
    grows to is never held as a whole.
    """

    def __init__(self, source: Input, end: int | None = None) -> None:
        self._source = source
        self._left = 2**62 if end is None else end
        decompress = _DECOMPRESSORS[source.compression]
        self._raw = _Counted(open_raw(source))
        self._bytes: _Readable = decompress(self._raw)
        self._held = b""

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end, which will be read once more."""
        self._held = self.read(size)
        self._left += len(self._held)
        return self._held

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        size = min(size, self._left)
        part, self._held = self._held[:size], self._held[size:]
        parts = [part] * bool(part)
        size -= len(part)
        self._left -= len(part)
        while size > 0:
            try:
                part = self._bytes.read(size) or b""
            except (EOFError, zlib.error, lzma.LZMAError, OSError, _damaged()) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise InputError(f"{self._source.name}: damaged {self._source.compression}: {error}") from None
            if not part:
                break
            parts.append(part)
            size -= len(part)
            self._left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> None:
        """Go on after the next `size` bytes.  Raises InputError where there are fewer."""
        if not self._source.compression and self._source.is_file:
            size -= len(self.read(min(size, len(self._held))))
            self._raw.seek(size, os.SEEK_CUR)
            self._left -= size
            return
        while size > 0:
            part = self.read(min(size, 1 << 22))
            if not part:
                raise InputError(f"{self._source.name}: {size:,} bytes shorter than when it was read before")
            size -= len(part)

    @property
    def raw_position(self) -> int:
        """How many bytes of the file itself, compressed or not, were read."""
        return self._raw.position

    def raw(self) -> io.RawIOBase:
        """The same as a file to read from."""
        return _Raw(self)

    def close(self) -> None:
        self._raw.close()


class _Raw(io.RawIOBase):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        part = self._stream.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


def open_raw(source: Input) -> io.RawIOBase:
    """The file as it is on disk, or standard input, unbuffered."""
    if source.path == STDIN:
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return _Waiting(os.dup(sys.stdin.fileno()))
    return io.FileIO(source.path)


class _Waiting(io.FileIO):
    """Standard input, which whoever started this process may have set not to block: to have nothing yet is no end."""

    def readinto(self, buffer: Any, /) -> int | None:
        while (count := super().readinto(buffer)) is None:
            select.select([self], [], [])
        return count


class _Counted(io.RawIOBase):
    """A file that counts what was read of it."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self.position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        count = self._file.readinto(buffer)
        self.position += count or 0
        return count

    def seek(self, position: int, whence: int = os.SEEK_SET, /) -> int:
        self.position = self._file.seek(position, whence)
        return self.position

    def close(self) -> None:
        self._file.close()
        super().close()


def _gzip(raw: _Counted) -> _Readable:
    return gzip.GzipFile(fileobj=io.BufferedReader(raw, 1 << 20))


def _zstd(raw: _Counted) -> _Readable:
    return _Zstd(zstandard("reading .zst"), raw)


def _xz(raw: _Counted) -> _Readable:
    return lzma.LZMAFile(io.BufferedReader(raw, 1 << 20))


def _bz2(raw: _Counted) -> _Readable:
    return bz2.BZ2File(io.BufferedReader(raw, 1 << 20))


_DECOMPRESSORS: dict[str, Callable[[_Counted], _Readable]] = {
    "": lambda raw: raw,
    "gz": _gzip,
    "zst": _zstd,
    "xz": _xz,
    "bz2": _bz2,
}


class _Zstd:
    """The bytes of Zstandard frames.

    zstandard's reader takes a frame that is cut off for a whole one.  So a frame of our own is put after the file's
    last one: only if that comes out at the end was everything before it whole.
    """

    def __init__(self, library: Any, raw: _Counted) -> None:
        self._mark = secrets.token_bytes(16)
        end = library.ZstdCompressor().compress(self._mark)
        joined = _Joined(raw, end)
        # Any window that there is: zstd --long=31 makes one of 2 GiB.
        decompressor = library.ZstdDecompressor(max_window_size=1 << 31)
        self._reader = decompressor.stream_reader(joined, read_size=1 << 20, read_across_frames=True)
        self._held = b""

    def read(self, size: int, /) -> bytes:
        part = self._reader.read(size)
        while part and len(self._held) + len(part) <= len(self._mark):
            self._held += part
            part = self._reader.read(size)
        if not part:
            if self._held != self._mark:
                raise EOFError("the file ends within a frame")
            return b""
        found: bytes = self._held + part
        self._held = found[-len(self._mark) :]
        return found[: -len(self._mark)]


class _Joined:
    """A file, and after it some bytes."""

    def __init__(self, raw: _Counted, end: bytes) -> None:
        self._raw = raw
        self._end = end

    def read(self, size: int = -1, /) -> bytes:
        part = self._raw.read(size)
        if not part:
            part, self._end = self._end, b""
        return part or b""


def _damaged() -> type[Exception]:
    """zstandard's error where it is loaded; else one that nothing raises."""
    module: Any = sys.modules.get("zstandard")
    return EOFError if module is None else module.ZstdError
