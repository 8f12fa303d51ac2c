"""Batches of many texts, which several threads read by themselves: any kinds of text, side by side, on any threads."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_reference import gpt2, reference

import gpt2fast

ENC = gpt2()
# From so many texts on, threads read them without Python's lock.
MANY = 256


class Words(str):
    """A str by another name."""

    __slots__ = ()


PLAIN = [
    "",
    "a",
    "It's  plain\n",
    "naïve",
    "我们 x",
    "a 🙂",
    "\ud83d\ude42 x\udc00",
    b"bytes",
    b"",
    b"\xff\xe2\x82 a",
    " the" * 50,
]
OTHERS = [
    Words("words"),
    Words("nai\u0308ve 我"),
    bytearray(b"array"),
    memoryview(b"xviewx")[1:-1],
    np.frombuffer(b"np", "u1"),
]


def expected(text):
    if isinstance(text, str):
        return reference().encode_ordinary(text)
    return ENC.encode_ordinary(bytes(text))


def check(batch, num_threads):
    lists = [expected(text) for text in batch]
    ids, offsets = ENC.encode_batch_flat(batch, num_threads=num_threads)
    assert offsets.tolist() == [0, *itertools.accumulate(map(len, lists))]
    assert ids.tolist() == [id_ for list_ in lists for id_ in list_]
    assert ENC.encode_ordinary_batch(batch, num_threads=num_threads) == lists
    assert ENC.count_batch(batch, num_threads=num_threads) == [len(list_) for list_ in lists]


@settings(max_examples=20)
@given(st.integers(MANY - 1, 5 * MANY), st.sampled_from([None, *OTHERS]), st.integers(1, 4), st.randoms())
def test_all_kinds_side_by_side(size, other, num_threads, rng):
    batch = rng.choices(PLAIN, k=size)
    if other is not None:
        batch[rng.randrange(size)] = other
    check(batch, num_threads)
    check(tuple(batch), num_threads)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_long_texts_among_short_ones(num_threads):
    rng = random.Random(2)
    batch = [" ".join(rng.choices(["ab", "é", "我", "12"], k=rng.randint(0, 60))) for _ in range(3000)]
    for place, unit in ((0, "plain text "), (1500, "naïve text "), (1501, "我们 text "), (2999, "a🙂 text\n")):
        batch[place] = unit * 70_000
    check(batch, num_threads)


@pytest.mark.parametrize("wrong", [None, 7, ["a"], memoryview(b"abcdef")[::2]])
@pytest.mark.parametrize("place", [0, 300, 999])
def test_what_is_no_text_is_named(wrong, place):
    batch = ["some text"] * 1000
    batch[place] = wrong
    for call in (ENC.encode_batch_flat, ENC.encode_ordinary_batch, ENC.count_batch):
        with pytest.raises(gpt2fast.InputTypeError, match=rf"texts\[{place}\] is of type {type(wrong).__name__}"):
            call(batch, num_threads=2)


def test_a_list_may_change_meanwhile():
    words = ["".join(random.Random(i).choices("abcé 我", k=100)) for i in range(2000)]
    batch, stop, kinds = list(words), threading.Event(), {len(ENC.encode(word)) for word in words} | {1}

    def change():
        rng = random.Random(1)
        while not stop.is_set():
            batch[rng.randrange(len(batch))] = "x"
            batch[:] = [text[:50] + text[50:] for text in words]

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(50):
            ids, offsets = ENC.encode_batch_flat(batch, num_threads=2)
            assert len(ids) == offsets[-1]
            assert set(np.diff(offsets).tolist()) <= kinds
    finally:
        stop.set()
        other.join()
