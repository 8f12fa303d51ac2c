"""Text from outside gives a special token only where the caller allows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_reference import END_OF_TEXT, gpt2, reference

import gpt2fast

ENC = gpt2()
mixed = st.lists(
    st.sampled_from([END_OF_TEXT, "<|endof", "text|>", "hello ", "\n", " ", "é", "<|", "'s"]), max_size=8
).map("".join)


def test_refused_by_default():
    for call in (
        ENC.encode,
        ENC.encode_to_numpy,
        ENC.encode_with_unstable,
        lambda text: ENC.encode_batch(["fine", text]),
    ):
        for text in (f"a{END_OF_TEXT}b", END_OF_TEXT):
            with pytest.raises(
                gpt2fast.InputError, match="special token '<|endoftext|>', which is not allowed by default"
            ):
                call(text)
    with pytest.raises(gpt2fast.InputError, match="disallowed_special="):
        ENC.encode(f"a{END_OF_TEXT}".encode())
    with pytest.raises(gpt2fast.InputError):
        ENC.encode(bytearray(END_OF_TEXT.encode()))


@given(mixed)
def test_allowed(text):
    expected = reference().encode(text, allowed_special="all")
    for allowed in ("all", {END_OF_TEXT}, frozenset([END_OF_TEXT])):
        assert ENC.encode(text, allowed_special=allowed) == expected
        assert ENC.encode(text.encode(), allowed_special=allowed) == expected
        assert ENC.encode(bytearray(text.encode()), allowed_special=allowed) == expected
        assert ENC.encode_batch([text, text], allowed_special=allowed) == [expected, expected]
        assert ENC.encode_to_numpy(text, allowed_special=allowed).tolist() == expected
    assert ENC.decode(expected) == text


@given(mixed)
def test_as_text(text):
    expected = reference().encode(text, disallowed_special=())
    assert ENC.encode(text, disallowed_special=()) == expected
    assert ENC.encode_ordinary(text) == expected
    assert ENC.encode_batch([text], disallowed_special=()) == [expected]
    assert ENC.encode_to_numpy(text, disallowed_special=()).tolist() == expected
    assert END_OF_TEXT not in text or 50256 not in expected


@given(
    mixed,
    st.sampled_from([(), {END_OF_TEXT}, "all", {"hello"}, ["<|"]]),
    st.sampled_from([set(), {END_OF_TEXT}, "all"]),
)
def test_every_combination(text, disallowed, allowed):
    def outcome(enc):
        try:
            return enc.encode(text, allowed_special=allowed, disallowed_special=disallowed)
        except ValueError:
            return "refused"

    assert outcome(ENC) == outcome(reference())


def test_a_string_is_no_collection():
    with pytest.raises(gpt2fast.InputError, match="disallowed_special is '<|endoftext|>'"):
        ENC.encode("a", disallowed_special=END_OF_TEXT)


def test_what_there_is():
    assert ENC.eot_token == reference().eot_token == 50256
    assert ENC.special_tokens_set == reference().special_tokens_set == {END_OF_TEXT}
    assert ENC.is_special_token(50256)
    assert not ENC.is_special_token(50255)
    assert not ENC.is_special_token(-1)
    assert (ENC.n_vocab, ENC.max_token_value) == (reference().n_vocab, reference().max_token_value) == (50257, 50256)
    assert ENC.encode_single_token(END_OF_TEXT) == ENC.encode_single_token(END_OF_TEXT.encode()) == 50256
    assert ENC.decode([50256]) == END_OF_TEXT
    assert ENC.token_byte_values() == reference().token_byte_values()


def test_the_set_is_the_callers_own():
    ENC.special_tokens_set.add("hello")
    assert ENC.special_tokens_set == {END_OF_TEXT}
    ENC.token_byte_values().clear()
    assert len(ENC.token_byte_values()) == 50256


def test_large_text_between_special_tokens():
    text = END_OF_TEXT.join(["some text, it's long\n\n" * 5000, "", " next", "x" * 100])
    expected = reference().encode(text, allowed_special="all")
    assert ENC.encode(text, allowed_special="all") == expected
    assert ENC.encode_to_numpy(text, allowed_special="all", dtype=np.uint16, num_threads=2).tolist() == expected
