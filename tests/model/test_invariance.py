"""The promise of gemm="panel": a token's logits are the same bit for bit however its text was cut into calls, whatever
else is in the batch, and on any number of threads.

That holds at every CPU level, as each kernel gives the same bits at all of them: `test_kernel_bits.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import seeded
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast.checkpoint.config import Config
from gpt2fast.model.gpt2 import GPT2

# Heads of 20: not a multiple of any vector.  A context over one pass, so that long texts are cut inside too.
CONFIG = Config(vocab_size=331, n_ctx=300, n_embd=60, n_layer=2, n_head=3, n_inner=100)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8", "int4", "int8, float32", "float32, bfloat16"])
def model(request):
    dtype, _, cache = request.param.partition(", ")
    return GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG), dtype=dtype, cache_dtype=cache or None, num_threads=1)


def some_ids(seed, count):
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, count)


@given(length=some.integers(1, 300), cuts=some.sets(some.integers(1, 299), max_size=12), threads=some.integers(1, 3))
def test_cut_anywhere(model, length, cuts, threads):
    ids = some_ids(length, length)
    model.num_threads = 1
    whole = model(ids)
    model.num_threads = threads
    cache = model.new_cache()
    parts = [model(part, cache) for part in np.split(ids, sorted(cut for cut in cuts if cut < length))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@given(lengths=some.lists(some.integers(1, 90), min_size=1, max_size=17), threads=some.integers(1, 3), data=some.data())
def test_any_batch(model, lengths, threads, data):
    texts = [some_ids(i, length + 2) for i, length in enumerate(lengths)]
    order = data.draw(some.permutations(range(len(texts))))
    model.num_threads = threads
    cache = model.new_cache(batch=len(texts))
    first = model.extend(cache, order, [texts[i][:-2] for i in order])
    second = model.extend(cache, order, [texts[i][-2:] for i in order])
    model.num_threads = 1
    for place, i in enumerate(order):
        alone = model(texts[i])
        np.testing.assert_array_equal(first[place], alone[-3])
        np.testing.assert_array_equal(second[place], alone[-1])


def test_equal_rows_of_a_batch(model):
    ids = some_ids(0, 50)
    batch = model(np.tile(ids, (5, 1)))
    assert all(np.array_equal(row, batch[0]) for row in batch)
