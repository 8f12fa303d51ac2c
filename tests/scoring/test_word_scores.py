"""Sums by word and by span: which tokens count to which word, and what a border through a token does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError

TEXT = "The king's daughter — a girl  of “seven” — said: No!\r\n\r\n\tThen she went… 🦊🦊 away. "


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


def test_words_have_the_space_before_them_and_their_punctuation(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score("The cat  sat, on 'the mat'.\n")
    words = score.by_word()
    assert [word.text for word in words] == ["The", "cat", "sat,", "on", "'the", "mat'."]
    assert [score.text[slice(*word.span)] for word in words] == [word.text for word in words]
    assert sum(word.num_tokens for word in words) == len(score) - 1  # the newline at the end is no word's
    by_hand = {}
    for word in words:
        start, end = word.span
        by_hand[word.span] = sum(
            token.surprisal
            for token in score.tokens
            if start <= next((i for i in range(token.span[0], len(score.text)) if score.text[i] > " "), 99) < end
        )
    assert [word.surprisal for word in words] == pytest.approx(list(by_hand.values()))
    assert all(word.exact for word in words)


def test_punctuation_on_its_own(lm: gpt2fast.LanguageModel) -> None:
    words = lm.score("(I don't) pay €3.50—more…! -- 'tis so").by_word("separate")
    assert [word.text for word in words] == [
        *("(", "I", "don't", ")", "pay", "€", "3.50—more", "…!", "--", "'", "tis", "so")
    ]


@given(st.text(st.sampled_from("ab .,'é🦊\n\t\u00a0"), max_size=30), st.sampled_from(["attached", "separate"]))
def test_every_token_but_white_space_at_the_end_counts_once(lm: gpt2fast.LanguageModel, text: str, way: Any) -> None:
    score = lm.score(text)
    words = score.by_word(way)
    count = sum(word.num_tokens for word in words)
    assert sum(word.log_probability for word in words) == pytest.approx(score.log_probabilities[:count].sum())
    assert all(token.text.isspace() for token in score.tokens[count:])  # type: ignore[union-attr]
    assert "".join(str(word.text) for word in words) == "".join(text.split())
    if way == "attached":
        assert all(word.exact for word in words)


def test_any_spans(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score(TEXT)
    middle = TEXT.index("\r")
    first, second = score.by_spans([(0, middle), (middle, len(TEXT))])
    assert first.log_probability + second.log_probability == pytest.approx(score.log_likelihood)
    assert second.text == TEXT[middle:]
    (whole,) = score.by_spans([(0, len(TEXT))])
    assert (whole.num_tokens, whole.exact) == (len(score), True)
    (nothing,) = score.by_spans([(3, 3)])
    assert (nothing.num_tokens, nothing.log_probability) == (0, 0)


def test_a_border_through_a_token(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score("Once upon a time")
    assert [token.text for token in score.tokens] == ["Once", " upon", " a", " time"]
    head, tail, clean = score.by_spans([(0, 7), (7, 11), (9, 16)])
    assert (head.num_tokens, head.exact) == (2, False)  # "upon" begins here
    assert (tail.num_tokens, tail.exact) == (1, False)
    assert (clean.num_tokens, clean.exact) == (2, True)  # the space before "a" is no matter


def test_bytes(lm: gpt2fast.LanguageModel) -> None:
    words = lm.score(b"caf\xe9 \xff\xfe. ok").by_word("separate")
    assert [word.text for word in words] == [b"caf\xe9", b"\xff\xfe", b".", b"ok"]


@pytest.mark.parametrize("text", ["", b"", "  \n"])
def test_no_words(lm: gpt2fast.LanguageModel, text: str | bytes) -> None:
    assert lm.score(text).by_word() == []


@pytest.mark.parametrize(
    ("spans", "error", "words"),
    [
        ([(0, 4)], InputError, "spans[0] goes from 0 to 4; the text has 3"),
        ([(0, 1), (2, 1)], InputError, "spans[1] goes from 2 to 1"),
        ([(-1, 1)], InputError, "spans[0] is -1"),
        ([3], InputTypeError, "spans[0] is 3"),
        ([(0, 1.5)], InputTypeError, "spans[0] is 1.5"),
    ],
)
def test_refusals(lm: gpt2fast.LanguageModel, spans: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        lm.score("abc").by_spans(spans)
    assert words in str(caught.value)
    with pytest.raises(InputError, match="punctuation is 'no'"):
        lm.score("abc").by_word("no")  # type: ignore[arg-type]
