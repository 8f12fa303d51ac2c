"""A model on a GPU does what it does on a CPU.

Every test runs on NumPy twins of the kernels, on the kernels themselves, emulated on the CPU, and on a GPU where there
is one (`-m gpu`).
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from functools import cache

import numpy as np
import pytest
import seeded
from fake_devices import COMPILER, Emulation, Twin
from hypothesis import given
from hypothesis import strategies as some

import gpt2fast
from gpt2fast import InputError
from gpt2fast.checkpoint.config import Config
from gpt2fast.generation.generate import Settings, generated_sequences
from gpt2fast.model.cuda import backend
from gpt2fast.model.cuda.device import open_device
from gpt2fast.model.draw import Draw
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.scheduler import Scheduler

VARIANTS = ["epsilon", "gelu-exact", "inner", "no-attn-scale", "plain", "relu", "scale-by-layer", "untied"]
CONFIG = Config(vocab_size=97, n_ctx=70, n_embd=24, n_layer=2, n_head=2)

GPU = pytest.param("gpu", marks=pytest.mark.gpu)
EMULATION = pytest.param(
    "emulation",
    marks=pytest.mark.skipif(
        COMPILER is None or sys.platform != "linux", reason="the emulation takes g++ and the C library of Linux"
    ),
)


@cache
def device_of(kind):
    """The device of that kind, or why there is none."""
    if kind != "gpu":
        return {"twin": Twin, "emulation": Emulation}[kind]()
    try:
        return open_device("cuda")
    except gpt2fast.Error as error:
        return f"there is no GPU to use: {type(error).__name__}"


@pytest.fixture(params=["twin", EMULATION, GPU])
def device(request, monkeypatch):
    """What "cuda" means in this test."""
    found = device_of(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    monkeypatch.setattr(backend, "open_device", lambda name: found)
    return found


@pytest.fixture(scope="module")
def cpu():
    return gpt2fast.load("demo")


def needs_bfloat16(device):
    """Leave the test out on a GPU that does not multiply in bfloat16."""
    if device.capability < (8, 0):
        pytest.skip(f"{device.description} has no bfloat16")


def close(actual, expected, atol=1e-4):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_checkpoint(device, tiny, variant):
    """As Hugging Face transformers computes it."""
    expected = np.load(tiny / variant / "expected.npz")
    model = GPT2.from_pretrained(tiny / variant, device="cuda")
    ids, lengths = expected["ids"], expected["ragged_lengths"]
    close(model(ids[1]), expected["logits"][1])
    close(model.hidden_states(ids[0]), expected["hidden"][0])
    ragged = model.extend(model.new_cache(batch=3), [0, 1, 2], [row[:n] for row, n in zip(ids, lengths, strict=True)])
    close(ragged, expected["ragged_last_logits"])
    chosen, cache = expected["greedy"][:6].tolist(), model.new_cache()
    new = list(chosen)
    for _ in range(24):
        new = [int(model(new, cache, last_only=True).argmax())]
        chosen += new
    assert chosen == expected["greedy"].tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tiny_checkpoint_in_half_precision(device, tiny, tmp_path, dtype):
    """Against float32 arithmetic on the same rounded weights."""
    if dtype == "bfloat16":
        needs_bfloat16(device)
    shutil.copy(tiny / "plain" / "config.json", tmp_path)
    shutil.copy(tiny / "plain-variants" / f"{dtype}.safetensors", tmp_path / "model.safetensors")
    expected = np.load(tiny / "plain-variants" / f"expected-{dtype}.npz")
    model = GPT2.from_pretrained(tmp_path, device="cuda", dtype=dtype)
    found, wanted = model(expected["ids"][0]), expected["logits"][0]
    assert np.abs(found - wanted).max() < np.abs(wanted).max() * {"float16": 2**-8, "bfloat16": 2**-5}[dtype]
    assert np.abs(found - wanted).max() > 1e-5  # it is another dtype indeed


def test_the_demo_writes_the_same(device, cpu):
    lm = gpt2fast.load("demo", device="cuda")
    assert repr(lm.model).endswith(f"dtype='float32' gemm='cublas' device={device.name!r}>")
    ids = np.arange(40) * 37 % 4096
    close(lm.model(ids), cpu.model(ids))
    count = 4 if isinstance(device, Emulation) else 12  # new tokens; the emulation is slow
    prompts = ["Once upon a time", "The wolf", "I"]
    for options in ({"temperature": 0}, {"seed": 5}, {"seed": 6, "top_k": 0, "repetition_penalty": 1.2}):
        alone = [cpu.generate(prompt, max_new_tokens=count, **options).text for prompt in prompts]
        assert [text.text for text in lm.generate_batch(prompts, max_new_tokens=count, **options)] == alone
    expected = cpu.generate("The king and", temperature=0, max_new_tokens=count).text
    for drafting in ({"speculate": "lookup"}, {"draft": cpu}):
        text = lm.generate("The king and", temperature=0, max_new_tokens=count, **drafting).text
        assert text == expected


def test_the_demo_scores_the_same(device, cpu):
    lm = gpt2fast.load("demo", device="cuda")
    texts = ["Once upon a time there was a king.", "He had a daughter."]
    for found, expected in zip(lm.score_batch(texts), cpu.score_batch(texts), strict=True):
        close(found.log_probabilities, expected.log_probabilities)
        close(found.entropies, expected.entropies)


STEPS = some.tuples(some.sampled_from(["grow", "copy", "cut"]), some.integers(0, 2), some.integers(0, 40))


@given(steps=some.lists(STEPS, max_size=12))
def test_rows_behave_as_if_they_were_separate(steps):
    """Growing, copying and truncating rows in any order gives what fresh texts give, and no memory is lost."""
    tensors = seeded.tensors(CONFIG)
    twin = Twin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "open_device", lambda name: twin)
        model = GPT2.from_tensors(CONFIG, tensors, device="cuda")
    expected = GPT2.from_tensors(CONFIG, tensors)
    weights = twin.xp.used
    cache = model.new_cache(batch=3)
    texts = [[], [], []]
    for i, (step, row, number) in enumerate(steps):
        if step == "copy":
            cache.copy_row(row, number % 3)
            texts[number % 3] = list(texts[row])
        elif step == "cut":
            texts[row] = texts[row][: len(texts[row]) * number // 40]
            cache.truncate(row, len(texts[row]))
        elif len(texts[row]) + number + 1 <= CONFIG.n_ctx:
            new = list(np.random.default_rng(i).integers(0, CONFIG.vocab_size, number + 1))
            texts[row] += new
            close(model.extend(cache, [row], [new])[0], expected(texts[row])[-1])
        assert cache.lengths.tolist() == [len(text) for text in texts]
        assert twin.xp.used == weights + cache.nbytes
    for row in range(3):
        cache.truncate(row, 0)
    assert twin.xp.used == weights


@pytest.fixture
def small(device):
    """A small model on the device, and the same on the CPU."""
    tensors = seeded.tensors(CONFIG)
    return GPT2.from_tensors(CONFIG, tensors, device="cuda"), GPT2.from_tensors(CONFIG, tensors)


def test_several_rows_in_one_pass_and_passes_in_a_row(small):
    model, expected = small
    texts = [np.random.default_rng(row).integers(0, 97, length) for row, length in enumerate([70, 33, 1, 64, 70, 70])]
    found = model.extend(model.new_cache(batch=6), range(6), texts, [3, 0, 1, 2, 70, 1])  # 308 tokens, two passes
    wanted = [expected(text)[len(text) - n :] for text, n in zip(texts, [3, 0, 1, 2, 70, 1], strict=True)]
    close(found, np.concatenate(wanted))


def test_copied_rows_share_memory_until_they_grow(small):
    model, expected = small
    cache = model.new_cache(batch=4)
    assert cache.nbytes == 0
    model.extend(cache, [0], [range(65)])
    block = cache.nbytes // 3
    for row in (1, 2, 3):
        cache.copy_row(0, row)
    assert cache.nbytes == 3 * block
    found = model.extend(cache, [1, 2], [[5], [6]])  # the last, partial block is no longer shared
    assert cache.nbytes == 5 * block
    close(found, [expected([*range(65), new])[-1] for new in (5, 6)])
    close(model.extend(cache, [0, 3], [[7], [8]]), [expected([*range(65), new])[-1] for new in (7, 8)])
    for row in range(4):
        cache.truncate(row, 0)
    assert cache.nbytes == 0


@pytest.fixture
def downloads(device, monkeypatch):
    """The sizes in bytes of what the device has sent."""
    whole, sizes = type(device).download, []

    def download(self, array):
        sizes.append(int(array.nbytes))
        return whole(self, array)

    monkeypatch.setattr(type(device), "download", download)
    return sizes


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 0, "temperature": 0},
        {"seed": 1},
        {"seed": 2, "top_k": 0, "min_p": 0.01},
        {"seed": 3, "top_k": 0, "top_p": 0.8, "temperature": 0.7},
        {"seed": 4, "top_p": 0.5, "min_new_tokens": 3},
    ],
)
def test_tokens_are_chosen_on_the_device(device, cpu, downloads, options):
    lm, prompts = gpt2fast.load("demo", device="cuda"), ["Once upon", "The wolf", "I"]
    expected = cpu.generate_batch(prompts, max_new_tokens=4, **options)
    assert lm.generate_batch(prompts, max_new_tokens=4, **options) == expected
    # Four bytes a text and step; end-of-text may not be chosen at first, which takes the logits.
    whole = 3 * options.get("min_new_tokens", 0)
    assert sum(downloads) == 16384 * whole + 4 * (3 * 4 - whole)
    downloads.clear()
    text = lm.generate(prompts[0], max_new_tokens=4, draft=lm, **options)
    assert text.ids == expected[0].ids
    assert sum(downloads) < 16384 * 2 * (options.get("min_new_tokens", 0) + 1)


@pytest.mark.parametrize(
    "options",
    [{"logprobs": 2}, {"repetition_penalty": 1.3}, {"banned_ids": [11]}, {"logit_bias": {5: 3.0}}, {"top_k": 1000}],
)
def test_what_the_host_chooses(device, cpu, options):
    prompts, expected = ["Once upon", "The wolf"], None
    for lm in (cpu, gpt2fast.load("demo", device="cuda")):
        found = lm.generate_batch(prompts, max_new_tokens=3, seed=8, **options)
        expected = expected or found
        assert [text.ids for text in found] == [text.ids for text in expected]
        for text, other in zip(found, expected, strict=True):
            assert text.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_texts_of_all_kinds_in_one_batch(device, cpu):
    kinds = [{"temperature": 0}, {"logprobs": 1}, {"top_k": 0}, {"repetition_penalty": 1.5}, {"min_new_tokens": 2}]
    found = []
    for lm in (cpu, gpt2fast.load("demo", device="cuda")):
        texts = []
        for seed, kind in enumerate(kinds):
            settings = Settings(seed=seed, max_new_tokens=3, **kind)
            texts += generated_sequences(lm.model, lm.tokenizer, [[2706]], settings)
        for _ in Scheduler(lm.model, n_vocab=4096, slots=3).run(*texts):
            pass
        found.append([text.generation().ids for text in texts])
    assert found[0] == found[1]


def test_ids_logits_and_states_side_by_side(small):
    model, expected = small
    texts = [np.arange(5), np.arange(40), np.arange(3)]
    found, right = (m.forward(m.new_cache(batch=3), range(3), texts, [1, 2, 1]) for m in (model, expected))
    logits = right.logits(0, 4)
    assert len(found) == len(right) == 4
    close(found.logits(1, 3), logits[1:3])
    close(found.states(0, 4), right.states(0, 4))
    draws = [Draw(97, 0, 0.0, 0, 1.0, 0.0), Draw(50, 0, 0.0, 0, 1.0, 0.0)]
    assert found.choose(2, draws) == right.choose(2, draws) == [logits[2].argmax(), logits[3, :50].argmax()]
    assert found.choose(0, []) == []
    close(found.measure(1, [5, 6, 7], 90), right.measure(1, [5, 6, 7], 90))
    assert len(model.forward(model.new_cache(), [0], [[1]], [0])) == 0


def test_logits_that_are_not_finite(device):
    tensors = seeded.tensors(CONFIG)
    tensors["h.1.mlp.c_fc.bias"][:] = np.nan
    messages = []
    for name in ("cpu", "cuda"):
        model = GPT2.from_tensors(CONFIG, tensors, device=name)
        lm = gpt2fast.LanguageModel(model, gpt2fast.load("demo").tokenizer)
        with pytest.raises(InputError, match="the logits are not finite: 97 of 97 are NaN") as caught:
            lm.generate([1, 2], max_new_tokens=2, temperature=0)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("layers", ["all", 0, 1, 2, -1, [2, 0]])
def test_hidden_states_of_layers(small, layers):
    model, expected = small
    ids = np.arange(2 * 40).reshape(2, 40)
    close(model.hidden_states(ids, layers=layers), expected.hidden_states(ids, layers=layers))
    cache, other = model.new_cache(batch=2), expected.new_cache(batch=2)
    for part in (ids[:, :33], ids[:, 33:]):
        found = model.hidden_states(part, cache, layers=layers)
        close(found, expected.hidden_states(part, other, layers=layers))
    close(model(ids[:, :1], cache), expected(ids[:, :1], other))


def test_what_flows_between_halves_of_layers(small):
    model, expected = small
    for stage in range(2 * CONFIG.n_layer + 2):
        close(model.residual(range(40), stage), expected.residual(range(40), stage))


def test_a_model_without_biases(device):
    config = dataclasses.replace(CONFIG, bias=False)
    tensors = seeded.tensors(config)
    ids = np.arange(40)
    close(GPT2.from_tensors(config, tensors, device="cuda")(ids), GPT2.from_tensors(config, tensors)(ids))


def test_weights_packed_for_a_cpu(small, tmp_path):
    model, expected = small
    with pytest.raises(InputError, match="gemm is 'cublas'; only a model in panels can be packed"):
        model.save_pretrained(tmp_path, packed=True)
    expected.save_pretrained(tmp_path, packed=True)
    with pytest.raises(InputError, match="the weights are packed; gemm='cublas' reads ordinary ones"):
        GPT2.from_pretrained(tmp_path, device="cuda")


def test_nothing_in_nothing_out(small):
    model, _ = small
    assert model([]).shape == (0, 97)
    assert model.hidden_states([], layers="all").shape == (3, 0, 24)
    assert model.nbytes == sum(tensor.nbytes for tensor in seeded.tensors(CONFIG).values())
    assert model.hidden_states([]).shape == (0, 24)
    assert model.extend(model.new_cache(), [0], [[1, 2]], [0]).shape == (0, 97)


def test_limits_and_caches_are_checked(small):
    model, expected = small
    cache = model.new_cache(capacity=5)
    with pytest.raises(InputError, match="6 tokens long; the limit is 5"):
        model(range(6), cache)
    with pytest.raises(InputError, match="row 1 is not in the cache"):
        cache.truncate(1, 0)
    with pytest.raises(InputError, match="cannot truncate row 0 of 0 tokens to 1"):
        cache.truncate(0, 1)
    with pytest.raises(InputError, match="batch is 0"):
        model.new_cache(batch=0)
    with pytest.raises(InputError, match="another device than cuda:0"):
        model([1], expected.new_cache())
    with pytest.raises(InputError, match="another dtype than float32"):
        model([1], model.with_dtype("float16").new_cache())
    assert cache.lengths.tolist() == [0]


def test_weights_come_back_as_they_were(device, small, tmp_path, tiny):
    needs_bfloat16(device)
    model, _ = small
    model.save_pretrained(tmp_path)
    saved = gpt2fast.safetensors.load_file(tmp_path / "model.safetensors")
    for name, tensor in seeded.tensors(CONFIG).items():
        np.testing.assert_array_equal(saved[name], tensor)
    again = model.with_dtype("bfloat16").with_dtype("float32")
    ids = np.arange(50)
    close(again(ids), GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG)).with_dtype("bfloat16")(ids), 5e-2)
    untied = GPT2.from_pretrained(tiny / "untied", device="cuda")
    untied.with_dtype("float16").save_pretrained(tmp_path)
    saved = gpt2fast.safetensors.load_file(tmp_path / "model.safetensors")
    original = gpt2fast.safetensors.load_file(tiny / "untied" / "model.safetensors")
    name = "transformer.h.0.mlp.c_fc.weight"
    np.testing.assert_array_equal(saved[name.removeprefix("transformer.")], original[name].astype(np.float16))


def test_weights_stored_by_output(device, cpu, tmp_path):
    """nanoGPT's layout is multiplied with as it is."""
    config = CONFIG
    tensors = seeded.tensors(config)
    linear = {name: np.ascontiguousarray(t.T) if name[:2] == "h." and t.ndim == 2 else t for name, t in tensors.items()}
    GPT2.from_tensors(config, tensors).save_pretrained(tmp_path)
    gpt2fast.safetensors.save_file(linear, tmp_path / "model.safetensors")
    model = GPT2.from_pretrained(tmp_path, device="cuda")
    ids = np.arange(40)
    close(model(ids), GPT2.from_tensors(config, tensors)(ids))
    model.save_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(
        gpt2fast.safetensors.load_file(tmp_path / "again" / "model.safetensors")["h.1.mlp.c_fc.weight"],
        tensors["h.1.mlp.c_fc.weight"],
    )


