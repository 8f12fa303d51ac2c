"""Reading a compressed file: from its beginning to its end, or from anywhere in it."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from gpt2fast._internal.arguments import open_file, whole_number
from gpt2fast.compression import container
from gpt2fast.compression.codec import Codec, Model, Progress
from gpt2fast.compression.container import Block, Index, ModelRecord
from gpt2fast.errors import InputError, MissingFileError

__all__ = ["BATCH", "CompressedReader", "Info", "inspect"]

#: Chunks that are decoded side by side where nothing else is said.
BATCH = 32

#: What gives the model that wrote a file.
Provider = Callable[[ModelRecord], Model]


class CompressedReader(io.RawIOBase):
    """The bytes of a compressed file, a path or a binary file, as a file to read, and to seek in where that can seek.

    Every block is checked by its CRC-32C before it is decoded.  The SHA-256 of the whole is checked where the file is
    read from its beginning to its end.  As many as `batch` chunks are decoded side by side, each of which takes a row
    of the model's cache; after a `seek` one is, and then more, as reading goes on.

    `lm` is the language model, or a function that gives it, and is called with the file's `ModelRecord` when the first
    block is there that needs a model.  `progress` is called now and then with the bytes that are decoded so far and the
    tokens that this took.

    Raises MissingFileError where there is no file; InputTypeError and InputError as `Codec` does.  Here and in `read`
    and `seek`, InputError, naming the file, where it is damaged, cut off, followed by something, or was written with
    another model, tokenizer, dtype or version; after that nothing can be read.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        lm: Model | Provider,
        *,
        batch: int = BATCH,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self._batch = whole_number("batch", batch, least=1)
        self._progress = progress
        self._decoded = 0  # bytes
        self._lm = lm
        self._codec = None if callable(lm) else Codec(lm, batch=self._batch)
        self._file, self._owned = _opened(file)
        self._name = _name(file)
        self._record: ModelRecord | None = None
        self._read = Index()  # the blocks so far, in the order of the file
        self._index: Index | None = None  # all of them, where there was a seek
        self._number = 0  # of the next block, by that
        self._digest = hashlib.sha256()
        self._ready = bytearray()  # decoded, and not yet given
        self._position = 0
        self._ended = False
        self._error: InputError | None = None
        self._ahead = batch  # chunks that are decoded with the next one
        try:
            with self._checked():
                container.read_header(self._file)
        except BaseException:
            self.close()
            raise

    @property
    def tokens(self) -> int:
        """How many tokens the model has decoded so far."""
        return 0 if self._codec is None else self._codec.tokens

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def tell(self) -> int:
        """How many bytes of the original are before the next one."""
        return self._position

    def readinto(self, buffer: object, /) -> int:
        """Fill `buffer` with the next bytes; how many there are, fewer than it has room for only at the end."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if self.closed:
            raise InputError(f"{self._name}: the file is closed")
        with self._checked():
            while len(self._ready) < len(view) and not self._ended:
                self._decode(len(view) - len(self._ready))
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        del self._ready[:count]
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go on at the byte `offset` of the original, from its beginning, from here or from its end; where that is."""
        offset = whole_number("offset", offset, least=-sys.maxsize)
        whence = whole_number("whence", whence, most=os.SEEK_END)
        with self._checked():
            if self._index is None:
                if not self.seekable():
                    raise io.UnsupportedOperation("the compressed file cannot seek")
                self._index, _ = container.read_index(self._file)
            size = self._index.size
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: size}[whence]
        if start + offset < 0:
            raise InputError(f"there is no byte {offset} from {whence}")
        with self._checked():
            self._go(start + offset)
        return self._position

    def close(self) -> None:
        """Close the file, where its path was given."""
        if not self.closed and self._owned:
            self._file.close()
        super().close()

    _owned = False

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """What is raised within names the file, and is raised again whenever it is asked for more."""
        if self._error is not None:
            raise self._error
        try:
            yield
        except InputError as error:
            self._ready.clear()
            self._error = type(error)(f"{self._name}: {error}")
            raise self._error from None

    def _go(self, position: int) -> None:
        index = self._index
        assert index is not None
        self._ready.clear()
        self._position = position
        self._ahead = 1
        self._ended = position >= index.size
        if not self._ended:
            self._number = index.find(position)
            self._decode(position + 1 - index.place(self._number)[1])
            del self._ready[: position - index.place(index.find(position))[1]]

    def _decode(self, wanted: int) -> None:
        """Have the next blocks ready, `wanted` bytes or more of them if there is no reason for fewer."""
        blocks: list[Block] = []
        size = texts = 0
        most = self._batch
        while texts < most and size < container.MOST * (most if texts else 1):
            if size >= wanted and texts >= self._ahead:
                break
            block = self._next()
            if block is None:
                self._ended = True
                break
            if block.kind != "model":
                blocks.append(block)
                size += block.size
                texts += block.kind == "text"
        self._ahead = min(2 * self._ahead, most)
        codes = [(block.code, block.size) for block in blocks if block.kind == "text"]
        told = self.tokens
        decoded = iter(
            self._codec.decode(codes, lambda done, tokens: self._tell(self._decoded + done, told + tokens))
            if self._codec is not None
            else []
        )
        for block in blocks:
            content = next(decoded) if block.kind == "text" else container.unpack_plain(block)
            self._digest.update(content)
            self._ready += content
        self._decoded += size
        self._tell(self._decoded, self.tokens)
        if self._ended and self._index is None and container.read_end(self._file, self._read) != self._digest.digest():
            raise InputError("the SHA-256 of what was decoded is not that of the original")

    def _tell(self, done: int, tokens: int) -> None:
        if self._progress is not None:
            self._progress(done, tokens)

    def _next(self) -> Block | None:
        """The next block; None where the last one is next."""
        index = self._index
        if index is None:
            block, length = container.read_block(self._file)
            if block.kind == "end":
                return None
            self._read.add(length, block.size)
        else:
            if self._number == len(index):
                return None
            block = self._indexed(self._number)
            self._number += 1
        if block.kind == "model":
            self._take(block)
        elif block.kind == "text" and self._record is None:
            self._take(self._model_block())
        return block

    def _indexed(self, number: int) -> Block:
        index = self._index
        assert index is not None
        (place, before), (end, after) = index.place(number), index.place(number + 1)
        self._file.seek(place)
        block, length = container.read_block(self._file)
        if block.kind == "end" or (length, block.size) != (end - place, after - before):
            raise InputError(f"the index does not fit the block at {place}")
        return block

    def _model_block(self) -> Block:
        """The block of the model, which alone stands for no bytes."""
        index = self._index
        for number in range(len(index) if index else 0):
            assert index is not None
            if index.place(number)[1] == index.place(number + 1)[1]:
                return self._indexed(number)
        raise InputError("there is a block of text, and none before it that says which model it was written with")

    def _take(self, block: Block) -> None:
        record = ModelRecord.from_bytes(block.body)
        if self._record not in (None, record):
            raise InputError("there are two blocks that say which model it was written with")
        if self._record is None:
            if callable(self._lm):
                self._codec = Codec(self._lm(record), batch=self._batch)
            assert self._codec is not None
            self._record, self._codec = record, self._codec.for_record(record)


