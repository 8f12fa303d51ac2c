"""Checkpoints whose numbers lie: config.json and files of weights, ordinary and packed, with something wrong in them.

Each is refused with an error of this package, or is a model that runs.  The kernels trust what is loaded, so this file
is run under the sanitizers, too (`make sanitize`), and is what `tests/tools/fuzz_checkpoint.py` fuzzes.
"""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import gpt2fast
from gpt2fast import Config, InputError
from gpt2fast import safetensors as st
from gpt2fast.checkpoint.names import expected_shapes, inputs_and_outputs, packed_names
from gpt2fast.checkpoint.weights import DTYPES, packed_metadata
from gpt2fast.kernels.linear import packed_size
from gpt2fast.model.gpt2 import GPT2

SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")
# Around the limits of machine words, and what is no number.
NUMBERS = [
    *(0, -1, 1, 2, 31, 33, 2**24, 2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**62 + 32, 2**63 - 1, 2**63, 2**64, 10**30),
    *(1.5, 1e308, float("nan"), float("inf"), True, None, "8", [], [1], {}),
]


@some.composite
def checkpoints(draw):
    """A configuration as config.json has it, the tensors that fit it, and the file's metadata."""
    heads, width = draw(some.integers(1, 3)), draw(some.sampled_from([1, 2, 8, 17]))
    values = {
        "vocab_size": draw(some.integers(1, 70)),
        "n_positions": draw(some.integers(1, 20)),
        "n_embd": heads * width,
        "n_layer": draw(some.integers(1, 2)),
        "n_head": heads,
        "n_inner": draw(some.sampled_from([None, 1, 33, 64, 65])),
        "tie_word_embeddings": draw(some.booleans()),
        "bias": draw(some.booleans()),
        "activation_function": draw(some.sampled_from(["gelu_new", "gelu", "relu", "silu", "quick_gelu", "tanh"])),
    }
    config = Config.from_dict(values)
    dtype = draw(some.sampled_from([None, *DTYPES]))
    panels = packed_names(config) if dtype else []
    random = np.random.default_rng(draw(some.integers(0, 9)))
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if name in panels:
            size = packed_size(*inputs_and_outputs(config, name), dtype)
            # Numbers that packing makes: of int8 no -128, of bfloat16 those around 1.
            tensors[name] = random.integers(dtype == "int8", 256, size).astype(np.uint8)
            if dtype == "bfloat16":
                tensors[name][1::2] = 0x3F
        else:
            tensors[name] = random.standard_normal(shape).astype(np.float32)
    return values, tensors, packed_metadata(dtype) if dtype else {}


