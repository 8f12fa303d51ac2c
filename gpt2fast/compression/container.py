"""The container of compressed files: its blocks, written and read.  docs/how/compression.md describes every byte.

Nothing here knows a model: what a block of text decodes to is `gpt2fast.compression.codec`'s affair.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import BinaryIO, Literal, NamedTuple

from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.kernels.coding import crc32c

__all__ = ["DTYPES", "FORMAT_VERSION", "HEADER", "MOST", "TRAILER", "Block", "Index", "Kind", "ModelRecord"]
__all__ += ["block_bytes", "deflated", "end_body", "read_block", "read_end", "read_header", "read_index", "text_body"]
__all__ += ["unpack_plain", "varint"]

FORMAT_VERSION = 1
#: As PNG's signature, the first bytes show what mail and old transfer programs do to binary files.
_MAGIC = b"\x89G2Z\r\n\x1a\n"
HEADER = _MAGIC + bytes([FORMAT_VERSION])
#: The bytes after the last block: how long that is.
TRAILER = 4
#: Bytes of the original that one block holds at most.
MOST = 1 << 20
#: The longest body of a block other than the last one: no writer makes text longer than it was.
_LONGEST = MOST + 16
#: A block's kind, length of its body, and CRC.
_LEAST_BLOCK = 1 + 1 + 4

DTYPES = ("float32", "bfloat16", "int8", "int4")

Kind = Literal["model", "text", "stored", "deflated", "end"]
_KINDS: dict[int, Kind] = {1: "model", 2: "text", 3: "stored", 4: "deflated", 5: "end"}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


@dataclass(frozen=True)
class ModelRecord:
    """Which model the blocks of text were written with, and how it reads them."""

    #: `gpt2fast.numerics_version`, by which the model's logits are defined.
    numerics_version: int
    dtype: str
    #: How keys and values were kept.
    cache_dtype: str
    #: The id that every chunk comes after.
    first_id: int
    #: How many tokens the window moves on by when the context is full.
    stride: int
    #: SHA-256 of the weights, and of the bytes of the tokens.
    model: bytes
    tokenizer: bytes

    def to_bytes(self) -> bytes:
        """The body of a block."""
        numerics, dtype, cache_dtype, first_id, stride, model, tokenizer = astuple(self)
        numbers = (numerics, DTYPES.index(dtype), DTYPES.index(cache_dtype), first_id, stride)
        return b"".join(map(varint, numbers)) + bytes(model) + bytes(tokenizer)

    @classmethod
    def from_bytes(cls, body: bytes) -> ModelRecord:
        """The record of a block's body.  Raises InputError where it is none."""
        if not isinstance(body, bytes):
            raise InputTypeError(f"body is of type {type(body).__name__}; expected bytes")
        numbers, place = [], 0
        for _ in range(5):
            number, place = read_varint(body, place)
            numbers.append(number)
        numerics, dtype, cache_dtype, first_id, stride = numbers
        if len(body) - place != 64:
            raise InputError(f"the block of the model has {len(body)} bytes; expected {place + 64}")
        if max(dtype, cache_dtype) >= len(DTYPES):
            raise InputError(f"the block of the model has a dtype {max(dtype, cache_dtype)}; expected 0 to 3")
        model, tokenizer = body[place : place + 32], body[place + 32 :]
        return cls(numerics, DTYPES[dtype], DTYPES[cache_dtype], first_id, stride, model, tokenizer)


class Block(NamedTuple):
    """A block of a file."""

    kind: Kind
    body: bytes
    #: How many bytes of the original it stands for; of a block of text, which says so, with the code after that.
    size: int
    #: The code of a block of text.
    code: bytes = b""