@dataclass(frozen=True)
class Info:
    """What a compressed file says of itself."""

    #: Bytes of the original and of the file.
    size: int
    compressed_size: int
    #: Blocks that a model coded, that DEFLATE packed and that are as they were, and the bytes of the original in them.
    blocks: dict[str, int]
    bytes: dict[str, int]
    #: Which model wrote it; None where no block needs one.
    model: ModelRecord | None
    #: SHA-256 of the original, in hexadecimal.
    sha256: str


def inspect(file: str | os.PathLike[str] | BinaryIO) -> Info:
    """What the compressed file says of itself, after every block was checked by its CRC-32C; no model is needed.

    Raises MissingFileError where there is no file, and InputError, naming it, where it is damaged, cut off or followed
    by something.
    """
    opened, owned = _opened(file)
    index = Index()
    blocks = dict.fromkeys(("text", "deflated", "stored"), 0)
    sizes = dict(blocks)
    record: ModelRecord | None = None
    try:
        container.read_header(opened)
        while True:
            block, length = container.read_block(opened)
            if block.kind == "end":
                break
            index.add(length, block.size)
            if block.kind == "model":
                record = ModelRecord.from_bytes(block.body)
            else:
                blocks[block.kind] += 1
                sizes[block.kind] += block.size
        digest = container.read_end(opened, index)
    except InputError as error:
        raise InputError(f"{_name(file)}: {error}") from None
    finally:
        if owned:
            opened.close()
    last = len(container.block_bytes("end", container.end_body(digest, index)))
    return Info(index.size, index.end + last + container.TRAILER, blocks, sizes, record, digest.hex())


def _opened(file: str | os.PathLike[str] | BinaryIO) -> tuple[BinaryIO, bool]:
    """The file, and whether it was opened here."""
    if isinstance(file, str | bytes | os.PathLike):
        try:
            return open(file, "rb"), True
        except FileNotFoundError:
            raise MissingFileError(f"{os.fsdecode(file)}: there is no such file") from None
        except ValueError as error:  # a NUL in it
            raise InputError(f"{os.fsdecode(file)!a}: not a path: {error}") from None
    return open_file("file", file, "read"), False


def _name(file: object) -> str:
    if isinstance(file, str | bytes | os.PathLike):
        return os.fsdecode(file)
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name != "<stdin>" else "the compressed data"
