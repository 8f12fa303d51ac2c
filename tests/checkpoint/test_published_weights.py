"""The published GPT-2 (124M): its weights, its logits, and surprisals that others have published.

They need the directory of the model, with config.json, model.safetensors, vocab.json and merges.txt, in
GPT2FAST_GPT2_DIR, and are skipped without it; `gpt2fast download gpt2` prints one:

    GPT2FAST_GPT2_DIR=$(gpt2fast download gpt2) pytest tests/checkpoint/test_published_weights.py

Where transformers is installed, too, the logits are compared with its own.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

import gpt2fast
from gpt2fast.checkpoint.weights import Checkpoint

GPT2_DIR = os.environ.get("GPT2FAST_GPT2_DIR", "")

pytestmark = pytest.mark.skipif(not GPT2_DIR, reason="GPT2FAST_GPT2_DIR names no directory of the published gpt2")


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(GPT2_DIR)


@pytest.fixture(scope="module")
def lm(directory: Path) -> gpt2fast.LanguageModel:
    return gpt2fast.load(directory)


def test_shape_and_parameters(lm: gpt2fast.LanguageModel) -> None:
    config = lm.model.config
    assert (config.n_layer, config.n_head, config.n_embd, config.n_ctx, config.vocab_size) == (12, 12, 768, 1024, 50257)
    assert lm.model.num_parameters == 124_439_808


def test_the_first_weights(directory: Path) -> None:
    with Checkpoint(directory) as checkpoint:
        first = checkpoint.tensor("wte.weight")[0, :5]
    np.testing.assert_allclose(first, [-0.1101, -0.0393, 0.0331, 0.1338, -0.0485], rtol=0, atol=5.1e-5)


def test_the_tokenizer(lm: gpt2fast.LanguageModel) -> None:
    assert lm.tokenizer.encode("Hello, my name is") == [15496, 11, 616, 1438, 318]
    assert lm.tokenizer.eot_token == 50256


def test_published_surprisals(lm: gpt2fast.LanguageModel) -> None:
    """In nats, as the public figures are; the first token comes after end-of-text."""
    score = lm.score("The cat is on the mat")
    assert [token.text for token in score.tokens] == ["The", " cat", " is", " on", " the", " mat"]
    np.testing.assert_allclose(
        score.surprisal * math.log(2), [3.276, 9.222, 2.463, 4.145, 0.961, 7.237], rtol=0, atol=1e-3
    )


def test_logits_of_transformers(lm: gpt2fast.LanguageModel, directory: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float32).eval()
    ids = lm.tokenizer.encode("Hello, my name is")
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), output_hidden_states=True)
    np.testing.assert_allclose(lm.model(ids), expected.logits[0].numpy(), rtol=0, atol=1e-3)
    layers = np.stack([layer[0].numpy() for layer in expected.hidden_states])
    # The widest of gpt2's hidden states are in the thousands.
    np.testing.assert_allclose(lm.model.hidden_states(ids, layers="all"), layers, rtol=1e-4, atol=1e-2)
