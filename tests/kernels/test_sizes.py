"""Numbers of a file or a caller that the kernels would multiply or divide by: refused, never wrapped around."""

from __future__ import annotations

import numpy as np
import pytest

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError, OutOfMemoryError
from gpt2fast.kernels.kv_cache import KVCache
from gpt2fast.kernels.linear import Weight, packed_size
from gpt2fast.kernels.norm import layer_norm_rows

DTYPES = ["float32", "bfloat16", "int8", "int4"]
# 32 more than what gives the size of 32 outputs, taken modulo 2**64.
HUGE = [2**40, 2**57, 2**59 + 32, 2**62 + 32, 2**63, 2**64 + 32, 10**30]
CACHE = {"n_layer": 1, "n_head": 1, "head_dim": 4, "batch": 1, "capacity": 8}
ONES = np.ones((1, 1), np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", HUGE)
def test_packed_weights(dtype, number):
    small = packed_size(1, 32, dtype)
    assert small == len(Weight.panels(np.ones((1, 32), np.float32), dtype=dtype).panels_data())
    for sizes in ({"k": 1, "n": number}, {"k": number, "n": 1}, {"k": number, "n": number}):
        with pytest.raises(InputError, match="too large"):
            packed_size(sizes["k"], sizes["n"], dtype)
        with pytest.raises(InputError, match="too large"):
            Weight.packed(np.zeros(small, np.uint8), **sizes, dtype=dtype)


def test_packed_size_is_exact_beyond_a_machine_word():
    assert packed_size(2**39, 2**39, "float32") == 2**80


@pytest.mark.parametrize("name", CACHE)
@pytest.mark.parametrize("number", HUGE)
def test_caches_too_large(name, number):
    with pytest.raises(OutOfMemoryError, match="no memory"):
        KVCache(**{**CACHE, name: number})


@pytest.mark.parametrize("name", CACHE)
def test_caches_of_nothing(name):
    for number in (0, -1):
        with pytest.raises(InputError, match=f"{name} is {number}; expected 1 or more"):
            KVCache(**{**CACHE, name: number})
    with pytest.raises(InputTypeError, match=name):
        KVCache(**{**CACHE, name: 1.5})


def test_a_model_gives_no_cache_that_is_too_large():
    model = gpt2fast.load("demo").model
    for batch in (0, -1, 2**40, 2**62, 10**30):
        with pytest.raises(gpt2fast.Error):
            model.new_cache(batch)
    for capacity in (0, -1, 2**62):
        with pytest.raises(InputError, match="capacity"):
            model.new_cache(1, capacity)


@pytest.mark.parametrize("number", [0, -1, -(2**31), 1.5, "2", True])
def test_numbers_of_threads(number):
    model = gpt2fast.load("demo").model
    with pytest.raises((InputError, InputTypeError), match="num_threads"):
        model.num_threads = number
    before = model([1, 2, 3])
    calls = [
        lambda: Weight.panels(ONES, num_threads=number),
        lambda: Weight.panels_of(lambda first, last: ONES, 1, 1, num_threads=number),
        lambda: Weight.panels(ONES).multiply(ONES, num_threads=number),
        lambda: layer_norm_rows(ONES, ONES[0], ONES[0], 1e-5, num_threads=number),
    ]
    for call in calls:
        with pytest.raises((InputError, InputTypeError), match="num_threads"):
            call()
    np.testing.assert_array_equal(model([1, 2, 3]), before)


def test_more_threads_than_the_pool_has():
    many = 2**29  # eight times as many are 0 in an int of 32 bits
    np.testing.assert_array_equal(Weight.panels(ONES, num_threads=many).multiply(ONES, num_threads=many), ONES)
    model = gpt2fast.load("demo").model
    model.num_threads = 10**30
    assert model.num_threads == 256
