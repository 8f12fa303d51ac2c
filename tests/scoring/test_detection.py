"""Statistics that tell of a text's author: Fast-DetectGPT, GLTR and Binoculars, by their formulas in NumPy."""

from __future__ import annotations

import hashlib
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from toy_model import ToyModel

import gpt2fast
from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError
from gpt2fast.kernels import cpu
from gpt2fast.model.moments import cross_entropies
from gpt2fast.scoring import binoculars
from gpt2fast.scoring.observed import ObservedModel
from gpt2fast.scoring.score import score_texts

TEXTS = [
    "Once upon a time there was a king",
    "",
    "He bought a second-hand laptop online — for 30 €.",
    "x",
    "The old man went home.\n" * 120,  # 841 tokens; the context is 512
    "Once upon a time there was a fox 🦊",
]


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def other() -> gpt2fast.LanguageModel:
    """A model of the same vocabulary, not quite the same."""
    return gpt2fast.load("demo", dtype="int8")


Rows = npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> Rows:
    values = np.asarray(logits, np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    found: Rows = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return found


def windows(lm: gpt2fast.LanguageModel, text: str) -> Rows:
    """The log-probabilities of all ids before each token of a text, window by window, (T, n_vocab)."""
    ids = [lm.tokenizer.eot_token, *lm.tokenizer.encode_ordinary(text)]
    n_ctx, done, parts = lm.model.config.n_ctx, 0, [np.empty((0, lm.tokenizer.n_vocab))]
    while done < len(ids) - 1:
        end = min(max(n_ctx, done + n_ctx // 2), len(ids) - 1)
        start = max(end - n_ctx, 0)
        parts.append(log_softmax(lm.model(ids[start:end])[done - start :]))
        done = end
    return np.concatenate(parts)


# Distributions


finite = st.floats(-30, 30, width=32)
_rows = arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(1, 40)), elements=finite)


@given(_rows.flatmap(lambda x: st.tuples(st.just(x), arrays(np.float32, x.shape, elements=finite))))
def test_cross_entropies_are_those_of_the_formula(
    pair: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    p, q = map(log_softmax, pair)
    np.testing.assert_allclose(cross_entropies(*pair), -(np.exp(p) * q).sum(axis=1) / math.log(2), atol=1e-9)


def test_ids_without_a_probability_and_rows_that_are_not_finite() -> None:
    inf, nan = math.inf, math.nan
    logits = np.array([[0, 0, -inf], [1, -inf, -inf], [nan, 0, 0], [inf, 0, 0], [-inf, -inf, -inf]], np.float32)
    whole = np.zeros_like(logits)
    np.testing.assert_allclose(cross_entropies(logits, whole), [math.log2(3), math.log2(3), nan, nan, nan])
    np.testing.assert_allclose(cross_entropies(whole, logits), [inf, inf, nan, nan, nan])
    np.testing.assert_allclose(cross_entropies(logits[:2], logits[:2]), [1, 0])


def test_the_same_bits_at_every_level(level: str) -> None:
    assert cpu.cpu_level() == level
    logits = (np.arange(3 * 5000, dtype=np.float32).reshape(3, -1) * 7919 % 1000) / np.float32(50)
    found = cross_entropies(logits, logits[::-1]).tobytes()
    assert hashlib.sha256(found).hexdigest() == "f6dd251981f0feae35f3f1e9d67716b62aa0bec11fa2e72932b7e03ee9605795"


# Fast-DetectGPT and GLTR


def test_the_curvature_is_that_of_the_formula(lm: gpt2fast.LanguageModel) -> None:
    for text, score in zip(TEXTS, lm.score_batch(TEXTS), strict=True):
        logs = windows(lm, text)
        p = np.exp(logs)
        mean = (p * logs).sum(axis=1)
        variance = (p * logs**2).sum(axis=1) - mean**2
        np.testing.assert_allclose(score.variances, variance, rtol=1e-4, atol=1e-5)
        if not text:
            assert math.isnan(score.curvature)
            continue
        of_tokens = logs[np.arange(len(score)), score.ids]
        expected = (of_tokens - mean).sum() / math.sqrt(variance.sum())
        assert score.curvature == pytest.approx(expected, rel=1e-4)


def test_variances_do_not_depend_on_the_batch(lm: gpt2fast.LanguageModel) -> None:
    for options in ({}, {"stride": 100, "context": "The king"}, {"bos": False}):
        for together, text in zip(lm.score_batch(TEXTS, **options), TEXTS, strict=True):  # type: ignore[arg-type]
            assert lm.score(text, **options).variances.tolist() == together.variances.tolist()  # type: ignore[arg-type]


def test_a_pickled_score(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score("Once upon a time")
    assert pickle.loads(pickle.dumps(score)).curvature == score.curvature


def test_a_model_that_leaves_no_choice(tokenizer: gpt2fast.Tokenizer) -> None:
    def sure(ids: Any, n_vocab: int) -> npt.NDArray[np.float32]:
        return np.where(np.arange(n_vocab) == 97, 0, -np.inf).astype(np.float32)

    (score,) = score_texts(ToyModel(logits=sure), tokenizer, ["a"])  # type: ignore[arg-type]
    assert score.ids.tolist() == tokenizer.encode("a")
    assert score.variances.tolist() == [0]
    assert math.isnan(score.curvature)


def test_logits_that_are_not_finite(tokenizer: gpt2fast.Tokenizer) -> None:
    broken = ToyModel(logits=lambda ids, n_vocab: np.full(n_vocab, np.nan))
    with pytest.raises(NonFiniteError):
        score_texts(broken, tokenizer, ["a"])  # type: ignore[arg-type]


def test_the_shares_of_likely_tokens(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score(TEXTS[2])
    for rank in (1, 10, 100, 1000, 5000):
        assert score.share_within(rank) == pytest.approx(np.mean([token.rank <= rank for token in score.tokens]))
    assert math.isnan(lm.score("").share_within(10))
    for rank, error in ((0, InputError), (1.5, InputTypeError), ("10", InputTypeError)):
        with pytest.raises(error, match="rank"):
            score.share_within(rank)  # type: ignore[arg-type]


# Binoculars


def test_binoculars_are_those_of_the_formula(lm: gpt2fast.LanguageModel, other: gpt2fast.LanguageModel) -> None:
    for text, found in zip(TEXTS, binoculars(lm, other, TEXTS), strict=True):
        ids = lm.tokenizer.encode_ordinary(text)
        assert found.num_tokens == len(ids)
        if not text:
            assert math.isnan(found.ratio)
            continue
        performed, observed = windows(lm, text), windows(other, text)
        surprisal = -performed[np.arange(len(ids)), ids].mean() / math.log(2)
        cross = -(np.exp(observed) * performed).sum(axis=1).mean() / math.log(2)
        assert found.surprisal == pytest.approx(surprisal, rel=1e-5)
        assert found.cross_entropy == pytest.approx(cross, rel=1e-5)
        assert found.ratio == found.surprisal / found.cross_entropy
        assert binoculars(lm, other, [text]) == [found]  # alone as in a batch


def test_a_model_that_observes_itself(lm: gpt2fast.LanguageModel) -> None:
    (found,) = binoculars(lm, lm, TEXTS[:1], bos=False)
    score = lm.score(TEXTS[0], bos=False)
    assert found.num_tokens == len(score)
    assert found.surprisal == pytest.approx(score.surprisal.mean())
    assert found.cross_entropy == pytest.approx(score.entropies.mean())


def test_context_and_token_ids(lm: gpt2fast.LanguageModel, other: gpt2fast.LanguageModel) -> None:
    ids = lm.tokenizer.encode(" a king")
    (found,) = binoculars(lm, other, [ids], context="There was once")
    assert found == binoculars(lm, other, [" a king"], context="There was once")[0]
    assert found.surprisal == pytest.approx(lm.score(" a king", context="There was once").surprisal.mean())


def toy_pair(n_ctx: tuple[int, int]) -> list[Any]:
    def config(size: int, vocab_size: int) -> Config:
        ends = {"bos_token_id": 269, "eos_token_id": 269}
        return Config(vocab_size=vocab_size, n_ctx=size, n_embd=4, n_layer=1, n_head=1, **ends)  # type: ignore[arg-type]

    models: list[Any] = [ToyModel(270, n_ctx[0]), ToyModel(280, n_ctx[1])]  # a table that is padded
    for model, size, vocab_size in zip(models, n_ctx, (270, 280), strict=True):
        model.config = config(size, vocab_size)
    return models


@given(st.lists(st.integers(0, 70), max_size=4), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40) | st.none())
def test_windows_of_two_contexts_and_bounded_memory(
    tokenizer: gpt2fast.Tokenizer, lengths: list[int], first: int, second: int, stride: int | None
) -> None:
    models = toy_pair((first, second))
    performer, observer = (gpt2fast.LanguageModel(model, tokenizer) for model in models)
    n_ctx = min(first, second)
    step = max(n_ctx // 2, 1) if stride is None else (stride := min(stride, n_ctx))
    texts = [("xyzabc" * 20)[:length] for length in lengths]
    for text, found in zip(texts, binoculars(performer, observer, texts, stride=stride), strict=True):
        ids = [269, *tokenizer.encode_ordinary(text)]
        done, own, cross = 0, [], []
        while done < len(ids) - 1:
            end = min(max(n_ctx, done + step), len(ids) - 1)
            start = max(end - n_ctx, 0)
            for place in range(done, end):
                q, p = (log_softmax(model.logits_after(ids[start : place + 1])[:270]) for model in models)
                own.append(-q[ids[place + 1]])
                cross.append(-(np.exp(p) * q).sum())
            done = end
        assert found.num_tokens == len(own)
        if own:
            assert found.surprisal == pytest.approx(np.mean(own) / math.log(2), rel=1e-5)
            assert found.cross_entropy == pytest.approx(np.mean(cross) / math.log(2), rel=1e-5)
    assert all(model.most <= 64 for model in models)


def test_a_pass_that_fails_leaves_both_caches_as_they_were() -> None:
    models = toy_pair((8, 8))
    pair = ObservedModel(*models)
    cache = pair.new_cache(2)
    pair.forward(cache, [0, 1], [[1, 2], [3]])  # type: ignore[arg-type]

    def failing(*arguments: Any, **options: Any) -> Any:
        raise MemoryError

    models[1].forward = failing
    with pytest.raises(MemoryError):
        pair.forward(cache, [1, 0], [[4], [5]])  # type: ignore[arg-type]
    assert [part.rows for part in cache.parts] == [[[1, 2], [3]]] * 2  # type: ignore[attr-defined]


def test_models_of_other_vocabularies(lm: gpt2fast.LanguageModel, toy: gpt2fast.LanguageModel) -> None:
    with pytest.raises(InputError, match="the observer's tokenizer has 270 tokens, the performer's 4,096"):
        binoculars(lm, toy, ["a"])


def test_a_copy_of_the_tokenizer_is_the_same(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    lm.save_pretrained(tmp_path)
    again = gpt2fast.load(tmp_path)
    assert binoculars(lm, again, ["a b"]) == binoculars(lm, lm, ["a b"])


@pytest.mark.parametrize(
    ("texts", "error"), [("a", InputTypeError), (5, InputTypeError), ([5], InputTypeError), (["\ud800"], InputError)]
)
def test_what_are_no_texts(lm: gpt2fast.LanguageModel, texts: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        binoculars(lm, lm, texts)
