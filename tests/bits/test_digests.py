"""Golden digests of logits, hidden states, scores, texts and packed weights: every CPU level gives the same bits.

A change of the kernels that fails here changes what every user has computed so far.  Where that is meant, increase
`gpt2fast.numerics_version`, say so in the changelog, and run `python tests/tools/bits.py --update`.
"""

from __future__ import annotations

import bits
import pytest

import gpt2fast


@pytest.mark.parametrize("dtype", bits.DTYPES)
@pytest.mark.parametrize("name", bits.MODELS)
def test_models(level, name, dtype):
    assert bits.problems(name, dtype) == []


def test_functions(level):
    assert bits.functions() == bits.golden()["functions"]


def test_three_ways_to_the_same_logits():
    for name, model in bits.golden()["models"].items():
        assert len({model["digests"][way] for way in ("prompt", "cached", "batch")}) == 1, name


def test_digests_belong_to_this_version():
    assert gpt2fast.numerics_version == bits.golden()["numerics_version"]


def test_the_kernel_that_differs_is_named():
    """A model with another epsilon has another LayerNorm, and with it all that follows."""
    model = bits.load("untied", "float32")
    expected = bits.short(model)
    bias = model._parameters.others["h.1.ln_2.bias"]
    bias[0] += 1
    assert bits.first_difference(model, expected) == "h.1.ln_2 (layer_norm)"
