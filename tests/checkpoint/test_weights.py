"""Configurations and checkpoints that gave other projects trouble: right logits, or an error that names the tensor."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import seeded
from paths import DATA

from gpt2fast import Error, InputError, InputTypeError, MissingFileError
from gpt2fast import safetensors as st
from gpt2fast.checkpoint.config import Config
from gpt2fast.checkpoint.names import TABLES, expected_shapes
from gpt2fast.model.gpt2 import GPT2

CASES = DATA / "cases"


def with_config(tmp_path, case, config):
    shutil.copy(CASES / case / "model.safetensors", tmp_path)
    shutil.copy(CASES / case / f"config_{config}.json", tmp_path / "config.json")
    return tmp_path


@pytest.mark.parametrize("activation", ["gelu_new", "gelu", "gelu_pytorch_tanh", "relu", "silu"])
def test_activation(model_case, tmp_path, activation):
    case = model_case("m-activation")
    model = GPT2.from_pretrained(with_config(tmp_path, "m-activation", activation))
    logits = model(case["input"]["ids"], last_only=True)
    np.testing.assert_allclose(logits, case["expected"]["last_logits"][activation], rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", ["eps_0.3", "eps_1e-12", "absent", "extra_keys", "alias_names"])
def test_configuration_keys(model_case, tmp_path, config):
    case = model_case("m-config-keys")
    logits = GPT2.from_pretrained(with_config(tmp_path, "m-config-keys", config))(case["input"]["ids"], last_only=True)
    expected = case["expected"]["last_logits"]["absent" if config == "alias_names" else config]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "config", "message"),
    [
        ("m-activation", "unknown", "activation_function"),
        ("m-config-keys", "wrong_type", "model_type is 'gptj'"),
        ("m-config-keys", "missing_n_head", "n_head is missing"),
    ],
)
def test_bad_configuration(tmp_path, case, config, message):
    with pytest.raises(InputError, match=message) as caught:
        GPT2.from_pretrained(with_config(tmp_path, case, config))
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("kind", ["f16", "bf16", "mixed", "f16_config_says_bf16"])
def test_half_precision(model_case, kind):
    case = model_case("w-half-precision")
    logits = GPT2.from_pretrained(CASES / "w-half-precision" / kind)(case["input"]["ids"], last_only=True)
    np.testing.assert_allclose(logits, case["expected"]["last_logits"][kind], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("directory", "messages"),
    [
        ("missing_bias", ["bias", "is missing"]),
        ("missing_wpe", ["wpe.weight", "is missing"]),
        ("config_more_layers", ["h.3.", "is missing"]),
        ("config_fewer_layers", ["h.2.", "is not part of this model"]),
        ("vocab_mismatch", ["wte.weight", "expected"]),
        ("heads_not_dividing", ["n_head"]),
        ("int_weights", ["is of type I"]),
    ],
)
def test_incomplete(directory, messages):
    with pytest.raises(Error) as caught:
        GPT2.from_pretrained(CASES / "w-incomplete" / directory)
    for message in [directory, *messages]:
        assert message in str(caught.value)


def test_integer_weights_are_a_type_error():
    with pytest.raises(InputTypeError):
        GPT2.from_pretrained(CASES / "w-incomplete" / "int_weights")


def test_linear_layout_is_recognised(model_case):
    case = model_case("w-incomplete")
    ids = model_case("m-activation")["input"]["ids"]
    logits = GPT2.from_pretrained(CASES / "w-incomplete" / "linear_layout")(ids, last_only=True)
    expected = case["expected"]["linear_layout_logits_if_accepted"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_nanogpt_without_biases(tmp_path):
    arguments = {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 12,
        "block_size": 9,
        "bias": False,
        "vocab_size": 31,
        "dropout": 0.0,
    }
    config = Config.from_dict(arguments)
    assert (config.n_ctx, config.activation_function) == (9, "gelu")
    random = np.random.default_rng(3)
    shapes = expected_shapes(config)
    assert not any(name.endswith("bias") for name in shapes)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    matrices = {name for name, values in tensors.items() if values.ndim == 2} - {*TABLES, "wpe.weight"}
    linear = {
        f"_orig_mod.transformer.{name}": values.T if name in matrices else values for name, values in tensors.items()
    }
    st.save_file({**linear, "lm_head.weight": tensors["wte.weight"]}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(arguments))
    model = GPT2.from_pretrained(tmp_path)

    # The same network with biases of 0.
    whole = replace(config, bias=True)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in expected_shapes(whole).items()}
    np.testing.assert_array_equal(model([1, 2, 3]), GPT2.from_tensors(whole, {**zeros, **tensors})([1, 2, 3]))
    assert model.num_parameters == sum(values.size for values in tensors.values())
    model.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(GPT2.from_pretrained(tmp_path / "saved")([1, 2, 3]), model([1, 2, 3]))

    (tmp_path / "config.json").write_text(json.dumps({**arguments, "bias": True}))
    with pytest.raises(InputError, match=r'there are no biases.*"bias": false.*h.0.ln_1.bias'):
        GPT2.from_pretrained(tmp_path)


@pytest.mark.parametrize("directory", ["model", "evil"])
def test_pickles_are_not_read(directory):
    with pytest.raises(MissingFileError) as caught:
        GPT2.from_pretrained(CASES / "w-pickle-only" / directory)
    message = str(caught.value)
    assert directory in message
    assert "safetensors" in message
    assert "pytorch_model.bin was found, but is not read" in message
    assert not Path("/tmp/gpt2fast_pickle_was_run").exists()


def test_renamed_pickle():
    with pytest.raises(InputError, match="safetensors"):
        GPT2.from_pretrained(CASES / "w-pickle-only" / "renamed")


def test_ragged_batch_is_not_padded(model_case):
    case = model_case("m-left-padding")
    model = GPT2.from_pretrained(CASES / case["input"]["model"])
    texts = case["input"]["sequences"]
    rows = model.extend(model.new_cache(batch=len(texts)), list(range(len(texts))), texts)
    np.testing.assert_allclose(rows, case["expected"]["last_logits_per_row"], rtol=0, atol=1e-4)


def test_context_limit(model_case):
    case = model_case("m-context-limit")
    model = GPT2.from_pretrained(CASES / case["input"]["model"])
    logits = model(case["input"]["ids_ok"], last_only=True)
    np.testing.assert_allclose(logits, case["expected"]["ok_last_logits"], rtol=0, atol=1e-4)
    with pytest.raises(InputError, match=r"25 tokens long; the limit is 24"):
        model(case["input"]["ids_too_long"])
    for name in ("ids_negative", "ids_over", "ids_float"):
        with pytest.raises(Error):
            model(case["input"][name])


def test_directory_that_is_not_a_model(tmp_path):
    with pytest.raises(MissingFileError, match="config.json"):
        GPT2.from_pretrained(tmp_path)
    with pytest.raises(MissingFileError, match="no such directory"):
        GPT2.from_pretrained(tmp_path / "nowhere")
    for text in ("", "{", "[]", '{"model_type": "gpt2"}', "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match="config.json"):
            GPT2.from_pretrained(tmp_path)
    config = Config(vocab_size=5, n_ctx=4, n_embd=8, n_layer=1, n_head=2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(MissingFileError, match="there is no model.safetensors"):
        GPT2.from_pretrained(tmp_path)


def test_arrays_are_checked():
    config = Config(vocab_size=5, n_ctx=4, n_embd=8, n_layer=1, n_head=2)
    tensors = seeded.tensors(config)
    del tensors["wpe.weight"]
    tensors["h.0.ln_1.bias"] = np.zeros(9, np.float32)
    tensors["extra"] = np.zeros(1, np.float32)
    with pytest.raises(InputError) as caught:
        GPT2.from_tensors(config, tensors)
    for message in ("wpe.weight [4, 8] is missing", "h.0.ln_1.bias is [9], expected [8]", "extra is not part"):
        assert message in str(caught.value)
    tensors = seeded.tensors(config)
    tensors["transformer.wte.weight"] = tensors["wte.weight"]
    with pytest.raises(InputError, match="wte.weight twice"):
        GPT2.from_tensors(config, tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_embd": 0}, "n_embd is 0"),
        ({"n_layer": True}, "n_layer is True"),
        ({"n_head": 3}, "n_head is 3, which does not divide n_embd"),
        ({"n_inner": -1}, "n_inner"),
        ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon"),
        ({"scale_attn_weights": 1}, "scale_attn_weights"),
        ({"eos_token_id": "x"}, "eos_token_id"),
    ],
)
def test_bad_values_are_named(change, message):
    values = {"vocab_size": 5, "n_ctx": 4, "n_embd": 8, "n_layer": 1, "n_head": 2, **change}
    with pytest.raises(InputError, match=message):
        Config(**values)


def test_options_are_checked(tiny):
    for options in ({"dtype": "float8"}, {"device": "tpu"}, {"gemm": "magic"}, {"num_threads": 0}):
        with pytest.raises(InputError, match=next(iter(options))):
            GPT2.from_pretrained(tiny / "plain", **options)


def test_shards_must_agree_with_their_index(tiny, tmp_path):
    shutil.copytree(tiny / "plain-variants" / "sharded", tmp_path / "model")
    index_path = tmp_path / "model" / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    files = sorted(set(index["weight_map"].values()))
    moved = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][moved] = files[1]
    index_path.write_text(json.dumps(index))
    with pytest.raises(InputError, match=moved):
        GPT2.from_pretrained(tmp_path / "model")


def test_saved_in_shards(tiny, tmp_path):
    model = GPT2.from_pretrained(tiny / "inner")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    np.testing.assert_array_equal(GPT2.from_pretrained(tmp_path)([1, 2, 3]), model([1, 2, 3]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", ["plain", "untied"])
def test_packed_files_give_the_same_model(tiny, tmp_path, dtype, name):
    model = GPT2.from_pretrained(tiny / name, dtype=dtype)
    for size in ("5GB", 4000):
        model.save_pretrained(tmp_path, packed=True, max_shard_size=size)
        again = GPT2.from_pretrained(tmp_path, dtype=dtype)
        np.testing.assert_array_equal(again([1, 2, 3]), model([1, 2, 3]))
        assert again.nbytes == model.nbytes
    other = "int8" if dtype != "int8" else "float32"
    with pytest.raises(InputError, match=f"the weights are packed as {dtype}; load them with dtype='{dtype}'"):
        GPT2.from_pretrained(tmp_path, dtype=other)


def test_packed_files_are_checked(tiny, tmp_path):
    GPT2.from_pretrained(tiny / "plain", dtype="int8").save_pretrained(tmp_path, packed=True)
    path = tmp_path / "model.safetensors"
    whole = st.read_file(path)
    name = "h.0.mlp.c_fc.weight"
    for change, metadata, words in [
        ({name: whole.tensors[name][:-1]}, {}, rf"{name} is \[\d+\], expected \[\d+\]"),
        ({name: np.zeros(3, np.float32)}, {}, f"{name} is"),
        ({}, {"gpt2fast.panels": "int8/0"}, "packed as 'int8/0'; this version reads"),
        ({}, {"gpt2fast.panels": "int9/1"}, "packed as 'int9/1'"),
        ({}, {"gpt2fast.panels": "int4/1"}, f"{name} is"),
        ({}, {"gpt2fast.numerics_version": "0"}, "packed with gpt2fast.numerics_version 0; this version has"),
    ]:
        st.save_file({**whole.tensors, **change}, path, {**whole.metadata, **metadata})
        for dtype in ("int8", "int4"):
            with pytest.raises(InputError, match=words):
                GPT2.from_pretrained(tmp_path, dtype=dtype)
    with pytest.raises(InputError, match="only a model in panels can be packed"):
        GPT2.from_pretrained(tiny / "plain", gemm="blas").save_pretrained(tmp_path, packed=True)
