"""minicons' names and numbers: tests/data/surprisal holds what minicons 0.3.39 gave for the demo model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpt2fast
from gpt2fast.errors import InputError
from gpt2fast.integrations.minicons import IncrementalLMScorer

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "surprisal" / "reference.json").read_text("utf-8"))
SENTENCES = REFERENCE["sentences"]
PREFIXES, STIMULI = REFERENCE["conditional"]
BITS = {"surprisal": True, "base_two": True}

Call = Callable[[IncrementalLMScorer], Any]


@pytest.fixture(scope="module")
def scorer() -> IncrementalLMScorer:
    return IncrementalLMScorer("demo")


def same(found: Any, expected: Any) -> None:
    """Lists of the same shape, texts and whole numbers alike, other numbers within 1e-3 bits."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=6e-4)
    else:
        assert found == expected


CALLS: dict[str, Call] = {
    "token_score": lambda s: s.token_score(SENTENCES, bos_token=True),
    "token_score_bits_rank": lambda s: s.token_score(SENTENCES[:3], bos_token=True, rank=True, **BITS),
    "token_score_without_bos": lambda s: s.token_score(SENTENCES[:3], **BITS),
    "token_score_corrected": lambda s: s.token_score(SENTENCES, bos_token=True, bow_correction=True, **BITS),
    "token_score_eos": lambda s: s.token_score(SENTENCES[:3], bos_token=True, eos_token=True),
    "token_score_prob": lambda s: s.token_score(SENTENCES[:3], bos_token=True, prob=True),
    "token_score_decode": lambda s: s.token_score(SENTENCES[:3], bos_token=True, decode=True),
    "word_score_tokenized": lambda s: s.word_score_tokenized(SENTENCES, str.split, bos_token=True, **BITS),
    "word_score_tokenized_corrected": lambda s: s.word_score_tokenized(
        SENTENCES, str.split, bos_token=True, bow_correction=True, **BITS
    ),
    "sequence_score": lambda s: s.sequence_score(SENTENCES, bos_token=True),
    "sequence_score_sum_bits": lambda s: s.sequence_score(
        SENTENCES, lambda x: -x.sum(0).item(), bos_token=True, base_two=True
    ),
    "sequence_score_without_bos": lambda s: s.sequence_score(SENTENCES),
    "conditional_score": lambda s: s.conditional_score(PREFIXES, STIMULI),
    "conditional_score_bos": lambda s: s.conditional_score(PREFIXES, STIMULI, bos_token=True),
    "conditional_score_sum_bits": lambda s: s.conditional_score(
        PREFIXES, STIMULI, bos_token=True, base_two=True, reduction=lambda x: x.sum(0).item()
    ),
    "conditional_score_corrected": lambda s: s.conditional_score(
        PREFIXES, STIMULI, bos_token=True, base_two=True, bow_correction=True, reduction=lambda x: x.sum(0).item()
    ),
    "conditional_score_separator": lambda s: s.conditional_score(PREFIXES, STIMULI, bos_token=True, separator=", "),
    "conditional_word_score_tokenized": lambda s: s.conditional_word_score_tokenized(
        PREFIXES, STIMULI, str.split, bos_token=True, **BITS
    ),
    "conditional_word_score_tokenized_corrected": lambda s: s.conditional_word_score_tokenized(
        PREFIXES, STIMULI, str.split, bos_token=True, bow_correction=True, **BITS
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_numbers(scorer: IncrementalLMScorer, name: str) -> None:
    same(CALLS[name](scorer), REFERENCE[name])


def test_one_text_and_a_model_that_is_loaded(scorer: IncrementalLMScorer) -> None:
    same(scorer.token_score(SENTENCES[0]), scorer.token_score([SENTENCES[0]]))
    same(IncrementalLMScorer(scorer.lm).token_score(SENTENCES[0]), scorer.token_score(SENTENCES[0]))
    assert scorer.partial_score("Once upon a", "time") == scorer.conditional_score(["Once upon a"], ["time"])


def test_reductions_get_arrays(scorer: IncrementalLMScorer) -> None:
    (values,) = scorer.sequence_score("Once upon a time", lambda x: x, bos_token=True)
    assert isinstance(values, np.ndarray)
    assert values.tolist() == gpt2fast.load("demo").score("Once upon a time").log_probabilities.tolist()


def test_refusals(scorer: IncrementalLMScorer) -> None:
    with pytest.raises(InputError, match="prob was asked for together with"):
        scorer.token_score("a b", prob=True, surprisal=True)
    with pytest.raises(InputError, match="1 prefixes, 2 stimuli and 2 separators"):
        scorer.conditional_score("a", ["b", "c"])
    with pytest.raises(InputError, match="'cats', which is not in the text"):
        scorer.word_score_tokenized("the cat", lambda text: ["the", "cats"])
