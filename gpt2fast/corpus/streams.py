"""The bytes of an input, decompressed, front to back; and how far reading has come in the file itself."""

from __future__ import annotations

import gzip
import io
import os
import secrets
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

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        parts = []
        size = min(size, self._left)
        while size > 0:
            try:
                part = self._bytes.read(size)
            except (EOFError, zlib.error, gzip.BadGzipFile, _damaged()) as error:
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

    def close(self) -> None:
        self._raw.close()


def open_raw(source: Input) -> io.RawIOBase:
    """The file as it is on disk, or standard input, unbuffered."""
    if source.path == STDIN:
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return io.FileIO(os.dup(sys.stdin.fileno()))
    return io.FileIO(source.path)


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


_DECOMPRESSORS: dict[str, Callable[[_Counted], _Readable]] = {"": lambda raw: raw, "gz": _gzip, "zst": _zstd}


class _Zstd:
    """The bytes of Zstandard frames.

    zstandard's reader takes a frame that is cut off for a whole one.  So a frame of our own is put after the file's
    last one: only if that comes out at the end was everything before it whole.
    """

    def __init__(self, library: Any, raw: _Counted) -> None:
        self._mark = secrets.token_bytes(16)
        end = library.ZstdCompressor().compress(self._mark)
        joined = _Joined(raw, end)
        self._reader = library.ZstdDecompressor().stream_reader(joined, read_size=1 << 20, read_across_frames=True)
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
