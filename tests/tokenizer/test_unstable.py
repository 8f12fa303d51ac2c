"""Which tokens may still change when the text goes on: the same answer as tiktoken's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_reference import END_OF_TEXT, gpt2, reference

ENC = gpt2()
ends = st.sampled_from(
    ["hel", "lo", " ", "  ", "\n", "\t", "é", "漢", "🙂"[:1], "x", "1", "'", "'r", " fan", "ta", "=", "\u00a0"]
)


def same(text, **keywords):
    stable, completions = ENC.encode_with_unstable(text, **keywords)
    expected_stable, expected = reference().encode_with_unstable(text, **keywords)
    assert stable == expected_stable
    assert sorted(completions) == sorted(map(list, expected))
    return stable, completions


@pytest.mark.parametrize(
    "text", ["", "hello", "hello fanta", "a ", "a  ", "a\n\n", " \t ", "it'", "the number 12", "naïve é", "日本"]
)
def test_known_endings(text):
    stable, completions = same(text)
    assert text.encode().startswith(ENC.decode_bytes(stable))
    assert all(ENC.decode_bytes(stable + sequence).startswith(text.encode()) for sequence in completions)


@settings(max_examples=40)
@given(st.lists(ends, max_size=4).map("".join))
def test_any_ending(text):
    same(text)


def test_special_tokens():
    assert same(f"hello{END_OF_TEXT}", allowed_special="all") == ([31373, 50256], [])
    same(f"{END_OF_TEXT}hel", allowed_special={END_OF_TEXT})
    same(f"hel{END_OF_TEXT}", disallowed_special=())
