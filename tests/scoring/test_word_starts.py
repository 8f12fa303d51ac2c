"""Probabilities of words, not of their tokens: the numbers of wordsprobability and minicons, and the formula."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast
from gpt2fast.errors import InputError
from gpt2fast.scoring.word_starts import log_shares

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "surprisal" / "reference.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


def test_wordsprobability_s_numbers(lm: gpt2fast.LanguageModel) -> None:
    for score, words in zip(lm.score_batch(REFERENCE["sentences"]), REFERENCE["wordsprobability"], strict=True):
        found = score.by_word(bow_correction=True)
        assert [word.text for word in found] == [word for word, _, _ in words]
        assert [word.surprisal for word in found] == pytest.approx([value for _, value, _ in words], abs=1e-3)
        plain = score.by_word()
        assert [word.surprisal for word in plain] == pytest.approx([value for _, _, value in words], abs=1e-3)


def test_minicons_numbers(lm: gpt2fast.LanguageModel) -> None:
    expected = REFERENCE["word_score_tokenized_corrected"]
    for score, words in zip(lm.score_batch(REFERENCE["sentences"]), expected, strict=True):
        found = score.by_word(bow_correction="minicons")
        assert [word.surprisal for word in found] == pytest.approx([value for _, value in words], abs=1e-3)


TEXTS = st.lists(st.sampled_from(["the", "king", "'s", "x1", "Zürich", ".", "\n", "  "]), min_size=1, max_size=8)


@given(words=TEXTS, context=st.sampled_from(["", "He said:"]), bos=st.booleans())
def test_the_formula(lm: gpt2fast.LanguageModel, words: list[str], context: str, bos: bool) -> None:
    text = (" " if context else "") + " ".join(words)
    score = lm.score(text, context=context, bos=bos)
    if not len(score):
        return
    tokenizer = lm.tokenizer
    before = [tokenizer.eot_token] * bos + tokenizer.encode_ordinary(context)
    if not before:
        before = tokenizer.encode_ordinary(text)[:1]
    logits = lm.model([*before, *score.ids]).astype(np.float64)[len(before) - 1 :]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    starts = [i for i in range(tokenizer.n_vocab) if tokenizer.decode_single_token_bytes(i)[:1] == b" "]
    starting = p[:, starts].sum(axis=1) + p[:, tokenizer.eot_token]
    begins = [id in set(starts) for id in score.ids]
    expected = []
    for i, id in enumerate(score.ids):
        value = math.log(p[i, id])
        if i + 1 == len(score) or begins[i + 1]:
            value += math.log(starting[i + 1])
        if begins[i]:
            value -= math.log(starting[i])
        elif i == 0 and bos and not context:
            value -= math.log(1 - p[i, starts].sum())
        expected.append(value)
    (whole,) = score.by_spans([(0, len(score.text))], bow_correction=True)
    assert whole.log_probability == pytest.approx(sum(expected), abs=1e-4)


def test_words_of_a_batch_are_those_of_each_text_alone(lm: gpt2fast.LanguageModel) -> None:
    texts = [*REFERENCE["sentences"], "", " ", "the king " * 300]
    for score, text in zip(lm.score_batch(texts), texts, strict=True):
        assert score.by_word(bow_correction=True) == lm.score(text).by_word(bow_correction=True)


def test_shares() -> None:
    logits = np.array([[0, 1, 2, -np.inf], [5, 5, 5, 5], [np.nan, 0, 0, 0], [np.inf, 0, 0, 0]], np.float32)
    found = log_shares(logits, [np.array([0, 2]), np.array([3]), np.array([], np.int64)])
    e = np.exp([0.0, 1.0, 2.0])
    np.testing.assert_allclose(found[:2, 0], [math.log((e[0] + e[2]) / e.sum()), math.log(0.5)])
    assert found[0, 1:].tolist() == [-math.inf, -math.inf]
    assert np.isnan(found[2:]).all()


def test_refusals(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score("Once upon a time")
    with pytest.raises(InputError, match="bow_correction is 'yes'; expected True, False or 'minicons'"):
        score.by_word(bow_correction="yes")  # type: ignore[arg-type]
    kept = pickle.loads(pickle.dumps(score))
    assert kept.by_word() == score.by_word()
    with pytest.raises(InputError, match="an unpickled score"):
        kept.by_word(bow_correction=True)
