"""Lists of ids hold real integers, with a reference for each place, however long they are."""

from __future__ import annotations

import collections
import gc
import json
import random
import sys
import sysconfig

import pytest
from tokenizer_reference import gpt2

import gpt2fast
from gpt2fast._bpe import byte_symbols

ENC = gpt2()
# From so many ids on, references are counted before they are made.
MORE = 1 << 14


def texts(size: int) -> list[str]:
    rng = random.Random(4)
    words = ["the", " cat", " sat", "\n", " 7", "é", " Zwölf", " antidisestablishmentarianism", "    "]
    return ["".join(rng.choices(words, k=rng.randint(0, 40))) for _ in range(size)]


def test_lists_of_every_length_are_the_arrays():
    text = "".join(texts(4000))
    ids = ENC.encode_batch_flat([text])[0].tolist()
    assert len(ids) > 3 * MORE
    ends = {0}
    for length in (0, 1, 17, 1000, MORE - 1, MORE, MORE + 1, 2 * MORE + 5, len(ids)):
        part = ENC.decode_bytes(ids[:length])
        expected = ENC.encode_batch_flat([part])[0].tolist()
        found = ENC.encode_ordinary(part)
        assert found == expected
        assert type(found) is list
        assert {type(id_) for id_ in found} <= {int}
        ends.add(len(found))
        found += [1, 2]  # a list like any other, which grows and shrinks
        del found[:1]
        assert found == [*expected, 1, 2][1:]
    assert min(abs(end - MORE) for end in ends) < 3


def references(integers: list[int]) -> list[int]:
    return [sys.getrefcount(integer) for integer in integers]


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="references are counted in another way")
@pytest.mark.parametrize("size", [300, 4000])
@pytest.mark.parametrize("encode", [lambda batch: [ENC.encode("".join(batch))], ENC.encode_ordinary_batch])
def test_every_place_has_a_reference(size, encode):
    batch = texts(size)
    lists = encode(batch)
    # The integers themselves, of which small ones may live for ever.
    integers = list({id_: id_ for ids in lists for id_ in ids if id_ > 256}.values())
    places = collections.Counter(id_ for ids in lists for id_ in ids)
    before = references(integers)
    more = encode(batch)
    assert more == lists
    for integer, now, then in zip(integers, references(integers), before, strict=True):
        assert now - then == places[integer]
    del more, integer
    assert references(integers) == before


def test_ids_of_more_than_16_bits(tmp_path):
    # Tokens that no text has first, so that the bytes' ids are large.
    symbols = byte_symbols()
    tokens = [f"{symbols[ord('z')]}{i:06}" for i in range(70_000)] + symbols
    (tmp_path / "vocab.json").write_text(json.dumps({token: id_ for id_, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    enc = gpt2fast.Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    for text in ("short", "naïve " * 20, "some of é this " * MORE):
        expected = [70_000 + byte for byte in text.encode()]
        assert enc.encode_ordinary(text) == expected
        assert enc.encode_ordinary_batch([text, ""], num_threads=2) == [expected, []]
        assert enc.encode_batch_flat([text])[0].tolist() == expected


def test_the_collector_is_left_as_it_was():
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            ENC.encode_ordinary_batch(texts(200))
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