class Index:
    """Where each block is, but for the last: its length in the file, and how many bytes of the original it holds."""

    def __init__(self) -> None:
        self._ends = array("Q", [len(HEADER)])  # in the file
        self._originals = array("Q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, length: int, size: int) -> None:
        """The next block takes `length` bytes, and stands for `size`."""
        self._ends.append(self._ends[-1] + length)
        self._originals.append(self._originals[-1] + size)

    @property
    def size(self) -> int:
        """The bytes of the original."""
        return self._originals[-1]

    @property
    def end(self) -> int:
        """Where the last block begins in the file."""
        return self._ends[-1]

    def place(self, number: int) -> tuple[int, int]:
        """Where block `number` begins, in the file and in the original."""
        return self._ends[number], self._originals[number]

    def find(self, position: int) -> int:
        """The number of the block that holds the byte `position` of the original."""
        return bisect_right(self._originals, position) - 1

    def to_bytes(self) -> bytes:
        """As the last block has it."""
        pairs = range(len(self))
        ends, originals = self._ends, self._originals
        numbers = (varint(values[i + 1] - values[i]) for i in pairs for values in (ends, originals))
        return varint(len(self)) + b"".join(numbers)


def varint(number: int) -> bytes:
    """A whole number, 7 bits a byte, the lowest first; all bytes but the last have the top bit (LEB128)."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The number that begins at `place`, and the place after it.  Raises InputError where there is none."""
    number = shift = 0
    while place < len(data) and shift < 63:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if byte == 0 and shift:
                raise InputError("a number has more bytes than it needs")
            return number, place
        shift += 7
    raise InputError("a number is cut off or beyond 63 bits")


def block_bytes(kind: Kind, body: bytes) -> bytes:
    """A block as it stands in a file."""
    block = bytes([_NUMBERS[kind]]) + varint(len(body)) + body
    return block + crc32c(block).to_bytes(4, "little")


def text_body(size: int, code: bytes) -> bytes:
    """The body of a block of text: the code of so many bytes."""
    return varint(size) + code


def deflated(content: bytes) -> tuple[Kind, bytes]:
    """The shorter way to keep what no model knows: as it is, or by DEFLATE."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = varint(len(content)) + packer.compress(content) + packer.flush()
    return ("deflated", packed) if len(packed) < len(content) else ("stored", content)


def unpack_plain(block: Block) -> bytes:
    """The original of a block that is stored or deflated.  Raises InputError where there is none."""
    if block.kind == "stored":
        return block.body
    unpacker = zlib.decompressobj(-15)
    try:
        content = unpacker.decompress(block.code, block.size + 1)
    except zlib.error as error:
        raise InputError(f"DEFLATE: {error}") from None
    if len(content) != block.size or not unpacker.eof or unpacker.unused_data:
        raise InputError(f"DEFLATE gives {len(content)} bytes or goes on; expected {block.size} bytes")
    return content


def end_body(digest: bytes, index: Index) -> bytes:
    """The body of the last block: the SHA-256 of the original, and the index."""
    return digest + index.to_bytes()


def _exactly(file: BinaryIO, count: int, what: str) -> bytes:
    """So many bytes of a file, of which a read may give fewer.  Raises InputError where it ends before."""
    parts = []
    left = count
    while left:
        part = file.read(min(left, MOST))  # what a damaged number asks for is not reserved in advance
        if not part:
            raise InputError(f"the file is cut off, {left} bytes before the end of {what}")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_header(file: BinaryIO) -> None:
    """Read what files begin with.  Raises InputError where it is something else, or a version that is not known."""
    start = file.read(len(HEADER))
    while 0 < len(start) < len(HEADER) and (more := file.read(len(HEADER) - len(start))):
        start += more
    if start[: len(_MAGIC)] != _MAGIC:
        found = f"the file begins with {start[: len(_MAGIC)]!r}" if start else "the file is empty"
        raise InputError(f"{found}; expected what gpt2fast compress writes, {_MAGIC!r}")
    if start[len(_MAGIC) :] != HEADER[len(_MAGIC) :]:
        raise InputError(
            f"the file's format is version {start[-1] if len(start) == len(HEADER) else 'missing'}; "
            f"this gpt2fast reads version {FORMAT_VERSION}"
        )


def read_block(file: BinaryIO) -> tuple[Block, int]:
    """The next block but for the body of the last one, of which this says only that it comes, and how many bytes of the
    file have been read.

    Raises InputError where the block is damaged, cut off, or of a kind that is not known.
    """
    head = bytearray(_exactly(file, 1, "a block"))
    kind = _KINDS.get(head[0])
    if kind is None:
        raise InputError(f"there is a block of kind {head[0]}; expected {min(_KINDS)} to {max(_KINDS)}")
    if kind == "end":
        return Block(kind, b"", 0), 1
    while len(head) == 1 or head[-1] > 127:
        if len(head) > 4:
            raise InputError("the length of a block is beyond 28 bits")
        head += _exactly(file, 1, "a block")
    length, _ = read_varint(bytes(head), 1)
    if length > _LONGEST:
        raise InputError(f"a block has {length} bytes; expected {_LONGEST} at most")
    rest = _exactly(file, length + 4, "a block")
    body = rest[:-4]
    if crc32c(body, crc32c(bytes(head))) != int.from_bytes(rest[-4:], "little"):
        raise InputError("a block's CRC-32C is not that of its bytes: the file is damaged")
    size, code = len(body), b""
    if kind in ("text", "deflated"):
        size, place = read_varint(body, 0)
        code = body[place:]
    elif kind == "model":
        size = 0
    if size > MOST or (size == 0 and kind != "model"):
        raise InputError(f"a block stands for {size} bytes; expected 1 to {MOST}")
    return Block(kind, body, size, code), len(head) + len(rest)


def read_end(file: BinaryIO, index: Index) -> bytes:
    """The SHA-256 of the original, after the kind of the last block has been read and all before it is in `index`.

    Raises InputError where the block does not agree with the index, or where anything comes after it.
    """
    listed = index.to_bytes()
    head = bytes([_NUMBERS["end"]]) + varint(32 + len(listed))
    if _exactly(file, len(head) - 1, "the index") != head[1:]:
        raise InputError("the last block does not fit the blocks before it")
    rest = _exactly(file, 32 + len(listed) + 4 + TRAILER, "the index")
    digest, body = rest[:32], rest[: 32 + len(listed)]
    if crc32c(body, crc32c(head)) != int.from_bytes(rest[-8:-4], "little"):
        raise InputError("the CRC-32C of the last block is not that of its bytes: the file is damaged")
    if body[32:] != listed or int.from_bytes(rest[-TRAILER:], "little") != len(head) + len(body) + 4:
        raise InputError("the index does not fit the blocks before it")
    if file.read(1):
        raise InputError("something follows the end of the compressed data")
    return digest


def read_index(file: BinaryIO) -> tuple[Index, bytes]:
    """The index of a file that can seek, and the SHA-256 of the original.

    Raises InputError where the end of the file is damaged.
    """
    size = file.seek(0, 2)
    if size < len(HEADER) + _LEAST_BLOCK + TRAILER:
        raise InputError(f"the file has {size} bytes, too few for an index: it is cut off")
    file.seek(size - TRAILER)
    length = int.from_bytes(_exactly(file, TRAILER, "the file"), "little")
    if not _LEAST_BLOCK <= length <= size - TRAILER - len(HEADER):
        raise InputError(f"the last block would have {length} bytes of the file's {size}: it is cut off or damaged")
    file.seek(size - TRAILER - length)
    block = _exactly(file, length, "the index")
    if crc32c(block[:-4]) != int.from_bytes(block[-4:], "little") or block[0] != _NUMBERS["end"]:
        raise InputError("there is no index at the end: the file is damaged, or something follows it")
    count, place = read_varint(block, 1)
    body = block[place:-4]
    if count != len(body) or count < 33:
        raise InputError(f"the last block says that it has {count} bytes; it has {len(body)}")
    index = Index()
    for number in _numbers(body):
        index.add(*number)
    if index.end != size - TRAILER - length:
        raise InputError(f"the blocks of the index end at {index.end}; the index begins at {size - TRAILER - length}")
    return index, body[:32]


def _numbers(body: bytes) -> Iterator[tuple[int, int]]:
    """The pairs of an index.  Raises InputError where they do not fill it."""
    count, place = read_varint(body, 32)
    for _ in range(count):
        length, place = read_varint(body, place)
        size, place = read_varint(body, place)
        if not _LEAST_BLOCK <= length <= _LONGEST + 16 or size > MOST:
            raise InputError(f"the index has a block of {length} bytes for {size} of the original")
        yield length, size
    if place != len(body):
        raise InputError(f"the index goes on after its {count} blocks")
