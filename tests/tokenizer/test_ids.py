"""There is one way into ids: what is no token id is refused, by place and value, by every call that takes ids."""

from __future__ import annotations

import array

import numpy as np
import pytest

import gpt2fast

ENC = gpt2fast.get_encoding("gpt2")

CALLS = {
    "decode": ENC.decode,
    "decode_bytes": ENC.decode_bytes,
    "decode_tokens_bytes": ENC.decode_tokens_bytes,
    "decode_with_offsets": ENC.decode_with_offsets,
    "decode_batch": lambda tokens: ENC.decode_batch([tokens])[0],
    "decode_bytes_batch": lambda tokens: ENC.decode_bytes_batch([tokens])[0],
}
TEXTS = {"decode": "hello world", "decode_batch": "hello world", "decode_with_offsets": ("hello world", [0, 5])}


@pytest.mark.parametrize("name", CALLS)
def test_whole_numbers_of_any_kind_are_ids(name):
    expected = CALLS[name]([31373, 995])
    assert expected == TEXTS.get(name, expected)
    for tokens in (
        (31373, 995),
        iter([31373, 995]),
        [np.int64(31373), np.uint16(995)],
        np.array([31373, 995]),
        np.array([31373, 0, 995, 0], np.uint16)[::2],
        np.array([31373, 995], np.int32),
        array.array("i", [31373, 995]),
        {31373: "a", 995: "b"}.keys(),
    ):
        assert CALLS[name](tokens) == expected


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrong", [1.5, "5", None, b"5", [5], 2 + 0j, np.float32(5)])
def test_what_is_no_whole_number_is_no_id(name, wrong):
    for tokens in ([31373, wrong], iter([31373, wrong]), (31373, wrong)):
        with pytest.raises(gpt2fast.InputTypeError, match=r"tokens\[1\] is .*; token ids are integers"):
            CALLS[name](tokens)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrong", [-1, 50257, 2**32, -(2**70), 10**30])
def test_whole_numbers_that_are_no_ids(name, wrong):
    for tokens in ([31373, wrong], iter([31373, wrong])):
        with pytest.raises(gpt2fast.UnknownTokenError, match=rf"tokens\[1\] is {wrong}; 'gpt2' has the ids 0 to 50256"):
            CALLS[name](tokens)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "wrong", [5, None, 1.5, "hello", b"hello", np.zeros((2, 2), int), np.array(["a"]), np.zeros(2)]
)
def test_what_is_no_list_of_ids(name, wrong):
    with pytest.raises(gpt2fast.Error):
        CALLS[name](wrong)


def test_one_token():
    stream = ENC.decode_stream()
    for call in (stream.feed, ENC.decode_single_token_bytes):
        assert call(np.int64(995)) in (" world", b" world")
        for wrong in (1.5, "5", None, [5]):
            with pytest.raises(gpt2fast.InputTypeError, match="token is .*; token ids are integers"):
                call(wrong)
        for unknown in (-1, 50257, 2**40):
            with pytest.raises(gpt2fast.UnknownTokenError, match=f"token is {unknown}; 'gpt2' has the ids 0 to 50256"):
                call(unknown)
    assert stream.flush() == ""


@pytest.mark.parametrize("wrong", [5, None, 1.5, "hello", b"hello"])
def test_what_is_no_batch(wrong):
    for call in (ENC.decode_batch, ENC.decode_bytes_batch):
        with pytest.raises(gpt2fast.InputTypeError, match="batch is of type"):
            call(wrong)


def test_encode_single_token():
    assert ENC.encode_single_token(" world") == ENC.encode_single_token(b" world") == 995
    assert ENC.encode_single_token(bytearray(b"<|endoftext|>")) == 50256
    for wrong in (5, 1.5, None, [32]):  # bytes(5) would be five zero bytes
        with pytest.raises(gpt2fast.InputTypeError, match="expected str or contiguous bytes"):
            ENC.encode_single_token(wrong)
    for unknown in ("\ud800", "no such token", "", b"\xff\xfe\xfd"):
        with pytest.raises(gpt2fast.UnknownTokenError):
            ENC.encode_single_token(unknown)


def test_errors_that_python_does_not_know():
    with pytest.raises(gpt2fast.InputError, match="errors is 'polite'"):
        ENC.decode([447], errors="polite")
    with pytest.raises(UnicodeDecodeError):
        ENC.decode([447], errors="strict")


# Names that programs for tiktoken use


def test_names_of_tiktoken():
    assert ENC._special_tokens == {"<|endoftext|>": 50256}
    assert [ENC._special_tokens["<|endoftext|>"], *ENC.encode_ordinary("hello world")] == [50256, 31373, 995]
    assert gpt2fast.encoding_for_model("gpt2") is gpt2fast.encoding_for_model("distilgpt2") is ENC
    assert gpt2fast.list_encoding_names() == ["gpt2", "r50k_base"]
    assert all(gpt2fast.get_encoding(name).n_vocab == 50257 for name in gpt2fast.list_encoding_names())
    for unknown in ("gpt-4", "", None):
        with pytest.raises(KeyError, match="no encoding is known for the model"):
            gpt2fast.encoding_for_model(unknown)
