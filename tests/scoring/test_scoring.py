"""How probable a text is: the numbers against plain formulas, windows, batches, spans, and texts that are none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_model import ToyModel

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.scoring.score import score_texts

TEXT = "The king's daughter — a girl of seven — said: “No!”\r\n\r\n\tThen she went… 🦊🦊 away."


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


def toy(n_ctx: int, logits: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]) -> ToyModel:
    """A network of 270 tokens whose logits are a function of all ids that it sees, so that a wrong window shows."""
    return ToyModel(270, n_ctx, 269, lambda ids, _: logits(np.array(ids)))


def hashed(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    return (3 * np.random.default_rng(ids.tolist()).standard_normal(270)).astype(np.float32)


@pytest.fixture(scope="module")
def letters(data: Path) -> gpt2fast.Tokenizer:
    """A tokenizer of 270 tokens: the bytes and a few more."""
    return gpt2fast.Tokenizer.from_pretrained(data / "generation" / "g-stop-strings" / "model")


# The numbers


@pytest.mark.parametrize("text", ["Once upon a time", TEXT, "x", b"caf\xe9 \xff\x00"])
def test_numbers_are_those_of_the_formulas(lm: gpt2fast.LanguageModel, text: str | bytes) -> None:
    score = lm.score(text)
    ids = lm.tokenizer.encode_ordinary(text)
    assert score.ids.tolist() == ids
    logits = lm.model([lm.tokenizer.eot_token, *ids[:-1]]).astype(np.float64)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    of_tokens = logarithms[np.arange(len(ids)), ids]
    np.testing.assert_allclose(score.log_probabilities, of_tokens, atol=1e-5)
    assert score.ranks.tolist() == [1 + int((row > row[i]).sum()) for row, i in zip(logits, ids, strict=True)]
    entropies = -(np.exp(logarithms) * logarithms).sum(axis=1) / math.log(2)
    np.testing.assert_allclose(score.entropies, entropies, atol=1e-5)
    np.testing.assert_allclose(score.surprisal, -of_tokens / math.log(2), atol=1e-5)
    assert score.log_likelihood == pytest.approx(of_tokens.sum())
    assert score.perplexity == pytest.approx(math.exp(-of_tokens.mean()))
    size = len(text if isinstance(text, bytes) else text.encode())
    assert score.bits_per_byte == pytest.approx(-of_tokens.sum() / math.log(2) / size)


def test_a_sure_model_and_one_that_knows_nothing(letters: gpt2fast.Tokenizer) -> None:
    ids = [269, *letters.encode_ordinary("abc")]

    def sure(seen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        out = np.full(270, -np.inf, np.float32)
        out[ids[len(seen)]] = 5
        return out

    (score,) = score_texts(toy(8, sure), letters, ["abc"])
    assert (score.perplexity, score.bits_per_byte) == (1, 0)
    assert score.ranks.tolist() == [1, 1, 1]
    assert score.entropies.tolist() == [0, 0, 0]
    (score,) = score_texts(toy(8, lambda _: np.zeros(270, np.float32)), letters, ["abc"])
    assert score.perplexity == pytest.approx(270)
    assert score.ranks.tolist() == [1, 1, 1]  # nothing is more probable
    np.testing.assert_allclose(score.entropies, math.log2(270))


def test_a_token_without_any_probability(letters: gpt2fast.Tokenizer) -> None:
    def never(_: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        out = np.zeros(270, np.float32)
        out[letters.encode_ordinary("a")] = -np.inf
        return out

    (score,) = score_texts(toy(8, never), letters, ["a"])
    assert score.log_probabilities[0] == -np.inf
    assert (score.perplexity, score.bits_per_byte, score.ranks[0]) == (math.inf, math.inf, 270)
    np.testing.assert_allclose(score.entropies, math.log2(269))


@pytest.mark.parametrize("text", ["", b""])
def test_empty_text(lm: gpt2fast.LanguageModel, text: str | bytes) -> None:
    score = lm.score(text)
    assert (len(score), score.tokens, score.log_likelihood, score.spans.shape) == (0, [], 0, (0, 2))
    assert math.isnan(score.perplexity)
    assert math.isnan(score.bits_per_byte)


def test_padding_of_the_vocabulary_has_no_probability(letters: gpt2fast.Tokenizer) -> None:
    def padded(seen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return np.concatenate([hashed(seen), np.full(50, 50, np.float32)])

    model = toy(16, padded)
    model.config.vocab_size = 320
    (plain,) = score_texts(toy(16, hashed), letters, ["abc"])
    (score,) = score_texts(model, letters, ["abc"])
    assert score.log_probabilities.tolist() == plain.log_probabilities.tolist()
    assert score.ranks.tolist() == plain.ranks.tolist()


# Context and windows


def test_context_is_read_and_not_scored(lm: gpt2fast.LanguageModel) -> None:
    context, text = "The fox ran", " into the wood"
    both = lm.tokenizer.encode_ordinary(context) + lm.tokenizer.encode_ordinary(text)
    logits = lm.model([lm.tokenizer.eot_token, *both[:-1]]).astype(np.float64)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    score = lm.score(text, context=context)
    first = len(both) - len(score)
    expected = logarithms[np.arange(len(both)), both][first:]
    np.testing.assert_allclose(score.log_probabilities, expected, atol=1e-5)
    assert [token.text for token in score.tokens] == [" into", " the", " wood"]


@given(
    length=st.integers(0, 120),
    n_ctx=st.integers(1, 80),
    stride=st.integers(1, 80) | st.none(),
    context=st.integers(0, 40),
)
def test_windows_see_what_they_should(
    letters: gpt2fast.Tokenizer, length: int, n_ctx: int, stride: int | None, context: int
) -> None:
    stride = None if stride is None else min(stride, n_ctx)
    model = toy(n_ctx, hashed)
    text, before = ("abcdefghij" * 20)[:length], ("klmno" * 20)[:context]
    (score,) = score_texts(model, letters, [text], context=before, stride=stride)
    ids = [269, *letters.encode_ordinary(before), *letters.encode_ordinary(text)]
    step = stride or max(n_ctx // 2, 1)
    # The slow twin: each token's window, found on its own.
    done, expected = len(ids) - len(score) - 1, []
    while len(expected) < len(score):
        end = min(max(n_ctx, done + step), len(ids) - 1)
        start = max(end - n_ctx, 0)
        for place in range(done, end):
            logits = hashed(np.array(ids[start : place + 1])).astype(np.float64)
            expected.append(logits[ids[place + 1]] - np.log(np.exp(logits).sum()))
        done = end
    np.testing.assert_allclose(score.log_probabilities, expected, atol=1e-5)
    assert model.most <= 64  # never the logits of the whole text at once


def test_long_text_of_a_real_model(lm: gpt2fast.LanguageModel) -> None:
    text = "The old man went home.\n" * 120  # 841 tokens; the context is 512
    score = lm.score(text, stride=512)
    logits = lm.model([lm.tokenizer.eot_token, *score.ids[:511]]).astype(np.float64)
    first = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(score.log_probabilities[:512], first[np.arange(512), score.ids[:512]], atol=1e-5)
    assert len(score) > 512
    assert lm.score(text).perplexity == pytest.approx(score.perplexity, rel=0.05)


# Batches


def test_a_batch_scores_each_text_as_alone(lm: gpt2fast.LanguageModel) -> None:
    texts = ["", "a", TEXT, "Once upon a time there was a king", "b", TEXT * 8, "no", b"\xff", "The fox"] * 3
    for got, text in zip(lm.score_batch(texts), texts, strict=True):
        alone = lm.score(text)
        assert got.text == text
        for name in ("ids", "spans", "log_probabilities", "ranks", "entropies"):
            assert getattr(got, name).tolist() == getattr(alone, name).tolist()


@given(st.lists(st.integers(0, 150), max_size=12))
def test_any_batch_of_lengths(letters: gpt2fast.Tokenizer, lengths: list[int]) -> None:
    texts = ["".join(chr(97 + (3 * i + n) % 26) for i in range(n)) for n in lengths]
    scores = score_texts(toy(100, hashed), letters, texts)
    for score, text in zip(scores, texts, strict=True):
        (alone,) = score_texts(toy(100, hashed), letters, [text])
        assert score.text == text
        assert score.log_probabilities.tolist() == alone.log_probabilities.tolist()


def test_short_texts_go_together(letters: gpt2fast.Tokenizer) -> None:
    model = toy(64, hashed)
    score_texts(model, letters, ["abcd"] * 32)
    assert model.calls == [[4] * 32]


def test_the_context_is_read_once(letters: gpt2fast.Tokenizer) -> None:
    model = toy(300, hashed)
    context = "klmno" * 10
    texts = ["ab", "abc" * 40, "", "a", "b" * 90]
    scores = score_texts(model, letters, texts, context=context)
    read = sum(len(letters.encode_ordinary(text)) for text in (context, *texts))
    assert sum(map(sum, model.calls)) == read  # the last token of a text is not read, but end-of-text is
    for score, text in zip(scores, texts, strict=True):
        (alone,) = score_texts(toy(300, hashed), letters, [text], context=context)
        assert score.log_probabilities.tolist() == alone.log_probabilities.tolist()


# Text and spans


def test_spans_cover_the_text(lm: gpt2fast.LanguageModel) -> None:
    tokens = lm.score(TEXT).tokens
    assert tokens[0].span[0] == 0
    assert tokens[-1].span[1] == len(TEXT)
    for token, following in itertools.pairwise(tokens):
        assert token.span[0] <= following.span[0] <= token.span[1] <= following.span[1]
        assert token.text == TEXT[slice(*token.span)]


def test_bytes_have_spans_of_bytes(lm: gpt2fast.LanguageModel) -> None:
    text = b"caf\xe9 \xff\r\n"
    assert b"".join(token.text for token in lm.score(text).tokens) == text  # type: ignore[misc]
    assert lm.score("Once upon").log_probabilities.tolist() == lm.score(b"Once upon").log_probabilities.tolist()


def test_markers_in_the_text_are_text(lm: gpt2fast.LanguageModel) -> None:
    assert lm.tokenizer.eot_token not in lm.score("a<|endoftext|>b").ids.tolist()


# What is refused


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda lm: lm.score(5), InputTypeError, "texts[0] is of type int"),
        (lambda lm: lm.score("a", context=1), InputTypeError, "context is of type int"),
        (lambda lm: lm.score("a", context=[1.5]), InputTypeError, "an id of context is 1.5"),
        (lambda lm: lm.score([4096]), InputError, "texts[0] has token 4096; the model's vocabulary has 4096 tokens"),
        (lambda lm: lm.score([-1]), InputError, "an id of texts[0] is -1"),
        (lambda lm: lm.score_batch("abc"), InputTypeError, "texts is one str"),
        (lambda lm: lm.score_batch(["a", None]), InputTypeError, "texts[1] is of type NoneType"),
        (lambda lm: lm.score("a", stride=0), InputError, "stride is 0"),
        (lambda lm: lm.score("a", stride=513), InputError, "stride is 513; the model's context is 512"),
        (lambda lm: lm.score("a", stride=1.5), InputTypeError, "stride is 1.5"),
        (lambda lm: lm.score("a\ud800"), InputError, "lone surrogate"),
    ],
)
def test_refusals_name_the_argument(lm: gpt2fast.LanguageModel, call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        call(lm)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite(letters: gpt2fast.Tokenizer, value: float) -> None:
    def broken(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        out = hashed(ids)
        out[7] = value
        return out

    for text in ("ab", "ab" * 50):
        with pytest.raises(InputError, match="not finite"):
            score_texts(toy(40, broken), letters, [text])


def test_without_end_of_text(letters: gpt2fast.Tokenizer) -> None:
    model = toy(16, hashed)
    model.config.eos_token_id = None
    assert len(score_texts(model, letters, ["ab"])[0]) == 2  # the tokenizer has one
    model.config.vocab_size = 200
    with pytest.raises(InputError, match="end-of-text"):
        score_texts(model, letters, ["ab"])


def test_tokens_that_the_model_does_not_have(letters: gpt2fast.Tokenizer) -> None:
    model = toy(16, hashed)
    model.config.eos_token_id, model.config.vocab_size = 60, 61
    with pytest.raises(InputError, match=r"texts\[0\] has token .* vocabulary has 61"):
        score_texts(model, letters, ["abc"])
