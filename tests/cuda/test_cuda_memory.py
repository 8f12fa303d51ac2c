"""Where the memory of a GPU runs out, the error says what was needed and what was free, and nothing stays behind."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest
import seeded
from fake_devices import Twin

import gpt2fast
from gpt2fast import DeviceMemoryError, Error
from gpt2fast.checkpoint.config import Config
from gpt2fast.generation.generate import Settings, generate, generated_sequences
from gpt2fast.model.cuda import backend
from gpt2fast.model.cuda.operations import BLOCK
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.scheduler import Scheduler

CONFIG = Config(vocab_size=97, n_ctx=70, n_embd=24, n_layer=2, n_head=2)
TENSORS = seeded.tensors(CONFIG)


@pytest.fixture
def device(monkeypatch):
    device = Twin()
    monkeypatch.setattr(backend, "open_device", lambda name: device)
    # What is given back must not wait for the garbage collector.
    gc.disable()
    yield device
    gc.enable()


def load(dtype="float32"):
    return GPT2.from_tensors(CONFIG, TENSORS, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_does_not_fit_leaves_nothing(device, dtype):
    model = load(dtype)
    needed, parameters = device.xp.used, model.num_parameters
    del model
    assert device.xp.used == 0
    matrices = sum(t.size for t in TENSORS.values() if t.ndim == 2)
    assert abs(needed - (matrices * (4 if dtype == "float32" else 2) + (parameters - matrices) * 4)) < 6000  # wpe
    for limit in range(0, needed, 997):
        device.xp.limit, device.released = limit, 0
        with pytest.raises(DeviceMemoryError) as caught:
            load(dtype)
        message = str(caught.value)
        assert re.fullmatch(
            rf"the weights, {parameters:,} of them as {dtype}, take [\d.]+ MiB of the memory of cuda:0 \(none\); "
            rf"{limit / 2**20:,.1f} MiB of {limit / 2**20:,.1f} are free",
            message,
        ), message
        assert device.released == 1
        assert device.xp.used == 0, "while the error is still there"
    assert isinstance(caught.value, (Error, MemoryError, RuntimeError))


def test_a_pass_that_does_not_fit_changes_nothing(device):
    model = load()
    cache = model.new_cache(batch=2)
    model.extend(cache, [0], [range(BLOCK + 1)])
    cache.copy_row(0, 1)
    before, lengths = device.xp.used, cache.lengths.tolist()
    expected = GPT2.from_tensors(CONFIG, TENSORS)([*range(BLOCK + 1), 1, 2])[-1]
    device.xp.peak = 0
    new = [[1, 2], [3] * BLOCK]
    fresh = model.new_cache(batch=2)
    for row in (0, 1):
        fresh.copy_row(row, row)
    model.extend(fresh, [0, 1], [list(range(BLOCK + 1)), [5]])
    peak = device.xp.peak
    del fresh
    for limit in range(before, peak, 499):
        device.xp.limit = limit
        with pytest.raises(
            DeviceMemoryError, match=r"^34 new tokens, [\d.]+ MiB in the cache and the rest for this pass"
        ):
            model.extend(cache, [0, 1], new)
        assert device.xp.used - before in (0, cache.block_nbytes)  # a shared block may have become the row's own
        assert cache.lengths.tolist() == lengths
        if device.xp.used > before:
            break
    device.xp.limit = 2**30
    found = model.extend(cache, [0, 1], new)[0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_choice_that_does_not_fit_changes_nothing(device):
    model, tokenizer = load(), gpt2fast.load("demo").tokenizer
    settings = Settings(temperature=0, max_new_tokens=4)
    (text,) = generated_sequences(model, tokenizer, [[1, 2]], settings)
    scheduler = Scheduler(model, n_vocab=97, slots=1)
    scheduler.add(text)
    scheduler.step()
    before, ids = device.xp.used, list(text.ids)
    messages = set()
    for limit in range(before, before + 2**16, 16):
        device.xp.limit = limit
        try:
            scheduler.step()
        except DeviceMemoryError as error:
            messages.add(str(error)[:20])
            assert device.xp.used == before
            assert text.ids == ids
        else:
            break
    assert messages == {"1 new tokens, 0.0 Mi"}
    device.xp.limit = 2**30
    while not text.finished:
        scheduler.step()
    [[expected]] = generate(GPT2.from_tensors(CONFIG, TENSORS), tokenizer, [[1, 2]], settings)
    assert text.ids == [1, 2, *expected.ids]


def test_logits_that_do_not_fit(device):
    model = load()
    cache = model.new_cache()
    outputs = model.forward(cache, [0], [range(60)], [60])
    device.xp.limit = device.xp.used + 100
    with pytest.raises(DeviceMemoryError, match=r"^the logits of 60 tokens take [\d.]+ MiB"):
        outputs.logits(0, 60)
    del outputs
    assert device.xp.used <= device.xp.limit - 100


def test_a_later_pass_that_does_not_fit_takes_the_earlier_ones_back(device, monkeypatch):
    model = load()
    cache = model.new_cache(batch=6)
    model.extend(cache, [0], [[1, 2, 3]])
    before, whole, passes = device.xp.used, model._network.forward, []

    def forward(*arguments, **keywords):
        passes.append(arguments)
        if len(passes) == 2:
            device.xp.limit = device.xp.used
        return whole(*arguments, **keywords)

    monkeypatch.setattr(model._network, "forward", forward)
    with pytest.raises(DeviceMemoryError):
        model.extend(cache, range(6), [range(60)] * 6)
    assert len(passes) == 2
    assert cache.lengths.tolist() == [3, 0, 0, 0, 0, 0]
    assert device.xp.used == before


def test_the_need_of_a_pass_is_not_understated(device):
    model = load()
    for tokens, wanted in ((1, 1), (70, 70), (70, 1), (70, 0)):
        cache = model.new_cache()
        before = device.xp.peak = device.xp.used
        model.extend(cache, [0], [range(tokens)], [wanted])
        used = device.xp.peak - before
        said = cache.nbytes + model._network._pass_nbytes(tokens, wanted)
        assert used <= said + 8 * (tokens * 5 + 20)  # what the pass is told
        assert said <= 1.5 * used


def test_memory_of_the_host_is_another_matter(device, monkeypatch):
    model = load()
    monkeypatch.setattr(device, "download", lambda array: (_ for _ in ()).throw(MemoryError("host")))
    with pytest.raises(MemoryError, match="host") as caught:
        model([1])
    assert not isinstance(caught.value, Error)
