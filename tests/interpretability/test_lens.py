"""The logit lens: its last row is the score, the others what transformers' recipe gives."""

from __future__ import annotations

import numpy as np
import pytest
import reference_model

from gpt2fast.checkpoint.weights import Checkpoint
from gpt2fast.errors import InputError
from gpt2fast.hub.models import resolve
from gpt2fast.interpretability import lens
from gpt2fast.language_model import load

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
