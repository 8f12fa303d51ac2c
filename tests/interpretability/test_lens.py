"""The logit lens: its last row is the score, the others what transformers' recipe gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference_model

from gpt2fast.checkpoint.weights import Checkpoint
from gpt2fast.errors import InputError
from gpt2fast.hub.models import resolve
from gpt2fast.interpretability import lens
from gpt2fast.language_model import load
from gpt2fast.safetensors import save_file

TEXT = "There was once a poor woodcutter — who had two children"


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_last_row_is_the_score(dtype):
    lm = load("demo", dtype=dtype)
    score = lm.score(TEXT)
    seen = lens(lm, TEXT)
    assert seen.log_probabilities.shape == seen.ranks.shape == (7, len(score.tokens))
    assert seen.ids.tolist() == list(score.ids)
    np.testing.assert_array_equal(seen.log_probabilities[-1], score.log_probabilities)
    np.testing.assert_array_equal(seen.entropies[-1], score.entropies)
    np.testing.assert_array_equal(seen.ranks[-1], [token.rank for token in score.tokens])
    np.testing.assert_allclose(seen.surprisal[-1], [token.surprisal for token in score.tokens])


def test_every_layer_equals_the_numpy_twin():
    lm = load("demo")
    seen = lens(lm, TEXT)
    ids = [lm.model.config.bos_token_id, *seen.ids.tolist()]
    with Checkpoint(resolve("demo")) as checkpoint:
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    stages = reference_model.residuals(ids[:-1], lm.model.config, tensors)
    for row, stage in zip(seen.log_probabilities, stages[:-1:2], strict=True):
        states = reference_model.layer_norm(stage, tensors["ln_f.weight"], tensors["ln_f.bias"], 1e-5)
        logits = states @ tensors["wte.weight"].T.astype(np.float64)
        expected = np.log(reference_model.softmax(logits))[np.arange(len(seen.ids)), seen.ids]
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-3)


def test_no_text():
    with pytest.raises(InputError, match="no token"):
        lens(load("demo"), "")


@pytest.mark.parametrize("plain", [False, True])
def test_tuned(tmp_path, plain):
    """The maps are put between the stream and the final LayerNorm, in both layouts."""
    lm, rng = load("demo"), np.random.default_rng(3)
    n_embd = lm.model.config.n_embd
    weights = rng.normal(0, 0.02, (6, n_embd, n_embd)).astype(np.float32)
    biases = rng.normal(0, 0.5, (6, n_embd)).astype(np.float32)
    prefix = "map." if plain else ""
    tensors = {f"{prefix}{i}.weight": weights[i] for i in range(6)} | {f"{prefix}{i}.bias": biases[i] for i in range(5)}
    biases[5] = 0  # which the file does not have
    save_file(tensors, tmp_path / "lens.safetensors")
    seen = lens(lm, TEXT, tuned=tmp_path / "lens.safetensors")
    np.testing.assert_array_equal(seen.log_probabilities[-1], lens(lm, TEXT).log_probabilities[-1])
    ids = [lm.model.config.bos_token_id, *seen.ids.tolist()]
    streams = lm.model.hidden_states(ids[:-1], layers=range(6))
    with Checkpoint(resolve("demo")) as checkpoint:
        tensors = {name: checkpoint.tensor(name) for name in ("ln_f.weight", "ln_f.bias", "wte.weight")}
    for layer, stream in enumerate(streams.astype(np.float64)):
        mapped = stream @ weights[layer].T + biases[layer] + (0 if plain else stream)
        states = reference_model.layer_norm(mapped, tensors["ln_f.weight"], tensors["ln_f.bias"], 1e-5)
        expected = np.log(reference_model.softmax(states @ tensors["wte.weight"].T.astype(np.float64)))
        found = seen.log_probabilities[layer]
        np.testing.assert_allclose(found, expected[np.arange(len(seen.ids)), seen.ids], rtol=0, atol=1e-3)
    np.testing.assert_allclose(seen.surprisal, -seen.log_probabilities / math.log(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"3.weight": None}, r"has no tensor '3\.weight'"),
        ({"2.bias": np.zeros(3, np.float32)}, r"'2\.bias' of shape \(3,\); expected \(256,\)"),
        ({"6.weight": np.zeros((256, 256), np.float32)}, r"'6\.weight', which is of no layer"),
        ({"0.bias": np.full(256, np.nan, np.float32)}, r"'0\.bias' has values that are not finite"),
    ],
)
def test_a_tuned_lens_of_another_model(tmp_path, change, message):
    tensors = {f"{i}.weight": np.zeros((256, 256), np.float32) for i in range(6)} | change
    save_file({name: array for name, array in tensors.items() if array is not None}, tmp_path / "lens.safetensors")
    with pytest.raises(InputError, match=message):
        lens(load("demo"), TEXT, tuned=tmp_path / "lens.safetensors")


def test_a_tuned_lens_of_pytorch(tmp_path):
    with pytest.raises(InputError, match=r"params\.pt is a pickle of PyTorch; expected a safetensors file"):
        lens(load("demo"), TEXT, tuned=tmp_path / "params.pt")
