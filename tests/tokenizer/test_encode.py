"""Ids are tiktoken's, for every text, by every way of encoding."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer_reference import gpt2, reference

import gpt2fast
from gpt2fast.tokenizer.inputs import is_unicode

ENC = gpt2()
# The promise of this package: many strings, however few examples the other properties get.
THOROUGH = settings(max_examples=max(2000, int(os.environ.get("GPT2FAST_EXAMPLES", "0"))))

# Pieces of text near the decisions of the split pattern.
fragments = st.sampled_from(
    [
        *" \n\t\r\u00a0\u3000\u2028\x85\x1c'asdmtlvreSLéßжあ漢٣½²Ⅷ1_.-!🙂\u200d\u0301\u0345\ufeff\u0000\U0010ffff",
        *("'s", "'ll", "'ve", "'re", "n't", "  ", " \n", "\r\n", "    ", " the", "ing", "http://", "<|endoftext|>"),
        *(
            "Größe",
            "naïve",
            "привет",
            "日本語",
            "한국어",
            "हिन्दी",
            "ไทย",
            "👨‍👩‍👧",
            "x" * 17,
            "\n" * 20,
            "=" * 70,
            "0" * 40,
        ),
    ]
)
texts = st.one_of(st.text(), st.lists(fragments, max_size=30).map("".join))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("hello world", [31373, 995]),
        ("Hello, I'm a   test\n\n ", [15496, 11, 314, 1101, 257, 220, 220, 1332, 628, 220]),
        ("The quick brown fox", [464, 2068, 7586, 21831]),
        ("\u00a0naïve 🦊", [1849, 2616, 38776, 12520, 99, 232]),
    ],
)
def test_golden_ids(text, ids):
    assert ENC.encode(text) == ids
    assert reference().encode(text) == ids


@pytest.mark.parametrize("context", ["{}", "a{}b", " {}1", "'{}s {}", "{} {}\n{}"])
def test_every_code_point(context):
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = [context.replace("{}", character) for character in every]
    expected = map(reference()._core_bpe.encode_ordinary, texts)  # what its encode_ordinary calls
    wrong = [c for c, ids, right in zip(every, ENC.encode_ordinary_batch(texts), expected, strict=True) if ids != right]
    assert not wrong, f"{len(wrong)} characters in {context!r}, the first of them U+{ord(wrong[0]):04X}"


@THOROUGH
@given(texts)
@example("a\u00a0\u00a0b  \u2003c")
@example("\ud83d\ude00 \ud83d x\udc00")
def test_any_string(text):
    expected = reference().encode_ordinary(text)
    assert ENC.encode_ordinary(text) == expected
    assert ENC.encode(text, disallowed_special=()) == expected
    assert ENC.count(text) == len(expected)


# Python keeps one, two or four bytes a character, which are made into UTF-8 so many characters at a time.
PART = 1 << 14


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([*"a éя漢🙂\n\ud83d\ude42\udc00", "'ll", "  "]), max_size=12).map("".join),
    st.sampled_from(["ab ", "é", "我 ", "🙂", "\ud83d ", "x\ude42"]),
    st.integers(-2, 12),
)
@example("\ud83d\ude42", "ab ", 1)
def test_borders_of_parts_of_a_long_string(text, filler, before):
    text = (filler * PART)[: PART - before] + text + filler * 3
    expected = reference().encode_ordinary(text)
    assert ENC.encode_ordinary(text) == expected
    assert ENC.count(text) == len(expected)
    assert ENC.encode_batch_flat([text, text], num_threads=2)[0].tolist() == expected * 2


@pytest.mark.parametrize("word", ["naïve ", "我们 ", "a🙂 "])
def test_a_string_whose_utf8_python_has(word):
    text = word * 30
    expected, size = ENC.encode_ordinary(text), sys.getsizeof(text)
    assert expected == reference().encode_ordinary(word * 30)
    assert sys.getsizeof(text) == size, "another copy of the text is kept"
    with contextlib.suppress(SyntaxError):
        compile(text, "<text>", "eval")  # asks for the UTF-8, which the string then keeps
    assert sys.getsizeof(text) > size
    assert ENC.encode_ordinary(text) == expected
    assert ENC.encode_ordinary_batch([text]) == [expected]


def test_subclasses_of_str():
    class Words(str):
        __slots__ = ("note",)

    for text in ("plain words", "naïve", "我们", "a🙂", "\ud83d\ude42x\udc00"):
        expected = reference().encode_ordinary(text)
        assert ENC.encode_ordinary(Words(text)) == expected
        assert ENC.encode_batch_flat([Words(text)] * 3)[0].tolist() == expected * 3


@given(st.lists(texts, max_size=8), st.integers(1, 3))
def test_batches(batch, num_threads):
    expected = [reference().encode_ordinary(text) for text in batch]
    assert ENC.encode_ordinary_batch(batch, num_threads=num_threads) == expected
    assert ENC.encode_batch(batch, num_threads=num_threads, disallowed_special=()) == expected
    assert ENC.count_batch(batch, num_threads=num_threads) == [len(ids) for ids in expected]
    ids, offsets = ENC.encode_batch_flat(batch, num_threads=num_threads)
    assert (ids.dtype, offsets.dtype, offsets[0]) == (np.uint16, np.int64, 0)
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected


@given(texts)
def test_pieces(text):
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    pieces = ENC.split(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert [id_ for piece in pieces for id_ in reference()._encode_single_piece(piece)] == ENC.encode_ordinary(text)
    assert ENC.split(text.encode()) == [piece.encode() for piece in pieces]


@given(texts, st.sampled_from([None, "uint16", "uint32", np.uint32]))
def test_arrays(text, dtype):
    ids = ENC.encode_to_numpy(text, disallowed_special=(), dtype=dtype)
    assert ids.dtype == np.dtype(dtype or "uint32")
    assert ids.tolist() == reference().encode_to_numpy(text, disallowed_special=()).tolist()


def test_the_demo_vocabulary():
    directory = Path(gpt2fast.__file__).parent / "data" / "demo"
    enc = gpt2fast.Tokenizer.from_pretrained(directory)
    peer = reference(directory / "vocab.json")
    rng = random.Random(1)
    for text in [
        "Once upon a time, there was a little girl.",
        *("".join(rng.choices("abc 'sthe\n1é", k=80)) for _ in range(300)),
    ]:
        assert enc.encode(text) == peer.encode(text)
    assert (enc.n_vocab, enc.eot_token) == (4096, 4095)


# Bytes


@given(st.one_of(st.binary(), st.lists(st.one_of(fragments.map(str.encode), st.binary(max_size=3))).map(b"".join)))
@example(b"\xe2\x82z \xf0\x9f\x98 \x80\xc0\xaf\xed\xa0\x80 \xf4\x90\x80\x80")
def test_any_bytes(data):
    # A byte that is no part of UTF-8 counts as one character like U+FFFD; Python's surrogateescape finds the same.
    text = data.decode("utf-8", "surrogateescape")
    expected, at = [], 0
    for piece in ENC.split("".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in text)):
        expected.append(text[at : at + len(piece)].encode("utf-8", "surrogateescape"))
        at += len(piece)
    assert ENC.split(data) == expected
    ids = ENC.encode_ordinary(data)
    assert ENC.decode_bytes(ids) == data
    assert ids == [id_ for piece in expected for id_ in reference()._encode_single_piece(piece)]


@given(texts.filter(lambda text: text.isascii() or is_unicode(text)))
def test_bytes_that_are_utf8_are_text(text):
    assert ENC.encode_ordinary(text.encode()) == reference().encode_ordinary(text)


def test_everything_that_holds_bytes(tmp_path):
    data = "naïve café's \u00a0 12".encode()
    path = tmp_path / "text"
    path.write_bytes(data)
    expected = ENC.encode(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert ENC.encode(mapped) == expected
    for same in (bytearray(data), memoryview(data), memoryview(b"xx" + data)[2:], np.frombuffer(data, np.uint8)):
        assert ENC.encode(same) == expected
        assert ENC.encode_ordinary_batch([same, data]) == [expected, expected]
        assert ENC.count(same) == len(expected)
    assert ENC.encode(b"") == ENC.encode(bytearray()) == ENC.encode(memoryview(b"")) == []


def test_strict_refuses_what_is_not_utf8():
    assert ENC.encode("café".encode(), strict=True) == ENC.encode("café")
    with pytest.raises(gpt2fast.InputError, match="not UTF-8: .* at byte 3"):
        ENC.encode(b"caf\xe9", strict=True)


@pytest.mark.parametrize("wrong", [None, 3, 1.5, ["a"], object()])
def test_no_text(wrong):
    for call in (ENC.encode, ENC.encode_ordinary, ENC.count, ENC.split, ENC.encode_to_numpy, ENC.encode_with_offsets):
        with pytest.raises(gpt2fast.InputTypeError, match=f"{type(wrong).__name__}; expected str or contiguous bytes"):
            call(wrong)
    for call in (ENC.encode_batch, ENC.encode_ordinary_batch, ENC.encode_batch_flat, ENC.count_batch):
        with pytest.raises(gpt2fast.InputTypeError):
            call(["fine", wrong])
    for call in (ENC.encode_ordinary_batch, ENC.encode_batch_flat, ENC.count_batch):
        with pytest.raises(gpt2fast.InputTypeError, match=r"texts\[1\] is of type"):
            call(["fine", wrong])


def test_one_text_is_no_batch():
    for call in (ENC.encode_batch, ENC.encode_ordinary_batch, ENC.encode_batch_flat, ENC.count_batch):
        for one in ("one text", b"one text"):
            with pytest.raises(gpt2fast.InputTypeError, match="expected a list of texts"):
                call(one)
        assert len(call(iter(["an", "iterator"]))) == 2


def test_gaps_in_a_buffer_are_refused():
    with pytest.raises(gpt2fast.InputTypeError, match="contiguous"):
        ENC.encode(memoryview(b"abcdef")[::2])


def test_dtype_and_threads_are_checked():
    for dtype in ("int32", "float32", "uint64"):
        with pytest.raises(gpt2fast.InputError, match=f"dtype is '{dtype}'"):
            ENC.encode_batch_flat(["a"], dtype=dtype)
    for num_threads in (0, -1, 1.5, True):
        with pytest.raises(gpt2fast.InputError, match="num_threads"):
            ENC.encode_batch_flat(["a"], num_threads=num_threads)


# Hostile text


@pytest.mark.parametrize(
    ("unit", "count"),
    [
        ("a", 1_000_000),
        ("7", 1_000_000),
        (" ", 1_000_000),
        ("\n", 1_000_000),
        ("漢", 300_000),
        ("é", 500_000),
        ("=", 1_000_000),
    ],
)
def test_long_runs(unit, count):
    """Their time grows with their length: `test_time_grows_with_length`."""
    text = unit * count
    assert ENC.split(text) == [text]  # the reference's own pattern gives up on so much white space
    assert ENC.encode_to_numpy(text).tolist() == reference()._encode_single_piece(text)


@pytest.mark.parametrize("length", [14, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 500, 5000])
def test_pieces_of_every_length(length):
    rng = random.Random(length)
    for alphabet in (
        "etaoinshr",
        "0123456789",
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "éж漢aあ",
        "=-*/. ",
    ):
        for _ in range(8 if length < 1000 else 1):
            text = "".join(rng.choices(alphabet, k=length))
            assert ENC.encode(text) == reference().encode(text)
            assert ENC.encode(" " + text) == reference().encode(" " + text)


def test_a_large_text_is_cut_without_a_trace():
    rng = random.Random(5)
    words = [
        "don't",
        "we'll",
        "'s",
        "  ",
        "\n\n",
        "\u00a0",
        "123",
        "ab",
        "Zürich",
        "...",
        "   x",
        "\t",
        "'",
        "日本",
        "=" * 300,
    ]
    text = " ".join(rng.choices(words, k=300_000))
    expected = reference().encode_ordinary(text)
    for num_threads in (1, 2, 5):
        ids, offsets = ENC.encode_batch_flat([text], num_threads=num_threads)
        assert ids.tolist() == expected
        assert offsets.tolist() == [0, len(expected)]
        assert ENC.count_batch([text], num_threads=num_threads) == [len(expected)]
    assert ENC.encode_to_numpy(text, num_threads=2).tolist() == expected
