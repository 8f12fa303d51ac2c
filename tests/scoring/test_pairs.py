"""Pairs of sentences: accuracies, their intervals, and tables by paradigm."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.scoring import ComparedPair, Comparison

PAIRS = [
    {"sentence_good": "The king was dead.", "sentence_bad": "The king were dead.", "UID": "agreement", "n": 1},
    {"sentence_good": "The kings were dead.", "sentence_bad": "The kings was dead.", "UID": "agreement", "n": 2},
    {"sentence_good": "She saw him.", "sentence_bad": "She saw he.", "UID": "case", "n": 1},
    {"sentence_good": "Many kings helped herself.", "sentence_bad": "Many kings helped themselves.", "UID": "wrong"},
    {"sentence_good": "The same.", "sentence_bad": "The same.", "UID": "same"},
]


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


def test_pairs_are_compared_by_their_whole_log_likelihood(lm: gpt2fast.LanguageModel) -> None:
    found = lm.compare(PAIRS)
    for pair, compared in zip(PAIRS, found.pairs, strict=True):
        assert compared.good == lm.score(str(pair["sentence_good"])).log_likelihood
        assert compared.bad == lm.score(str(pair["sentence_bad"])).log_likelihood
        assert compared.correct == (compared.good > compared.bad)
        assert compared.paradigm == pair["UID"]
    assert not found.pairs[-1].correct  # of two that are equally probable neither is better
    assert found.accuracy == found.correct / 5
    plain = lm.compare([(str(pair["sentence_good"]), str(pair["sentence_bad"])) for pair in PAIRS])
    assert [(pair.good, pair.bad) for pair in plain.pairs] == [(pair.good, pair.bad) for pair in found.pairs]
    ended = lm.compare(PAIRS[:1], eos=True)
    assert ended.pairs[0].good == lm.score("The king was dead.", eos=True).log_likelihood


def test_tables(lm: gpt2fast.LanguageModel) -> None:
    found = lm.compare(PAIRS)
    assert {name: len(part) for name, part in found.by_paradigm().items()} == {
        "agreement": 2,
        "case": 1,
        "wrong": 1,
        "same": 1,
    }
    rows = found.rows()
    assert [row["paradigm"] for row in rows] == ["agreement", "case", "wrong", "same", "all"]
    assert sum(row["correct"] for row in rows[:-1]) == rows[-1]["correct"] == found.correct
    assert (rows[-1]["low"], rows[-1]["high"]) == found.interval()
    assert str(found).splitlines()[0].startswith("agreement      2 of     2  100.0%  [34.2%, 100.0%]")
    assert [row["paradigm"] for row in lm.compare(PAIRS, by="n").rows()] == ["1", "2", "all"]


@given(correct=st.integers(0, 400), wrong=st.integers(0, 400), confidence=st.floats(0.01, 0.999))
def test_the_interval_is_where_the_score_test_does_not_reject(correct: int, wrong: int, confidence: float) -> None:
    found = Comparison([ComparedPair(0.0, -1.0)] * correct + [ComparedPair(-1.0, 0.0)] * wrong)
    low, high = found.interval(confidence)
    count = correct + wrong
    if not count:
        assert (low, high) == (0.0, 1.0)
        assert math.isnan(found.accuracy)
        return
    assert 0 <= low <= found.accuracy <= high <= 1
    # At a border the test's statistic is the normal quantile.
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    for border in (low, high):
        if 1e-6 < border < 1 - 1e-6:
            statistic = abs(found.accuracy - border) / math.sqrt(border * (1 - border) / count)
            assert statistic == pytest.approx(z, rel=1e-6, abs=1e-6)
    assert (low == 0) == (correct == 0)
    assert (high == 1) == (wrong == 0)


@pytest.mark.parametrize(
    ("pairs", "error", "words"),
    [
        (["ab"], InputTypeError, "pairs[0] is 'ab'; expected a good and a bad sentence"),
        ([("a", "b"), ("a",)], InputTypeError, "pairs[1] is ('a',)"),
        ([("a", 1)], InputTypeError, "pairs[0] has a sentence of type int"),
        ([{"sentence_good": "a"}], InputError, "pairs[0] has no 'sentence_bad', but 'sentence_good'"),
    ],
)
def test_refusals(lm: gpt2fast.LanguageModel, pairs: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        lm.compare(pairs)
    assert words in str(caught.value)


def test_confidences_that_are_none() -> None:
    for confidence in (0, 1, 2, math.nan):
        with pytest.raises(InputError, match="confidence is"):
            Comparison([]).interval(confidence)
