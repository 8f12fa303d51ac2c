"""Multiple choice: each choice scored as alone, from one reading of the context, at the border that people mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_model import ToyModel

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.scoring.score import score_choices, score_texts


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def letters(data: Path) -> gpt2fast.Tokenizer:
    """A tokenizer of 270 tokens: the bytes and a few more."""
    return gpt2fast.Tokenizer.from_pretrained(data / "generation" / "g-stop-strings" / "model")


CONTEXT = "There was once a poor woodcutter who lived with his wife and his two children. " * 3 + "The boy was called"
CHOICES = [" Hansel", " Gretel.", " the king of the golden mountain", " a", " Hansel and " * 30, ", and"]


def test_each_choice_is_scored_as_alone(lm: gpt2fast.LanguageModel) -> None:
    scores = lm.score_choices(CONTEXT, CHOICES)
    for score, choice in zip(scores, CHOICES, strict=True):
        alone = lm.score(choice, context=CONTEXT)
        assert score.text == choice
        for name in ("ids", "spans", "log_probabilities", "ranks", "entropies"):
            assert getattr(score, name).tolist() == getattr(alone, name).tolist()
    # And as from one call of the network over context and choice.
    for score in scores:
        before = [lm.tokenizer.eot_token, *lm.tokenizer.encode_ordinary(CONTEXT)]
        logits = lm.model([*before, *score.ids[:-1]])[len(before) - 1 :].astype(np.float64)
        logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected = logarithms[np.arange(len(score)), score.ids]
        np.testing.assert_allclose(score.log_probabilities, expected, atol=1e-5)
        assert score.is_greedy == (logits.argmax(axis=1) == score.ids).all()


def test_without_end_of_text_before_the_context(lm: gpt2fast.LanguageModel) -> None:
    (score,) = lm.score_choices(CONTEXT, [" Hansel"], bos=False)
    before = lm.tokenizer.encode_ordinary(CONTEXT)
    logits = lm.model([*before, *score.ids[:-1]])[len(before) - 1 :].astype(np.float64)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert score.log_likelihood == pytest.approx(logarithms[np.arange(len(score)), score.ids].sum(), abs=1e-5)
    # There must be something to come after.
    assert lm.score_choices("", ["Once"], bos=False)[0].log_likelihood == lm.score("Once").log_likelihood


@pytest.mark.parametrize(
    ("context", "choice", "stem", "text"),
    [
        ("Answer: ", "yes", "Answer:", " yes"),
        ("Answer:\n\n", "yes", "Answer:", "\n\nyes"),
        ("Answer:", " yes", "Answer:", " yes"),
        ("\t ", "yes", "", "\t yes"),
        (b"Answer: ", b"yes", b"Answer:", b" yes"),
    ],
)
def test_space_at_the_end_of_the_context_goes_to_the_choices(
    lm: gpt2fast.LanguageModel, context: Any, choice: Any, stem: Any, text: Any
) -> None:
    (score,) = lm.score_choices(context, [choice])
    assert score.text == text
    assert score.log_likelihood == lm.score(text, context=stem).log_likelihood
    # Nothing of context or choice is lost, and the ids are those of both together.
    both = lm.tokenizer.encode_ordinary(stem) + score.ids.tolist()
    assert both == lm.tokenizer.encode_ordinary(context + choice)


def test_a_choice_that_would_melt_into_the_context_keeps_its_border(lm: gpt2fast.LanguageModel) -> None:
    (score,) = lm.score_choices("Once upo", ["n"])
    assert lm.tokenizer.decode(score.ids.tolist()) == "n"
    assert len(lm.tokenizer.encode_ordinary("Once upon")) == 2  # " upon" is one token


@given(context=st.integers(0, 90), lengths=st.lists(st.integers(1, 90), max_size=8), n_ctx=st.integers(1, 120))
def test_any_lengths(letters: gpt2fast.Tokenizer, context: int, lengths: list[int], n_ctx: int) -> None:
    before = ("klmno" * 20)[:context]
    choices = ["".join(chr(97 + (7 * i + n) % 26) for i in range(n)) for n in lengths]
    scores = score_choices(ToyModel(n_ctx=n_ctx), letters, before, choices)
    for score, choice in zip(scores, choices, strict=True):
        (alone,) = score_texts(ToyModel(n_ctx=n_ctx), letters, [choice], context=before)
        assert score.log_probabilities.tolist() == alone.log_probabilities.tolist()


def test_lengths_to_divide_by(lm: gpt2fast.LanguageModel) -> None:
    (text,) = lm.score_choices("Le", [" café"])
    (of_bytes,) = lm.score_choices(b"Le", [" café".encode()])
    assert (text.num_characters, text.num_bytes) == (of_bytes.num_characters, of_bytes.num_bytes) == (5, 6)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("a", "bc"), InputTypeError, "choices is one str"),
        (("a", [1]), InputTypeError, "choices[0] is of type int"),
        ((1, ["a"]), InputTypeError, "context is of type int"),
        (("a", ["b", b"c"]), InputTypeError, "choices[1] is of type bytes, context of type str"),
        (("a ", ["b", ""]), InputError, "choices[1] is empty"),
    ],
)
def test_refusals(lm: gpt2fast.LanguageModel, arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        lm.score_choices(*arguments)
    assert words in str(caught.value)
