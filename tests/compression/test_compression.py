"""Any bytes survive compression, whatever the CPU level, threads and batch at either end; and text becomes as short as
the model's own entropy."""

from __future__ import annotations

import io
import os
import random
import zlib
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tales import ANOTHER, tiny

import gpt2fast
from gpt2fast import compression
from gpt2fast.compression.codec import Codec
from gpt2fast.errors import InputError, InputTypeError, MissingFileError, NonFiniteError
from gpt2fast.kernels import cpu

DTYPES = ("float32", "bfloat16", "int8", "int4")
KINDS = {
    "nothing": b"",
    "a byte": b"a",
    "no UTF-8": b"\xff\xfe caf\xe9 \x80\x81",
    "a cut character": "é".encode()[:1] + b" x " + "🦊".encode()[:3],
    "special tokens": b"<|endoftext|> <|endoftext|>",
    "every byte": bytes(range(256)) * 3,
    "zeros": bytes(200_000),
    "random": random.Random(1).randbytes(40_000),
    "other scripts": "Жил-был у бабушки серенький козлик. 昔々、あるところに。 ".encode() * 20,
    "white space": b" \n\t\r\n   \n\n" * 50,
}


@pytest.fixture(autouse=True)
def _back_to_this_level():
    before = cpu.cpu_level()
    yield
    cpu.use_level(before)


def test_a_tale_at_the_models_entropy(lm, tale):
    text = tale[:1800]
    codec = Codec(lm)
    (code,) = codec.encode([text])
    # lm.score's windows are the same until the context is full.
    score = lm.score(text)
    assert code is not None
    assert len(score) <= lm.model.config.n_ctx
    assert 8 * len(code) <= score.bits_per_byte * len(text) * 1.002 + 16
    assert len(code) < 0.8 * len(zlib.compress(text, 9))
    assert codec.tokens == len(score)


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes(lm, kind):
    content = KINDS[kind]
    packed = compression.compress(content, lm)
    assert compression.decompress(packed, lm) == content
    assert len(packed) <= len(content) * 1.001 + 64


def test_text_among_what_is_none(lm, tale):
    content = tale + random.Random(2).randbytes(3000) + ANOTHER.encode() + bytes(9000)
    packed = compression.compress(content, lm, chunk=512)
    info = compression.inspect(io.BytesIO(packed))
    assert min(info.bytes["text"], info.bytes["deflated"] + info.bytes["stored"]) > 2000
    assert (info.size, info.compressed_size) == (len(content), len(packed))
    assert compression.decompress(packed, lm) == content


@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_threads_and_batches(lm, dtype):
    """Chunks that take many windows, encoded under each condition and decoded under every other."""
    generator = random.Random(5)
    text = " ".join(generator.choice(["the", "king", "fox", "häuschen", "\n", "ran!"]) for _ in range(80)).encode()
    chunks = [text[: generator.randrange(1, len(text))] for _ in range(5)]
    codes = set()
    for level in cpu.supported_levels():
        for threads in (1, 2):
            cpu.use_level(level)
            found = Codec(tiny(dtype, threads, lm.tokenizer)).encode(chunks)
            codes.add(tuple(found))
    assert len(codes) == 1
    (found,) = codes
    assert None not in found
    wanted = [(code, len(chunk)) for code, chunk in zip(found, chunks, strict=True)]
    for i, level in enumerate(cpu.supported_levels()):
        cpu.use_level(level)
        for batch in (1, 2, 32):
            assert Codec(tiny(dtype, 1 + i % 2, lm.tokenizer), batch=batch).decode(wanted) == chunks


@lru_cache(maxsize=1)
def tiny_codec():
    return Codec(tiny("float32", 1, gpt2fast.load("demo").tokenizer), batch=3)


@given(some.lists(some.one_of(some.binary(min_size=1, max_size=80), some.text(min_size=1).map(str.encode)), max_size=4))
def test_any_chunks(chunks):
    codec = tiny_codec()
    codes = codec.encode(chunks)
    assert codec.decode([(code, len(chunk)) for code, chunk in zip(codes, chunks, strict=True)]) == chunks


def test_other_strides_and_first_tokens(lm):
    text = b"The king said to the fox that he should not go into the wood alone at night. " * 2
    for stride, first_id in ((1, None), (16, 7), (5, 4095)):
        codec = Codec(tiny("float32", 1, lm.tokenizer), stride=stride, first_id=first_id)
        (code,) = codec.encode([text])
        other = Codec(tiny("float32", 2, lm.tokenizer)).for_record(codec.record)
        assert other.decode([(code, len(text))]) == [text]


def test_windows_go_on_beyond_the_context(lm, tale):
    """A chunk of three contexts, in few bytes: what comes late has a context, too."""
    text = tale.replace(b"fox", b"hare") + tale.replace(b"boy", b"girl") + tale
    (code,) = Codec(lm).encode([text])
    assert code is not None
    assert len(lm.tokenizer.encode_ordinary(text)) > 2 * lm.model.config.n_ctx
    assert 8 * len(code) < lm.score(text).bits_per_byte * len(text) * 1.03