def test_options_that_a_gpu_does_not_have(device, cpu):
    for options, message in (
        ({"dtype": "int8"}, "dtype is 'int8'; on a GPU expected one of 'float32', 'float16', 'bfloat16'"),
        ({"gemm": "blas"}, "gemm is 'blas', which says how a CPU multiplies"),
        ({"cache_dtype": "bfloat16"}, "cache_dtype is 'bfloat16'; on a GPU the cache is kept as the weights are"),
    ):
        with pytest.raises(InputError, match=message):
            gpt2fast.load("demo", device="cuda", **options)
    with pytest.raises(InputError, match="dtype is 'int8'"):
        gpt2fast.load("demo", device="cuda").generate("a", speculate="int8")
    with pytest.raises(InputError, match="dtype is 'float16'"):
        gpt2fast.load("demo", dtype="float16")
    wide = Config(vocab_size=5, n_ctx=4, n_embd=513, n_layer=1, n_head=1)
    with pytest.raises(InputError, match="the heads are 513 wide; on a GPU 512 are the limit"):
        GPT2.from_tensors(wide, seeded.tensors(wide), device="cuda")


def test_weights_too_large_for_half_precision(device):
    needs_bfloat16(device)
    tensors = seeded.tensors(CONFIG)
    tensors["h.1.mlp.c_fc.weight"][0, 0] = 70000
    with pytest.raises(InputError, match="the weights go up to 70000, too large for float16"):
        GPT2.from_tensors(CONFIG, tensors, device="cuda", dtype="float16")
    GPT2.from_tensors(CONFIG, tensors, device="cuda", dtype="bfloat16")


