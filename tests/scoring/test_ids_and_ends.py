"""Texts given as token ids, and the probability that a text ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@given(text=st.text(st.sampled_from("aé🦊 \n."), max_size=12))
def test_ids_of_a_text_score_as_the_text(lm: gpt2fast.LanguageModel, text: str) -> None:
    expected = lm.score(text)
    for ids in (expected.ids.tolist(), expected.ids, tuple(expected.ids.tolist())):
        score = lm.score(ids)
        assert score.text == text
        for name in ("ids", "spans", "log_probabilities", "ranks", "entropies"):
            assert getattr(score, name).tolist() == getattr(expected, name).tolist()


def test_ids_that_are_half_a_character_are_bytes(lm: gpt2fast.LanguageModel) -> None:
    ids = lm.tokenizer.encode("🦊")[:-1]
    score = lm.score(ids)
    assert score.text == "🦊".encode()[: len(score.text)]
    assert score.ids.tolist() == ids


def test_any_cut_into_tokens_can_be_scored(lm: gpt2fast.LanguageModel) -> None:
    ids = [lm.tokenizer.encode_single_token(letter) for letter in "king"]
    score = lm.score(ids)
    assert score.text == "king"
    assert [word.num_tokens for word in score.by_word()] == [4]
    assert score.log_likelihood < lm.score("king").log_likelihood


def test_context_as_ids(lm: gpt2fast.LanguageModel) -> None:
    context = lm.tokenizer.encode("Once upon a")
    expected = lm.score(" time", context="Once upon a").log_likelihood
    assert lm.score(" time", context=context).log_likelihood == expected
    assert lm.score(lm.tokenizer.encode(" time"), context=np.array(context)).log_likelihood == expected
    # White space at the end of a context in text stays there, as ids cannot take it.
    spaced = lm.score(lm.tokenizer.encode("time"), context="Once upon a ")
    logits = lm.model([lm.tokenizer.eot_token, *lm.tokenizer.encode("Once upon a"), *lm.tokenizer.encode(" ")])[-1]
    logits = logits.astype(np.float64)
    (first, *_) = lm.tokenizer.encode("time")
    assert spaced.log_probabilities[0] == pytest.approx(logits[first] - np.log(np.exp(logits).sum()), abs=1e-5)


def test_the_end_of_a_text(lm: gpt2fast.LanguageModel) -> None:
    plain, ended = lm.score("The end."), lm.score("The end.", eos=True)
    assert ended.ids.tolist() == [*plain.ids.tolist(), lm.tokenizer.eot_token]
    assert ended.log_probabilities[:-1].tolist() == plain.log_probabilities.tolist()
    logits = lm.model([lm.tokenizer.eot_token, *plain.ids])[-1].astype(np.float64)
    expected = logits[lm.tokenizer.eot_token] - np.log(np.exp(logits).sum())
    assert ended.log_probabilities[-1] == pytest.approx(expected, abs=1e-5)
    assert (ended.tokens[-1].text, ended.tokens[-1].span) == ("", (8, 8))
    assert ended.by_word() == plain.by_word()
    assert ended.by_word(bow_correction=True)[0] == plain.by_word(bow_correction=True)[0]
    assert len(lm.score("", eos=True)) == 1
    assert lm.score_batch(["The end.", plain.ids], eos=True)[1].log_likelihood == ended.log_likelihood