def test_what_a_model_makes_longer_than_deflate_does(lm, tale):
    """Chunks by themselves are shorter by the model, and together by DEFLATE, which looks back to earlier ones."""
    content = tale * 4
    info = compression.inspect(io.BytesIO(compression.compress(content, lm, chunk=2048)))
    assert info.bytes == {"text": 0, "deflated": len(content), "stored": 0}
    assert info.compressed_size < len(zlib.compress(content, 9)) + 100


def test_files_do_not_depend_on_how_their_bytes_came(lm, short):
    content = short + bytes(5000) + ANOTHER.encode()
    expected = compression.compress(content, lm, chunk=300)
    generator = random.Random(3)
    out = io.BytesIO()
    with compression.open(out, lm, "wb", chunk=300) as file:
        place = 0
        while place < len(content):
            place += file.write(memoryview(content)[place : place + generator.randrange(1, 4000)])
    assert out.getvalue() == expected


def test_reading_from_anywhere(lm, short):
    content = short + random.Random(4).randbytes(2000) + ANOTHER.encode()
    packed = compression.compress(content, lm, chunk=512)
    with compression.open(io.BytesIO(packed), lm) as file:
        assert file.seekable()
        assert file.readable()
        for place, count in ((1500, 7), (0, 3), (len(content) - 4, 9), (len(content), 5), (10**9, 1), (400, 1200)):
            assert file.seek(place) == file.tell() == place
            assert file.read(count) == content[place : place + count]
        assert file.seek(-10, os.SEEK_END) == len(content) - 10
        assert file.seek(4, os.SEEK_CUR) == len(content) - 6
        assert file.read() == content[-6:]
        with pytest.raises(InputError, match="no byte -1"):
            file.seek(-1)


def test_only_what_is_asked_for_is_decoded(lm, tale):
    packed = compression.compress(tale, lm, chunk=300)
    with compression.open(io.BytesIO(packed), lm) as file:
        file.seek(1000)
        assert file.read(20) == tale[1000:1020]
        assert 0 < file.tokens < 200


def test_files(lm, short, tmp_path):
    path = tmp_path / "tale.g2z"
    with compression.open(path, lm, "wb") as file:
        file.write(short)
        assert list(tmp_path.glob("tale.g2z")) == []
    with compression.open(path, lm) as file:
        assert io.BufferedReader(file).read() == short
    assert path.read_bytes() == compression.compress(short, lm)
    before = path.read_bytes()

    def failing():
        yield b"something else"
        raise ZeroDivisionError

    def write():
        with compression.open(path, lm, "wb") as file:
            file.writelines(failing())

    with pytest.raises(ZeroDivisionError):
        write()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tale.g2z"]
    with pytest.raises(MissingFileError, match="missing.g2z: there is no such file"):
        compression.open(tmp_path / "missing.g2z", lm)


class Pipe(io.RawIOBase):
    """What cannot seek, and gives and takes a few bytes at a time."""

    def __init__(self, content=b""):
        self.content, self.taken = content, b""

    def readable(self):
        return True

    def writable(self):
        return True

    def read(self, size=-1):
        part, self.content = self.content[: min(size, 7)], self.content[min(size, 7) :]
        return part

    def write(self, data):
        self.taken += bytes(data[:9])
        return min(len(data), 9)


def test_pipes(lm, short):
    pipe = Pipe()
    with compression.open(pipe, lm, "wb") as file:
        file.write(short)
    with compression.open(Pipe(pipe.taken), lm) as file:
        assert not file.seekable()
        assert file.read() == short
    with compression.open(Pipe(pipe.taken), lm) as file, pytest.raises(io.UnsupportedOperation, match="cannot seek"):
        file.seek(3)


def test_progress(lm, tale):
    told, back = [], []
    out = io.BytesIO()
    with compression.CompressedWriter(out, lm, chunk=400, progress=lambda *done: told.append(done)) as file:
        file.write(tale)
    out.seek(0)
    with compression.CompressedReader(out, lm, progress=lambda *done: back.append(done)) as file:
        assert file.read() == tale
        assert file.tokens == told[-1][1]
    assert told[-1] == back[-1]
    assert told[-1][0] == len(tale)
    for calls in (told, back):
        assert len(calls) > 2
        assert calls == sorted(calls)


