"""The cache: cached steps equal whole texts at every length, rows are independent, shared blocks stay shared safely."""

from __future__ import annotations

import numpy as np
import pytest
import reference_model
import seeded
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast import InputError, InputTypeError
from gpt2fast.checkpoint.config import Config
from gpt2fast.model.gpt2 import GPT2

CONFIG = Config(vocab_size=97, n_ctx=40, n_embd=24, n_layer=2, n_head=2)


@pytest.fixture(scope="module", params=["panel", "blas"])
def model(request):
    return GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG), gemm=request.param)


def test_greedy_with_cache_equals_without_at_every_prompt_length(tiny):
    model = GPT2.from_pretrained(tiny / "plain")
    limit = model.config.n_ctx
    text = np.load(tiny / "plain" / "expected.npz")["ids"][:2].ravel()[:limit]
    for length in range(1, limit + 1):
        cached, whole = list(text[:length]), list(text[:length])
        cache, new = model.new_cache(), list(text[:length])
        for _ in range(min(8, limit - length + 1)):
            new = [int(model(new, cache, last_only=True).argmax())]
            cached += new
            whole.append(int(model(whole)[-1].argmax()))
        assert cached == whole, length


STEPS = some.tuples(some.sampled_from(["grow", "copy", "cut"]), some.integers(0, 2), some.integers(0, 9))


@given(steps=some.lists(STEPS, max_size=25))
def test_rows_behave_as_if_they_were_separate(steps):
    """Growing, copying and truncating rows in any order gives what fresh texts give, bit for bit."""
    model = GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG))
    cache = model.new_cache(batch=3)
    texts = [[], [], []]
    for i, (step, row, number) in enumerate(steps):
        if step == "copy":
            cache.copy_row(row, number % 3)
            texts[number % 3] = list(texts[row])
        elif step == "cut":
            texts[row] = texts[row][: len(texts[row]) * number // 10]
            cache.truncate(row, len(texts[row]))
        elif len(texts[row]) + number + 1 <= CONFIG.n_ctx:
            new = list(np.random.default_rng(i).integers(0, CONFIG.vocab_size, number + 1))
            texts[row] += new
            np.testing.assert_array_equal(model.extend(cache, [row], [new])[0], model(texts[row])[-1])
        assert cache.lengths.tolist() == [len(text) for text in texts]


def test_a_cache_of_bfloat16_rounds_keys_and_values_and_nothing_else():
    # Heads of 20, which no vector divides.
    config = Config(vocab_size=97, n_ctx=40, n_embd=60, n_layer=1, n_head=3)
    tensors = seeded.tensors(config)
    ids = np.arange(40) * 7 % 97
    half = GPT2.from_tensors(config, tensors, cache_dtype="bfloat16")
    found = half.hidden_states(ids)
    twin = reference_model.residuals(ids, config, tensors, kept=reference_model.bfloat16)[-1]
    exact = reference_model.residuals(ids, config, tensors)[-1]
    np.testing.assert_allclose(found, twin, rtol=0, atol=1e-5)
    assert np.abs(found - exact).max() > 1e-4
    whole = GPT2.from_tensors(config, tensors)
    caches = [model.new_cache() for model in (half, whole)]
    for model, cache in zip((half, whole), caches, strict=True):
        model(ids, cache)
    assert caches[0].nbytes * 2 == caches[1].nbytes
    with pytest.raises(InputError, match="cache_dtype is 'int8'; expected 'float32' or 'bfloat16'"):
        GPT2.from_tensors(config, tensors, cache_dtype="int8")


@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "size"),
    [("float32", None, 4), ("bfloat16", None, 4), ("int8", None, 2), ("int4", None, 2), ("int8", "float32", 4)],
)
def test_weights_of_eight_bits_and_fewer_have_a_cache_of_bfloat16_unless_another_is_asked_for(dtype, cache_dtype, size):
    config = Config(vocab_size=97, n_ctx=32, n_embd=64, n_layer=2, n_head=4)
    model = GPT2.from_tensors(config, seeded.tensors(config), dtype=dtype, cache_dtype=cache_dtype)
    cache = model.new_cache()
    model(np.arange(32), cache)
    assert cache.nbytes == 2 * 2 * 32 * 64 * size  # keys and values of two layers


def test_memory_comes_with_tokens_and_is_shared(model):
    cache = model.new_cache(batch=4)
    assert cache.nbytes == 0
    model.extend(cache, [0], [range(33)])
    block = cache.nbytes // 3
    for row in (1, 2, 3):
        cache.copy_row(0, row)
    assert cache.nbytes == 3 * block
    model.extend(cache, [1, 2], [[5], [6]])  # the last, partial block is no longer shared
    assert cache.nbytes == 5 * block
    for row in range(4):
        cache.truncate(row, 0)
    assert cache.nbytes == 0


def test_context_limit_is_checked_before_anything_changes(model):
    cache = model.new_cache()
    model(range(CONFIG.n_ctx), cache)
    with pytest.raises(InputError, match="41 tokens long, 40 of them in the cache; the limit is 40"):
        model([1], cache)
    with pytest.raises(InputError, match="41 tokens long; the limit is 40"):
        model(range(41))
    small = model.new_cache(capacity=5)
    with pytest.raises(InputError, match="the limit is 5"):
        model(range(6), small)
    assert small.lengths.tolist() == [0]
    model(range(5), small)
    with pytest.raises(InputError, match="capacity is 41"):
        model.new_cache(capacity=41)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([3, -1, 4], InputError, "id -1 is outside the vocabulary of 97"),
        ([3, 97], InputError, "id 97 is outside the vocabulary of 97"),
        ([3, 2**40], InputError, f"id {2**40} is outside"),
        ([1.0, 2.5], InputTypeError, "float64"),
        ([True, False], InputTypeError, "bool"),
        (["a"], InputTypeError, "expected integers"),
        ([[[1]]], InputError, "3 dimensions"),
        (5, InputError, "0 dimensions"),
    ],
)
def test_bad_ids(model, ids, error, message):
    with pytest.raises(error, match=message):
        model(ids)


def test_nothing_in_nothing_out(model):
    assert model([]).shape == (0, 97)
    assert model(np.empty((2, 0), int)).shape == (2, 0, 97)
    assert model.hidden_states([]).shape == (0, 24)
    with pytest.raises(InputError, match="no last token"):
        model([], last_only=True)


def test_bad_rows(model):
    cache = model.new_cache(batch=2)
    with pytest.raises(InputError, match="row 2 is not in the cache"):
        model.extend(cache, [2], [[1]])
    with pytest.raises(InputError, match="twice"):
        model.extend(cache, [1, 1], [[1], [2]])
    with pytest.raises(InputError, match="2 rows, but ids for 1"):
        model.extend(cache, [0, 1], [[1]])
    with pytest.raises(InputError, match=r"ids\[0\]"):
        model.extend(cache, [0], [[]])
    with pytest.raises(InputError, match="the cache has 2 rows, ids 1"):
        model([1], cache)
    with pytest.raises(InputError, match="truncate"):
        cache.truncate(0, 1)
    other = GPT2.from_tensors(*_other())
    with pytest.raises(InputError, match="another shape"):
        other([1], model.new_cache())
    assert cache.lengths.tolist() == [0, 0]


def _other():
    config = Config(vocab_size=5, n_ctx=40, n_embd=24, n_layer=1, n_head=2)
    return config, seeded.tensors(config)
