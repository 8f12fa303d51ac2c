"""The script of docs/moving/transformerlens.md finds what TransformerLens finds: logit attribution, patching."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpt2fast.hub.models import resolve
from gpt2fast.interpretability import patch_sweep
from gpt2fast.language_model import load
from gpt2fast.safetensors import load_file

CLEAN = "Once upon a time there was a king who lived in the forest. One day the"
CORRUPTED = "Once upon a time there was a fox who lived in the forest. One day the"


@pytest.fixture(scope="module")
def expected():
    path = Path(__file__).parents[1] / "data" / "reference" / "study" / "transformerlens.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lm():
    return load("demo")


def tokens(lm):
    return [lm.tokenizer.encode_single_token(word) for word in (" king", " fox")]


def test_logit_attribution(lm, expected):
    king, fox = tokens(lm)
    ids = [lm.tokenizer.eot_token, *lm.tokenizer.encode(CLEAN)]
    logits, cache = lm.model.run_with_cache(ids)
    weights = load_file(Path(resolve("demo")) / "model.safetensors")
    head = weights["wte.weight"].astype(np.float32)
    direction = (head[king] - head[fox]) * weights["ln_f.weight"]
    parts, labels = cache.decompose_resid()
    layers = cache.apply_ln_to_stack(parts)[:, 0, -1] @ direction
    results, names = cache.stack_head_results()
    heads = cache.apply_ln_to_stack(results)[:, 0, -1] @ direction
    assert (labels, names) == (expected["labels"], expected["head_labels"])
    np.testing.assert_allclose(layers, expected["layers"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(heads, expected["heads"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(logits[-1, king] - logits[-1, fox], expected["difference"][0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["z", "resid_pre"])
def test_patching(lm, expected, name):
    king, fox = tokens(lm)
    found = patch_sweep(lm, CLEAN, CORRUPTED, lambda logits: logits[king] - logits[fox], name, last_only=True)
    np.testing.assert_allclose(found, expected[name], rtol=0, atol=2e-5)