def test_a_function_gives_the_model(lm, short):
    asked = []

    def provide(record):
        asked.append(record.dtype)
        return lm

    with compression.CompressedReader(io.BytesIO(compression.compress(short, lm)), provide) as file:
        assert file.read() == short
    with compression.CompressedReader(io.BytesIO(compression.compress(b"hello", lm)), provide) as file:
        assert file.read() == b"hello"
    assert asked == ["float32"]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_dtypes_of_the_demo_model(lm, short, dtype):
    kept = gpt2fast.load("demo", dtype=dtype)
    packed = compression.compress(short, kept)
    assert compression.decompress(packed, kept) == short
    assert len(packed) <= len(compression.compress(short, lm)) * 1.01
    with pytest.raises(InputError, match=f"a model kept as {dtype}, and this is a model kept as float32: take dtype"):
        compression.decompress(packed, lm)


def test_another_model_is_named(lm, short):
    packed = compression.compress(short, lm)
    half = gpt2fast.load("demo", cache_dtype="bfloat16")
    with pytest.raises(InputError, match="cache kept as float32, and this is a cache kept as bfloat16"):
        compression.decompress(packed, half)
    with pytest.raises(InputError, match="a model with SHA-256 [0-9a-f]{64}, and this is a model with SHA-256"):
        compression.decompress(packed, tiny("float32", 1, lm.tokenizer))
    other = gpt2fast.LanguageModel(lm.model, gpt2fast.get_encoding("gpt2"))
    with pytest.raises(InputError, match="a tokenizer with SHA-256"):
        compression.decompress(packed, other)


def test_another_numerics_version(lm, short, monkeypatch):
    packed = compression.compress(short, lm)
    monkeypatch.setattr("gpt2fast.compression.codec.numerics_version", 99)
    with pytest.raises(InputError, match="version 1 of the arithmetic, and this is version 99"):
        compression.decompress(packed, lm)


def test_tokens_that_the_model_does_not_know(lm, tale):
    """A tokenizer with more tokens than the model: what needs them is stored."""
    other = gpt2fast.LanguageModel(lm.model, gpt2fast.get_encoding("gpt2"))
    packed = compression.compress(tale, other)
    assert compression.decompress(packed, other) == tale
    assert compression.inspect(io.BytesIO(packed)).bytes["text"] == 0


def test_arguments(lm):
    for wrong in (None, "demo", lm.model):
        with pytest.raises(InputTypeError, match=r"lm is of type \w+; expected a language model"):
            compression.compress(b"", wrong)
    with pytest.raises(InputTypeError, match="data is of type str"):
        compression.compress("text", lm)
    with pytest.raises(InputTypeError, match="data is of type int"):
        compression.compress(3, lm)
    with pytest.raises(InputTypeError, match="data is of type list"):
        compression.decompress([1.5], lm)
    for chunk in (0, 255, 2**20 + 1):
        with pytest.raises(InputError, match=f"chunk is {chunk}"):
            compression.compress(b"", lm, chunk=chunk)
    with pytest.raises(InputError, match="batch is 0"):
        compression.decompress(b"", lm, batch=0)
    with pytest.raises(InputError, match="mode is 'r'"):
        compression.open(io.BytesIO(), lm, "r")
    with pytest.raises(InputTypeError, match="file is of type int"):
        compression.open(3, lm)
    with pytest.raises(InputTypeError, match="file is of type int"):
        compression.open(3, lm, "wb")
    with pytest.raises(InputError, match="multiplies with 'blas'"):
        compression.compress(b"", gpt2fast.load("demo", gemm="blas"))


def test_logits_that_are_not_finite(lm, tale):
    config = lm.model.config
    tensors = {name: values.copy() for name, values in lm.model._parameters.tensors(packed=False).items()}
    tensors["h.3.mlp.c_fc.bias"][:] = np.nan
    broken = gpt2fast.LanguageModel(gpt2fast.GPT2.from_tensors(config, tensors), lm.tokenizer)
    out = io.BytesIO()
    file = compression.open(out, broken, "wb")
    file.write(tale)
    with pytest.raises(NonFiniteError, match="layer 3"):
        file.close()
    with pytest.raises(InputError, match="cut off"):
        compression.decompress(out.getvalue(), lm)


def test_a_model_that_functions_change(lm, tale):
    data = compression.compress(tale[:500], lm)
    codec = Codec(lm)
    with lm.model.hooks([("hook_embed", lambda embed, hook: 2 * embed)]):
        for call in (
            lambda: compression.compress(tale[:500], lm),
            lambda: compression.decompress(data, lm),
            lambda: codec.encode([b"text"]),
            lambda: codec.decode([(b"code", 4)]),
        ):
            with pytest.raises(InputError, match="functions change what the model computes"):
                call()
    assert compression.decompress(data, lm) == tale[:500]


def test_closed_files(lm, short):
    out = io.BytesIO()
    file = compression.open(out, lm, "wb")
    file.write(short)
    file.close()
    file.close()
    with pytest.raises(InputError, match="closed"):
        file.write(b"more")
    reader = compression.open(io.BytesIO(out.getvalue()), lm)
    reader.close()
    with pytest.raises(InputError, match="closed"):
        reader.read(1)
