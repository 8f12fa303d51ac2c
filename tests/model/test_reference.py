"""Logits, hidden states and greedy texts equal to Hugging Face transformers', for every variant of checkpoint."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import reference_model
import seeded

from gpt2fast.checkpoint.config import Config
from gpt2fast.checkpoint.weights import Checkpoint
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.scoring.score import score_texts

VARIANTS = ["epsilon", "gelu-exact", "inner", "no-attn-scale", "plain", "relu", "scale-by-layer", "untied"]
GEMMS = ["panel", "blas"]


def greedy(model, prompt, count):
    ids, cache, new = list(prompt), model.new_cache(), list(prompt)
    for _ in range(count):
        new = [int(model(new, cache, last_only=True).argmax())]
        ids += new
    return ids


class Listed:
    """A tokenizer that knows one context of one id and one text, the ids that come after it."""

    def __init__(self, ids, n_vocab):
        self.ids, self.n_vocab = ids.tolist(), n_vocab

    def encode_to_numpy(self, text, **special):
        return np.array(self.ids[:1], np.uint32)

    def encode_with_offsets_flat(self, text, **special):
        return np.array(self.ids[1:], np.uint32), np.zeros((len(self.ids) - 1, 2), np.int64)


def close(actual, expected, atol=1e-4):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_checkpoint(tiny, variant, gemm):
    expected = np.load(tiny / variant / "expected.npz")
    model = GPT2.from_pretrained(tiny / variant, gemm=gemm)
    ids = expected["ids"]
    close(model(ids), expected["logits"])
    close(model(ids[1]), expected["logits"][1])
    close(model(ids, last_only=True), expected["logits"][:, -1])
    close(model.hidden_states(ids), expected["hidden"])
    assert greedy(model, expected["greedy"][:6], 24) == expected["greedy"].tolist()
    lengths = expected["ragged_lengths"]
    ragged = model.extend(model.new_cache(batch=3), [0, 1, 2], [row[:n] for row, n in zip(ids, lengths, strict=True)])
    close(ragged, expected["ragged_last_logits"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_numpy_twin(tiny, variant):
    expected = np.load(tiny / variant / "expected.npz")
    with Checkpoint(tiny / variant) as checkpoint:
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
        close(reference_model.logits(expected["ids"][0], checkpoint.config, tensors), expected["logits"][0])


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("bare-names-with-mask", "plain/expected"),
        ("prefixed-with-head-and-bool-mask", "plain/expected"),
        ("float16", "plain-variants/expected-float16"),
        ("bfloat16", "plain-variants/expected-bfloat16"),
        ("sharded", "plain/expected"),
    ],
)
def test_same_weights_under_other_names_and_types(tiny, tmp_path, file, expected):
    directory = tiny / "plain-variants" / file
    if not directory.is_dir():
        directory = tmp_path
        shutil.copy(tiny / "plain" / "config.json", tmp_path)
        shutil.copy(tiny / "plain-variants" / f"{file}.safetensors", tmp_path / "model.safetensors")
    values = np.load(tiny / f"{expected}.npz")
    close(GPT2.from_pretrained(directory)(values["ids"]), values["logits"])


def test_save_and_load(tiny, tmp_path):
    expected = np.load(tiny / "untied" / "expected.npz")
    model = GPT2.from_pretrained(tiny / "untied")
    model.save_pretrained(tmp_path / "saved")
    again = GPT2.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(again(expected["ids"]), model(expected["ids"]))
    assert again.config == model.config
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["n_positions"] == 64


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gemm"), [(name, gemm) for name in ("gpt2", "gpt2-medium") for gemm in GEMMS])
def test_full_size(data, name, gemm):
    expected = np.load(data / "reference" / f"expected-{name}.npz")
    config, tensors = seeded.published(name)
    model = GPT2.from_tensors(config, tensors, gemm=gemm)
    assert model.num_parameters == expected["parameters"]
    assert model.num_parameters == {"gpt2": 124_439_808, "gpt2-medium": 354_823_168}[name]
    for i in range(3):
        if f"ids_{i}" not in expected:
            continue
        ids = expected[f"ids_{i}"]
        (score,) = score_texts(model, Listed(ids, config.vocab_size), [""], bos=False)
        close(score.log_probabilities, expected[f"token_logprobs_{i}"], 1e-3)
        # The last token's logits and hidden state come of a pass of its own, over the cache that another has left.
        cache = model.new_cache()
        model.hidden_states(ids[:-1], cache)
        close(model(ids[-1:], cache, last_only=True), expected[f"last_logits_{i}"], 1e-3)
        cache.truncate(0, len(ids) - 1)
        close(model.hidden_states(ids[-1:], cache)[-1], expected[f"last_hidden_{i}"], 1e-3)
    chosen = expected["greedy"]
    prompt = len(expected["ids_0"])
    assert greedy(model, chosen[:prompt], len(chosen) - prompt) == chosen.tolist()


def test_published_sizes_have_their_parameters():
    def count(layers, heads, width):
        config = Config(vocab_size=50257, n_ctx=1024, n_embd=width, n_layer=layers, n_head=heads)
        return sum(int(np.prod(shape)) for shape in seeded.expected_shapes(config).values())

    assert [count(*seeded.SIZES[name]) for name in seeded.SIZES] == [124439808, 354823168, 774030080, 1557611200]
