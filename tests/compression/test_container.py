"""The container: golden files of every version open for ever, and whatever is wrong with a file is named."""

from __future__ import annotations

import hashlib
import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some
from paths import DATA

import gpt2fast
from gpt2fast import compression
from gpt2fast.compression import container
from gpt2fast.errors import Error, InputError

GOLDEN = DATA / "compression"
CASES = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_golden_files(name):
    """Files that earlier versions wrote: they open, and what they held is written the same again."""
    case = CASES[name]
    lm = gpt2fast.load("demo", dtype=case["dtype"])
    content = (GOLDEN / name).read_bytes()
    original = compression.decompress(content, lm)
    assert hashlib.sha256(original).hexdigest() == case["sha256"]
    info = compression.inspect(GOLDEN / name)
    assert (info.sha256, info.size, info.blocks) == (case["sha256"], len(original), case["blocks"])
    assert compression.compress(original, lm, chunk=case["chunk"]) == content


@pytest.fixture(scope="module")
def packed(lm, tale) -> bytes:
    """A file with every kind of block."""
    stored = bytes(random.Random(6).choices(range(33, 256), k=600))  # without white space, at which chunks end
    return compression.compress(stored + tale[:900] + bytes(1000), lm, chunk=300)


def test_every_kind_of_block(packed):
    assert compression.inspect(io.BytesIO(packed)).blocks.keys() == {"text", "deflated", "stored"}
    assert all(compression.inspect(io.BytesIO(packed)).blocks.values())


def test_every_cut_is_refused(lm, packed):
    for length in range(len(packed)):
        with pytest.raises(InputError, match="the compressed data: "):
            compression.inspect(io.BytesIO(packed[:length]))
        if length % 37 == 0:
            with pytest.raises(InputError, match="the compressed data: "):
                compression.decompress(packed[:length], lm)
        if length > len(container.HEADER):
            with compression.open(io.BytesIO(packed[:length]), lm) as file, pytest.raises(InputError):
                file.seek(0)


def test_every_changed_byte_is_refused(lm, packed):
    for place in range(len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(InputError):
            compression.inspect(io.BytesIO(damaged))
        if place % 37 == 0:
            with pytest.raises(InputError):
                compression.decompress(damaged, lm)


def test_after_an_error_there_is_nothing_to_read(lm, packed):
    file = compression.open(io.BytesIO(packed[:-1]), lm)
    for _ in range(2):
        with pytest.raises(InputError, match="cut off"):
            file.read()


def test_what_follows_is_refused(lm, packed):
    for more in (b"\0", packed):
        with pytest.raises(InputError, match="something follows the end"):
            compression.decompress(packed + more, lm)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x1f\x8b\x08", "the file begins with"),
        (b"\x89G2Z\r\n\x1a\n", "version missing"),
        (b"\x89G2Z\r\n\x1a\n\x02", "version 2; this gpt2fast reads version 1"),
        (container.HEADER + b"\x07", "a block of kind 7"),
        (container.HEADER + b"\x03\xff\xff\xff\x7f", "a block has 268435455 bytes"),
        (container.HEADER + b"\x03\xff\xff\xff\xff\xff\x7f", "beyond 28 bits"),
        (container.HEADER + container.block_bytes("stored", b""), "a block stands for 0 bytes"),
        (container.HEADER + container.block_bytes("text", b"\x05abc"), "none before it that says which model"),
        (container.HEADER + container.block_bytes("text", b""), "a number is cut off"),
        (container.HEADER + container.block_bytes("text", b"\x85\0abc"), "more bytes than it needs"),
        (container.HEADER + container.block_bytes("model", bytes(70)), "the block of the model has 70 bytes"),
        (container.HEADER + container.block_bytes("model", b"\1\x09" + bytes(67)), "has a dtype 9"),
    ],
)
def test_messages(lm, content, message):
    with pytest.raises(InputError, match=message):
        compression.decompress(content, lm)


def whole(*blocks: tuple[str, bytes, int], digest: bytes) -> bytes:
    """A file of these blocks with the right index."""
    index = container.Index()
    out = container.HEADER
    for kind, body, size in blocks:
        block = container.block_bytes(kind, body)
        index.add(len(block), size)
        out += block
    end = container.block_bytes("end", container.end_body(digest, index))
    return out + end + len(end).to_bytes(4, "little")


def test_lies_with_right_checks(lm, tale):
    """Files whose CRCs are right and whose contents are not."""
    record = ("model", compression.codec.Codec(lm).record.to_bytes(), 0)
    sha = hashlib.sha256
    bomb = container.deflated(bytes(900_000))[1]
    lies = {
        "SHA-256 of what was decoded": whole(("stored", b"abc", 3), digest=bytes(32)),
        "fit the blocks before it|does not fit": whole(("stored", b"abc", 4), digest=sha(b"abc").digest()),
        "two blocks that say": whole(record, ("model", record[1][:-1] + b"x", 0), digest=sha(b"").digest()),
        "DEFLATE gives": whole(("deflated", b"\x05" + bomb[3:], 5), digest=sha(bytes(5)).digest()),
        "the code of a chunk of 2 bytes": whole(record, ("text", b"\x02" + b"\xff" * 40, 2), digest=bytes(32)),
        "first token is 5000": whole(
            ("model", compression.codec.Codec(lm, first_id=5000).record.to_bytes(), 0),
            ("text", b"\x02ab", 2),
            digest=bytes(32),
        ),
        "go on by 600 tokens": whole(
            ("model", compression.codec.Codec(lm, stride=600).record.to_bytes(), 0),
            ("text", b"\x02ab", 2),
            digest=bytes(32),
        ),
    }
    for message, content in lies.items():
        with pytest.raises(InputError, match=message):
            compression.decompress(content, lm)


def test_an_index_that_lies_is_found_by_a_seek(lm, packed):
    index, digest = container.read_index(io.BytesIO(packed))
    start = packed[: index.end]
    wrong = container.Index()
    for number in range(len(index)):
        (place, before), (end, after) = index.place(number), index.place(number + 1)
        wrong.add(end - place, after - before - (number == 1) + (number == 2))
    end = container.block_bytes("end", container.end_body(digest, wrong))
    file = compression.open(io.BytesIO(start + end + len(end).to_bytes(4, "little")), lm)
    with pytest.raises(InputError, match="the index does not fit"):
        file.seek(700)


@given(some.binary(max_size=200))
def test_anything_else_is_an_error(content):
    for data in (content, container.HEADER + content):
        with pytest.raises(Error):
            compression.inspect(io.BytesIO(data))
        with pytest.raises(Error):
            container.read_index(io.BytesIO(data))
