"""Models are pickled and copied: as the directory that they came from, or with all their tensors."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys
from multiprocessing import get_context

import numpy as np
import pytest
import seeded
from paths import DATA

import gpt2fast
from gpt2fast import Config, InputError, MissingFileError
from gpt2fast.model.gpt2 import GPT2

CONFIG = Config(vocab_size=40, n_ctx=16, n_embd=16, n_layer=2, n_head=2)
IDS = [3, 1, 4, 1, 5]
DTYPES = ["float32", "bfloat16", "int8", "int4"]


def same(model, other):
    np.testing.assert_array_equal(other(IDS), model(IDS))
    for name in ("config", "dtype", "gemm", "device", "num_threads", "nbytes"):
        assert getattr(other, name) == getattr(model, name)
    assert other.new_cache().half == model.new_cache().half


@pytest.mark.parametrize("dtype", DTYPES)
def test_by_directory(tiny, tmp_path, monkeypatch, dtype):
    shutil.copytree(tiny / "untied", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = GPT2.from_pretrained("model", dtype=dtype, num_threads=2, cache_dtype="bfloat16")
    content = pickle.dumps(model)
    assert len(content) < 2000
    monkeypatch.chdir("/")  # the path holds in other places, too
    same(model, pickle.loads(content))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [True, False])
def test_by_tensors(dtype, tied):
    """Bit for bit, without quantising a second time."""
    config = Config(**{**CONFIG.__dict__, "tie_word_embeddings": tied})
    model = GPT2.from_tensors(config, seeded.tensors(config), dtype=dtype, num_threads=1)
    same(model, pickle.loads(pickle.dumps(model)))
    smaller = model.with_dtype("int8")
    same(smaller, pickle.loads(pickle.dumps(smaller)))


def test_by_tensors_with_blas():
    model = GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG), gemm="blas")
    again = pickle.loads(pickle.dumps(model))
    assert again.gemm == "blas"
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=0, atol=1e-6)


def test_with_an_adapter():
    model = GPT2.from_pretrained(
        DATA / "adapters" / "base-tied", adapter=DATA / "adapters" / "lora-head-tied", dtype="int8"
    )
    same(model, pickle.loads(pickle.dumps(model)))


def test_threads_that_were_set_later():
    model = GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG))
    model.num_threads = 3
    assert pickle.loads(pickle.dumps(model)).num_threads == 3
    assert copy.deepcopy(model).num_threads == 3


def test_other_weights_in_the_directory(tiny, tmp_path):
    shutil.copytree(tiny / "plain", tmp_path / "model")
    content = pickle.dumps(GPT2.from_pretrained(tmp_path / "model"))
    seeded_model = GPT2.from_pretrained(tmp_path / "model")
    tensors = seeded_model._parameters.tensors(packed=False)
    GPT2.from_tensors(seeded_model.config, {**tensors, "h.0.ln_1.bias": tensors["h.0.ln_1.bias"] + 1}).save_pretrained(
        tmp_path / "model"
    )
    with pytest.raises(InputError, match="the weights are not those of the model that was pickled"):
        pickle.loads(content)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(MissingFileError, match="there is no such directory"):
        pickle.loads(content)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_copies_share_the_weights(make):
    model = GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG), dtype="int8")
    other = make(model)
    same(model, other)
    assert other is not model
    other.num_threads = 7
    assert model.num_threads != 7
    assert other._network is model._network


def test_language_models():
    lm = gpt2fast.load("demo")
    lm.drafter(speculate="int8")
    expected = lm.generate("Once upon a time", max_new_tokens=5, temperature=0).text
    for other in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm))):
        assert other.generate("Once upon a time", max_new_tokens=5, temperature=0).text == expected
        assert not other._drafts or other is lm
    assert len(pickle.dumps(lm.model)) < 2000


def perplexity(lm, text):
    return lm.score(text).perplexity


def test_in_another_process():
    lm = gpt2fast.load("demo")
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(perplexity, (lm, "Once upon a time")) == lm.score("Once upon a time").perplexity


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_model_knows_its_own_dtype(tiny, tmp_path, dtype):
    model = GPT2.from_pretrained(tiny / "plain", dtype=dtype)
    model.save_pretrained(tmp_path, packed=True)
    again = GPT2.from_pretrained(tmp_path)
    same(model, again)
    same(model, pickle.loads(pickle.dumps(again)))


def test_a_packed_model_from_the_shell(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "gpt2fast", *arguments]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    run("pack", "--dtype", "int4", str(tmp_path))
    options = ["generate", "Once", "--temperature", "0", "--tokens", "4", "--quiet"]
    assert run(*options, "--model", str(tmp_path)) == run(*options, "--dtype", "int4")
    assert run("bench", "--model", str(tmp_path), "--rounds", "1", "--json").count('"int4"') >= 1
