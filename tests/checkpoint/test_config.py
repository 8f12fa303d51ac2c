"""config.json: what its names mean, and that its numbers, whatever they are, cost nothing before they are compared."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from paths import DATA

from gpt2fast import Config, InputError
from gpt2fast.checkpoint.config import ACTIVATIONS
from gpt2fast.model.gpt2 import GPT2

NAMES = DATA / "cases" / "m-activation-names"
SMALL = {"vocab_size": 100, "n_ctx": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}


@pytest.mark.parametrize("name", ["gelu_accurate", "gelu_fast", "gelu_python", "quick_gelu", "swish", "tanh"])
def test_activation_names(tmp_path, name):
    shutil.copy(NAMES / "model.safetensors", tmp_path)
    shutil.copy(NAMES / f"config_{name}.json", tmp_path / "config.json")
    expected = json.loads((NAMES / "expected.json").read_text())
    model = GPT2.from_pretrained(tmp_path)
    np.testing.assert_allclose(model(expected["ids"], last_only=True)[:8], expected[name], rtol=0, atol=1e-4)
    assert model.config.to_dict()["activation_function"] == name


def test_every_activation_name_has_a_kernel():
    from gpt2fast.kernels import linear
    from gpt2fast.model.cuda import operations

    assert set(ACTIVATIONS.values()) == set(linear.ACTIVATIONS) - {"linear"} == set(operations._FUNCTIONS)


@pytest.mark.parametrize("size", [*SMALL, "n_inner"])
@pytest.mark.parametrize("value", [-1, 2**31, 2**62 + 32, pytest.param(10**5000, id="endless"), True, 1.0, "8"])
def test_sizes_have_bounds(size, value):
    with pytest.raises(InputError, match=f"{size} is .*expected a whole number from 1 to") as caught:
        Config(**{**SMALL, size: value})
    assert len(str(caught.value)) < 200


def test_products_of_the_largest_sizes_fit_a_machine_word():
    """The kernels compute places in weights with 64 bits."""
    from gpt2fast.checkpoint.config import _LIMITS

    widest = max(3 * _LIMITS["n_embd"], _LIMITS["n_inner"])
    assert 8 * _LIMITS["n_embd"] * max(widest, _LIMITS["vocab_size"], _LIMITS["n_ctx"]) < 2**63


@pytest.mark.parametrize("n_layer", [10**9, 4096])
def test_more_layers_than_the_file_has(tmp_path, demo_directory, n_layer):
    """Nothing is built for layers that are not there."""
    config = json.loads((demo_directory / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(demo_directory / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_layer": n_layer}))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"n_layer is|h\.6\.ln_1\.weight"):
            GPT2.from_pretrained(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"{" + b" " * (5 << 20) + b"}", b'{"n_layer": ' + b"1" * 5000 + b"}", b"\xff", b""]
)
def test_config_json_that_is_none(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json: "):
        Config.from_pretrained(tmp_path)


def test_config_json_that_is_a_directory(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match=r"config\.json: is a directory"):
        Config.from_pretrained(tmp_path)