@some.composite
def changed(draw):
    """One of these with up to two things changed."""
    values, tensors, metadata = copy.deepcopy(draw(checkpoints()))
    for _ in range(draw(some.integers(0, 2))):
        kind = draw(some.sampled_from(["number", "wrapped", "option", "shape", "type", "missing", "name", "metadata"]))
        name = draw(some.sampled_from(sorted(tensors) or ["none"]))
        if kind == "number":
            values[draw(some.sampled_from(SIZES))] = draw(some.sampled_from(NUMBERS))
        elif kind == "wrapped":  # the same size modulo 2**64, in bytes or in elements
            size = draw(some.sampled_from(SIZES))
            if isinstance(values[size], int):
                values[size] += 2 ** draw(some.integers(24, 66)) * draw(some.sampled_from([-1, 1]))
        elif kind == "option":
            keys = ["layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "eos_token_id"]
            keys += ["tie_word_embeddings", "bias", "activation_function", "model_type", "max_position_embeddings"]
            values[draw(some.sampled_from(keys))] = draw(some.sampled_from([*NUMBERS, False, "gelu", "gpt2"]))
        elif kind == "metadata":
            metadata = {
                "gpt2fast.panels": draw(some.sampled_from(["int8/1", "float32/1", "int4/1", "int8/2", "/", ""]))
            }
        elif name not in tensors:
            continue
        elif kind == "shape":
            flat = tensors[name].reshape(-1)
            tensors[name] = draw(some.sampled_from([flat, flat[:-1], flat[:0], tensors[name].T, tensors[name][None]]))
        elif kind == "type":
            tensors[name] = tensors[name].real.astype(draw(some.sampled_from(["u1", "f2", "f8", "i4", "?", "c8"])))
        else:
            values_of = tensors.pop(name)
            if kind == "name":
                other = draw(some.sampled_from(["lm_head.weight", "lm_head.decoder.weight", "transformer." + name]))
                tensors.setdefault(other, values_of)
    return values, tensors, metadata


def attempt(directory, values, tensors, metadata):
    """The model that this is, which has run; None where it was refused."""
    st.save_file(tensors, directory / "model.safetensors", metadata)
    (directory / "config.json").write_text(json.dumps(values))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model = GPT2.from_pretrained(directory)
            config = model.config
            assert config.vocab_size <= 200
            assert config.n_ctx <= 200
            ids = np.arange(config.n_ctx) * 7 % config.vocab_size
            ids[-1] = config.vocab_size - 1
            assert model(ids).shape == (config.n_ctx, config.vocab_size)
            cache = model.new_cache(2)
            model.extend(cache, [1], [ids[:1]])
            cache.copy_row(1, 0)
            assert model.hidden_states(ids, layers="all").shape == (config.n_layer + 1, config.n_ctx, config.n_embd)
    except gpt2fast.Error:
        return None
    return model


@given(changed())
def test_refused_or_a_model(tmp_path_factory, checkpoint):
    directory = tmp_path_factory.getbasetemp() / "hostile"
    directory.mkdir(exist_ok=True)
    attempt(directory, *checkpoint)


@given(checkpoints())
def test_the_frame_of_these_is_a_model(tmp_path_factory, checkpoint):
    directory = tmp_path_factory.getbasetemp() / "hostile"
    directory.mkdir(exist_ok=True)
    assert attempt(directory, *checkpoint) is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_sizes_that_are_right_modulo_a_machine_word(tmp_path, dtype, size):
    """Of each dtype's panels of 32 outputs 2**57 and more make a number of bytes that wraps around."""
    model = GPT2.from_tensors(
        config := Config(vocab_size=32, n_ctx=16, n_embd=4, n_layer=1, n_head=1, n_inner=32),
        {name: np.ones(shape, np.float32) for name, shape in expected_shapes(config).items()},
        dtype=dtype,
    )
    model.save_pretrained(tmp_path, packed=True)
    values = json.loads((tmp_path / "config.json").read_text())
    values.pop("n_ctx")
    for power in range(31, 66):
        (tmp_path / "config.json").write_text(json.dumps({**values, size: (values[size] or 16) + 2**power}))
        with pytest.raises(InputError, match=f"{'n_ctx' if size == 'n_positions' else size} is"):
            GPT2.from_pretrained(tmp_path)


@pytest.mark.parametrize(("dtype", "code"), [("int8", [0]), ("bfloat16", [1, 0]), ("bfloat16", [0x80, 0xDF])])
def test_packed_numbers_that_packing_never_makes(tmp_path, dtype, code):
    """An int8 of -128 and a bfloat16 outside its limits would be multiplied differently at different CPU levels."""
    config = Config(vocab_size=32, n_ctx=16, n_embd=4, n_layer=1, n_head=1, n_inner=32)
    tensors = {name: np.ones(shape, np.float32) for name, shape in expected_shapes(config).items()}
    GPT2.from_tensors(config, tensors, dtype=dtype).save_pretrained(tmp_path, packed=True)
    file = st.read_file(tmp_path / "model.safetensors")
    panels = dict(file.tensors)
    name = packed_names(config)[-1]
    panels[name] = panels[name].copy()
    panels[name][100 : 100 + len(code)] = code
    st.save_file(panels, tmp_path / "model.safetensors", metadata=file.metadata)
    with pytest.raises(InputError, match=f"{name}: byte 100 of the packed weights is of no {dtype} number"):
        GPT2.from_pretrained(tmp_path)