@pytest.mark.slow
def test_layers_of_full_size(device):
    config = dataclasses.replace(seeded.config("gpt2"), n_layer=2, n_ctx=128)
    tensors = seeded.tensors(config)
    expected, model = GPT2.from_tensors(config, tensors), GPT2.from_tensors(config, tensors, device="cuda")
    ids, cache = np.arange(0, 50000, 1000), model.new_cache()
    close(model(ids), expected(ids), 1e-3)
    close(model.hidden_states(ids, cache), expected.hidden_states(ids), 1e-3)
    close(model([7], cache, last_only=True), expected([*ids, 7], last_only=True), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("device", [GPU], indirect=True)
@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium"])
def test_full_size(device, data, name):
    """Against transformers' logits."""
    expected = np.load(data / "reference" / f"expected-{name}.npz")
    model = GPT2.from_tensors(*seeded.published(name), device="cuda")
    for i in range(3):
        if f"ids_{i}" not in expected:
            continue
        ids, cache = expected[f"ids_{i}"], model.new_cache()
        model.hidden_states(ids[:-1], cache)
        close(model(ids[-1:], cache, last_only=True), expected[f"last_logits_{i}"], 1e-3)
        cache.truncate(0, len(ids) - 1)
        close(model.hidden_states(ids[-1:], cache)[-1], expected[f"last_hidden_{i}"], 1e-3)
