"""Ids give back exactly the text they came from, and what is no id is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_reference import gpt2, reference

import gpt2fast

ENC = gpt2()
ids_of_gpt2 = st.lists(st.integers(0, 50256), max_size=60)


@given(st.text())
def test_round_trip_of_text(text):
    assert ENC.decode(ENC.encode(text, disallowed_special=())) == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


@given(st.binary())
def test_round_trip_of_bytes(data):
    assert ENC.decode_bytes(ENC.encode_ordinary(data)) == data


@given(ids_of_gpt2, st.sampled_from(["replace", "ignore", "backslashreplace", "surrogateescape"]))
def test_any_ids(ids, errors):
    assert ENC.decode_bytes(ids) == reference().decode_bytes(ids)
    assert ENC.decode_tokens_bytes(ids) == reference().decode_tokens_bytes(ids)
    assert ENC.decode(ids) == reference().decode(ids)
    assert ENC.decode(ids, errors=errors) == reference().decode(ids, errors=errors)


@given(st.lists(ids_of_gpt2, max_size=5), st.integers(1, 3))
def test_batches(batch, num_threads):
    assert ENC.decode_batch(batch, num_threads=num_threads) == reference().decode_batch(batch)
    assert ENC.decode_bytes_batch(batch, num_threads=num_threads) == reference().decode_bytes_batch(batch)


@given(st.text(st.sampled_from("ab é漢🙂\0\U0010ffff"), min_size=1), st.integers(0, 40))
def test_long_texts(part, shift):
    text = "x" * shift + part * (20_000 // len(part)) + "🙂"
    assert ENC.decode(ENC.encode_ordinary(text)) == text


@pytest.mark.parametrize("errors", ["replace", "ignore", "strict", "backslashreplace"])
def test_long_texts_that_are_not_utf8(errors):
    for wrong in (b"\xf0\x9f\x99", b"\xed\xa0\x80", b"\xff", b"\xf4\x90\x80\x80", b"\xc0\x80"):
        data = "word 🙂 ".encode() * 2000 + wrong
        ids = ENC.encode_ordinary(data)
        if errors == "strict":
            with pytest.raises(UnicodeDecodeError):
                ENC.decode(ids, errors)
        else:
            assert ENC.decode(ids, errors) == data.decode("utf-8", errors)


def test_every_token():
    for token in range(ENC.n_vocab):
        assert ENC.decode_single_token_bytes(token) == reference().decode_single_token_bytes(token)
        assert ENC.encode_single_token(ENC.decode_single_token_bytes(token)) == token
    assert ENC.decode_bytes(range(ENC.n_vocab)) == reference().decode_bytes(list(range(ENC.n_vocab)))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64", "uint64", ">u4", ">i2"])
def test_arrays(dtype):
    text = "hello, world 12\n" * 50
    ids = np.array(ENC.encode(text)).astype(dtype)
    assert ENC.decode(ids) == text
    assert ENC.decode_bytes(ids[::2]) == reference().decode_bytes(ids[::2].tolist())
    assert ENC.decode(ids[:0]) == ""


@pytest.mark.parametrize("sequence", [(31373, 995), iter([31373, 995]), {31373: 0, 995: 0}, {31373: 0, 995: 0}.keys()])
def test_any_iterable(sequence):
    assert ENC.decode(sequence) == "hello world"


def test_a_range():
    assert ENC.decode(range(31373, 31376)) == reference().decode([31373, 31374, 31375])


def test_nothing():
    assert ENC.decode([]) == ENC.decode(np.array([])) == ""
    assert ENC.decode_bytes([]) == b""
    assert ENC.decode_batch([]) == ENC.decode_bytes_batch([]) == ENC.decode_tokens_bytes([]) == []
    assert ENC.decode_with_offsets([]) == ("", [])


@pytest.mark.parametrize("wrong", [50257, 2**31, 2**32, 2**32 + 5, 2**64, -1, -(2**40)])
def test_unknown_ids_are_named(wrong):
    for ids in ([31373, wrong, 995], (31373, wrong)):
        for call in (ENC.decode, ENC.decode_bytes):
            with pytest.raises(gpt2fast.UnknownTokenError) as caught:
                call(ids)
            message = str(caught.value)
            assert f"tokens[1] is {wrong}; 'gpt2' has the ids 0 to 50256" in message
            assert isinstance(caught.value, KeyError)
    for call in (ENC.decode_tokens_bytes, ENC.decode_with_offsets):
        with pytest.raises(gpt2fast.UnknownTokenError, match=str(wrong)):
            call([31373, wrong])
    with pytest.raises(gpt2fast.UnknownTokenError, match=str(wrong)):
        ENC.decode_single_token_bytes(wrong)
    if -(2**63) <= wrong < 2**63:
        with pytest.raises(gpt2fast.UnknownTokenError, match=rf"tokens\[1\] is {wrong};"):
            ENC.decode(np.array([31373, wrong]))
    with pytest.raises(gpt2fast.UnknownTokenError):
        ENC.decode_batch([[31373], [wrong]])


@pytest.mark.parametrize("wrong", [[1.5], ["a"], [None], np.array([1.0, 2.0]), np.array(["a"])])
def test_what_is_no_integer_is_refused(wrong):
    for call in (ENC.decode, ENC.decode_bytes):
        with pytest.raises(gpt2fast.InputTypeError, match="integers"):
            call(wrong)


def test_ids_are_one_row():
    with pytest.raises(gpt2fast.InputError, match="2 dimensions; expected one"):
        ENC.decode(np.zeros((2, 2), np.uint16))


@pytest.mark.parametrize("token", ["no such token", b"\xff\xff\xff", "", "hello world"])
def test_unknown_single_tokens(token):
    with pytest.raises(gpt2fast.UnknownTokenError):
        ENC.encode_single_token(token)


# Streams


@given(ids_of_gpt2, st.sampled_from(["replace", "ignore", "backslashreplace", "surrogateescape"]))
def test_a_stream_gives_what_decode_gives(ids, errors):
    stream = ENC.decode_stream(errors)
    parts = [stream.feed(token) for token in ids]
    assert "".join(parts) + stream.flush() == ENC.decode(ids, errors)


@given(st.text())
def test_a_stream_never_breaks_a_character(text):
    text = "".join(c for c in text if not "\ud800" <= c <= "\udfff")
    stream, shown = ENC.decode_stream(), ""
    for token in ENC.encode_ordinary(text):
        shown += stream.feed(token)
        assert text.startswith(shown)
    assert shown == text
    assert stream.flush() == ""


def test_a_stream_starts_anew_after_flush():
    stream = ENC.decode_stream()
    assert [stream.feed(token) for token in [12520, 98]] == [" ", ""]
    assert stream.flush() == "\ufffd"
    assert stream.feed(31373) == "hello"
    with pytest.raises(gpt2fast.UnknownTokenError):
        stream.feed(50257)
    assert stream.feed(995) == " world"


def test_a_stream_refuses_what_decode_refuses():
    no_character, half_a_character = 187, 12520  # the byte 0xff; a space and two of the four bytes of an emoji
    strict = ENC.decode_stream(errors="strict")
    with pytest.raises(UnicodeDecodeError):
        strict.feed(no_character)
    assert strict.feed(half_a_character) == " "
    with pytest.raises(UnicodeDecodeError):
        strict.flush()
