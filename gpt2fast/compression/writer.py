"""Writing a compressed file, block by block, with no more than a batch of chunks in memory."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from gpt2fast._internal.arguments import open_file, whole_number
from gpt2fast._internal.atomic import atomic_write
from gpt2fast.compression import container
from gpt2fast.compression.codec import Codec, Model, Progress
from gpt2fast.compression.container import HEADER, Index, Kind, block_bytes
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CHUNK", "CompressedWriter"]

#: Bytes of a chunk where nothing else is said.
CHUNK = 8192
_LEAST_CHUNK = 256
# Chunks that are coded together.
_GROUP = 32
# What DEFLATE makes so much shorter, no model is asked about: it would take hours over a gigabyte of zeros.
_REPETITIVE = 40
# A block of text costs these bytes beside its code.
_COST = 16
# The block of the model costs these, which the first group with text has to save.
_MODEL_COST = 96
_SPACES = b" \n\t\r"


class CompressedWriter(io.RawIOBase):
    """A file to write bytes to, whose compressed form goes to `file`, a path or a binary file that need not seek.

    `close` writes the end.  A file at a path appears whole or not at all; a binary file stays open, and after an error
    nothing more is written to it, so that it has no end and every reader refuses it.

    `chunk` is how many bytes are coded by themselves (256 to 1,048,576).  Larger chunks take fewer bytes; smaller ones
    are decoded with more of them side by side, and give a part of the file sooner.  `progress` is called with the bytes
    that are compressed so far and the tokens that this took.

    Raises InputTypeError and InputError as `Codec` does, and InputError for a chunk of another size.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        lm: Model,
        *,
        chunk: int = CHUNK,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self._chunk = whole_number("chunk", chunk, least=_LEAST_CHUNK)
        if self._chunk > container.MOST:
            raise InputError(f"chunk is {self._chunk}; expected {container.MOST} or less")
        self._codec = Codec(lm)
        self._progress = progress
        self._pending = bytearray()  # not yet coded
        self._plain = bytearray()  # what no model shortens, until a block is full
        self._index = Index()
        self._digest = hashlib.sha256()
        self._recorded = False
        #: Bytes of the original and of the compressed file so far.
        self.bytes_in = self.bytes_out = 0
        if isinstance(file, str | bytes | os.PathLike):
            self._whole = atomic_write(file)
            self._file = self._whole.__enter__()
        else:
            self._file = open_file("file", file, "write")
        self._write(HEADER)
        self._broken = False

    #: Whether there is nothing to end: not yet, or after an error.
    _broken = True
    #: What puts the file of a path in its place.
    _whole: AbstractContextManager[BinaryIO] | None = None

    @property
    def tokens(self) -> int:
        """How many tokens the model has coded so far."""
        return self._codec.tokens

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Take bytes, some of which are compressed and written now, and the rest later; how many there were."""
        self._check()
        try:
            view = memoryview(data).cast("B")
        except (TypeError, ValueError, BufferError):  # ValueError: of arrays of objects and the like
            raise InputTypeError(f"data is of type {type(data).__name__}; expected bytes") from None
        # In parts, so that a large object is not in memory twice.
        group = _GROUP * self._chunk
        for start in range(0, len(view), group):
            self._pending += view[start : start + group]
            self._work(last=False)
        return len(view)

    def close(self) -> None:
        """Compress what is left and write the end of the file."""
        if self.closed:
            return
        try:
            if not self._broken:
                self._work(last=True)
                self._flush_plain()
                end = block_bytes("end", container.end_body(self._digest.digest(), self._index))
                self._write(end + len(end).to_bytes(container.TRAILER, "little"))
                self._file.flush()
                if self._whole is not None:
                    self._whole.__exit__(None, None, None)
                    self._whole = None
        finally:
            self._broken = True
            if self._whole is not None:
                error = InputError("the compressed file was not finished")
                with suppress(InputError):
                    self._whole.__exit__(InputError, error, None)
            super().close()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:  # a file that has no end is not taken for a whole one
            self._broken = True
        self.close()

    def _check(self) -> None:
        if self.closed:
            raise InputError("the compressed file is closed")
        if self._broken:
            raise InputError("the compressed file cannot be gone on with, after an error")

    def _work(self, *, last: bool) -> None:
        """Code what is there of whole groups of chunks, and with `last` all of it."""
        try:
            while len(self._pending) >= (1 if last else _GROUP * self._chunk):
                chunks: list[bytes] = []
                place = 0
                while place < len(self._pending) and len(chunks) < _GROUP:
                    end = _cut(self._pending, place, self._chunk)
                    chunks.append(bytes(self._pending[place:end]))
                    place = end
                del self._pending[:place]
                self._code(chunks)
        except BaseException:
            self._broken = True
            raise

    def _code(self, chunks: list[bytes]) -> None:
        packed = [len(zlib.compress(chunk, 6)) for chunk in chunks]
        repetitive = [size * _REPETITIVE <= len(chunk) for chunk, size in zip(chunks, packed, strict=True)]
        told = self._codec.tokens
        asked = iter(
            self._codec.encode(
                [chunk for chunk, plain in zip(chunks, repetitive, strict=True) if not plain],
                lambda done, tokens: self._tell(self.bytes_in + done, told + tokens),
            )
        )
        codes = [None if plain else next(asked) for plain in repetitive]
        saved = [
            0 if code is None else max(min(size, len(chunk)) - len(code) - _COST, 0)
            for chunk, size, code in zip(chunks, packed, codes, strict=True)
        ]
        # DEFLATE sees further back in all chunks together than in each.
        if sum(map(min, packed, map(len, chunks))) - sum(saved) >= len(container.deflated(b"".join(chunks))[1]):
            saved = [0] * len(chunks)
        if not self._recorded and sum(saved) > _MODEL_COST:
            self._flush_plain()
            self._block("model", self._codec.record.to_bytes(), 0)
            self._recorded = True
        for chunk, code, bytes_saved in zip(chunks, codes, saved, strict=True):
            if code is not None and bytes_saved and self._recorded:
                self._flush_plain()
                self._block("text", container.text_body(len(chunk), code), len(chunk))
            else:
                self._keep(chunk)
            self._digest.update(chunk)
            self.bytes_in += len(chunk)
        self._tell(self.bytes_in, self._codec.tokens)

    def _tell(self, done: int, tokens: int) -> None:
        if self._progress is not None:
            self._progress(done, tokens)

    def _keep(self, chunk: bytes) -> None:
        """A chunk that no model shortens, which goes into one block with its neighbours of that kind."""
        if len(self._plain) + len(chunk) > container.MOST:
            self._flush_plain()
        self._plain += chunk

    def _flush_plain(self) -> None:
        if self._plain:
            kind, body = container.deflated(bytes(self._plain))
            self._block(kind, body, len(self._plain))
            self._plain.clear()

    def _block(self, kind: Kind, body: bytes, size: int) -> None:
        block = block_bytes(kind, body)
        self._write(block)
        self._index.add(len(block), size)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = self._file.write(left)
            left = left[len(left) if count is None else count :]
        self.bytes_out += len(data)


def _cut(data: bytearray, start: int, size: int) -> int:
    """Where the chunk that begins at `start` ends: after at most `size` bytes, if possible before white space.

    There a token ends in most texts, and with it a character of UTF-8.  What follows the `size` bytes does not matter,
    so files do not depend on how their bytes came.
    """
    end = start + size
    if end > len(data):
        return len(data)
    places = range(end - 1, end - size // 8, -1)
    return next((place for place in places if data[place] in _SPACES and data[place - 1] not in _SPACES), end)
