"""The output head and the names around it: what is stored is used, whatever config.json says of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from paths import DATA

from gpt2fast import Config, InputError
from gpt2fast import safetensors as st
from gpt2fast.checkpoint.inspect import inspect
from gpt2fast.checkpoint.names import is_matrix
from gpt2fast.cli import main
from gpt2fast.model.gpt2 import GPT2

CASES = DATA / "cases"
IDS = [1, 2, 3]


@pytest.fixture
def untied(tiny):
    """The tensors of a model with a head of its own, by their bare names, and its configuration."""
    tensors = st.load_file(tiny / "untied" / "model.safetensors")
    return {k.removeprefix("transformer."): v for k, v in tensors.items()}, Config.from_pretrained(tiny / "untied")


def write(directory, tensors, config, **changes):
    directory.mkdir(exist_ok=True)
    st.save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**config.to_dict(), **changes}))
    return directory


@pytest.mark.parametrize("case", ["w-head-differs", "w-value-head"])
@pytest.mark.filterwarnings("ignore:.*left out.*v_head")
def test_cases(case):
    expected = json.loads((CASES / case / "expected.json").read_text())
    logits = GPT2.from_pretrained(CASES / case)(expected["ids"], last_only=True)
    np.testing.assert_allclose(logits[:8], expected["last logits, the first eight"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("prefix", ["", "transformer.", "_orig_mod.", "_orig_mod.transformer."])
@pytest.mark.parametrize("head", ["lm_head.weight", "lm_head.decoder.weight"])
@pytest.mark.parametrize("layout", ["published", "nanogpt", "sharded"])
def test_a_head_that_differs_is_used(tmp_path, untied, tiny, prefix, head, layout):
    tensors, config = untied
    expected = GPT2.from_pretrained(tiny / "untied")(IDS)
    named = {
        (prefix + name if name != "lm_head.weight" else prefix.removesuffix("transformer.") + head): (
            values.T if layout == "nanogpt" and is_matrix(name) else values
        )
        for name, values in tensors.items()
    }
    write(tmp_path, named, config, tie_word_embeddings=True)
    if layout == "sharded":
        st.save_sharded(named, tmp_path, max_shard_size="20KB")
    model = GPT2.from_pretrained(tmp_path)
    np.testing.assert_array_equal(model(IDS), expected)
    assert not model.config.tie_word_embeddings
    assert inspect(tmp_path).num_parameters == model.num_parameters
    model.save_pretrained(tmp_path / "saved")
    assert not Config.from_pretrained(tmp_path / "saved").tie_word_embeddings
    np.testing.assert_array_equal(GPT2.from_pretrained(tmp_path / "saved")(IDS), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_packed_models_that_say_they_are_tied(tmp_path, tiny, dtype):
    model = GPT2.from_pretrained(tiny / "untied", dtype=dtype)
    model.save_pretrained(tmp_path, packed=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    np.testing.assert_array_equal(GPT2.from_pretrained(tmp_path)(IDS), model(IDS))


def test_one_value_that_differs_is_enough(tmp_path, tiny):
    """Wherever it is: tables are compared in parts."""
    tensors = st.load_file(tiny / "plain" / "model.safetensors")
    config = Config.from_pretrained(tiny / "plain")
    wte = next(name for name in tensors if name.endswith("wte.weight"))
    for row in (0, config.vocab_size - 1):
        head = tensors[wte].copy()
        head[row, -1] += 1
        model = GPT2.from_pretrained(write(tmp_path, {**tensors, "lm_head.weight": head}, config))
        assert not model.config.tie_word_embeddings
        tied = GPT2.from_pretrained(tiny / "plain")(IDS, last_only=True)
        np.testing.assert_array_equal(np.flatnonzero(model(IDS, last_only=True) != tied), [row])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_an_equal_head_is_tied(tmp_path, tiny, dtype):
    tensors = st.load_file(tiny / "plain" / "model.safetensors")
    config = Config.from_pretrained(tiny / "plain")
    wte = next(name for name in tensors if name.endswith("wte.weight"))
    tensors[wte] = tensors[wte].astype(np.float16).astype(np.float32)  # the same values in each dtype
    expected = GPT2.from_pretrained(write(tmp_path, tensors, config))(IDS)
    for heads in (["lm_head.weight"], ["lm_head.decoder.weight"], ["lm_head.weight", "lm_head.decoder.weight"]):
        write(tmp_path, {**tensors, **dict.fromkeys(heads, tensors[wte].astype(dtype))}, config)
        model = GPT2.from_pretrained(tmp_path)
        assert model.config.tie_word_embeddings
        np.testing.assert_array_equal(model(IDS), expected)


@pytest.mark.parametrize("head", ["lm_head.weight", "lm_head.decoder.weight"])
def test_a_tied_table_under_the_head_s_name(tmp_path, tiny, head):
    tensors = st.load_file(tiny / "plain" / "model.safetensors")
    wte = next(name for name in tensors if name.endswith("wte.weight"))
    renamed = {head if name == wte else name: values for name, values in tensors.items()}
    model = GPT2.from_pretrained(write(tmp_path, renamed, Config.from_pretrained(tiny / "plain")))
    np.testing.assert_array_equal(model(IDS), GPT2.from_pretrained(tiny / "plain")(IDS))
    packed = tmp_path / "packed"
    model.save_pretrained(packed, packed=True)
    whole = st.read_file(packed / "model.safetensors")
    renamed = {head if name == "wte.weight" else name: values for name, values in whole.tensors.items()}
    st.save_file(renamed, packed / "model.safetensors", whole.metadata)
    np.testing.assert_array_equal(GPT2.from_pretrained(packed)(IDS), model(IDS))


def test_heads_in_memory(untied, tiny):
    tensors, config = untied
    tied = replace(config, tie_word_embeddings=True)
    np.testing.assert_array_equal(GPT2.from_tensors(tied, tensors)(IDS), GPT2.from_pretrained(tiny / "untied")(IDS))
    same = {**tensors, "lm_head.weight": tensors["wte.weight"]}
    assert GPT2.from_tensors(tied, same).config.tie_word_embeddings
    with pytest.warns(UserWarning, match=r"left out.*: v_head\.summary\.bias$"):
        GPT2.from_tensors(config, {**tensors, "v_head.summary.bias": np.zeros(1)})


def test_two_heads_that_differ(tmp_path, untied):
    tensors, config = untied
    write(tmp_path, {**tensors, "lm_head.decoder.weight": tensors["wte.weight"]}, config)
    with pytest.raises(
        InputError, match=r"two output heads, lm_head\.weight and lm_head\.decoder\.weight, which differ"
    ):
        GPT2.from_pretrained(tmp_path)


def test_a_head_that_is_missing(tmp_path, untied):
    tensors, config = untied
    del tensors["lm_head.weight"]
    with pytest.raises(InputError, match='the output head is not stored; is "tie_word_embeddings": true meant'):
        GPT2.from_pretrained(write(tmp_path, tensors, config))


def test_a_head_of_another_shape(tmp_path, tiny):
    shutil.copy(tiny / "plain" / "config.json", tmp_path)
    tensors = st.load_file(tiny / "plain" / "model.safetensors")
    st.save_file({**tensors, "lm_head.weight": np.zeros((3, 5))}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"lm_head\.weight is \[3, 5\], expected \["):
        GPT2.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "v_head.summary.weight",
        "v_head.0.weight",
        "score.weight",
        "classifier.bias",
        "multiple_choice_head.summary.weight",
        "qa_outputs.weight",
        "transformer.score.weight",
    ],
)
def test_other_heads_are_left_out_with_a_warning(tmp_path, tiny, name):
    tensors = {**st.load_file(tiny / "plain" / "model.safetensors"), name: np.zeros((2, 3), np.float32)}
    write(tmp_path, tensors, Config.from_pretrained(tiny / "plain"))
    with pytest.warns(UserWarning, match=f"left out.*{name}") as told:
        model = GPT2.from_pretrained(tmp_path)
    assert told[0].filename == __file__
    np.testing.assert_array_equal(model(IDS), GPT2.from_pretrained(tiny / "plain")(IDS))


@pytest.mark.filterwarnings("always:.*left out.*v_head")
def test_the_shell_warns_in_one_line(tmp_path, capsys):
    shutil.copytree(DATA / "generation" / "g-stop-strings" / "model", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    st.save_file({**st.load_file(path), "v_head.summary.weight": np.zeros(3)}, path)
    assert main(["generate", "a", "--tokens", "1", "--quiet", "--model", str(tmp_path / "model")]) == 0
    told = capsys.readouterr().err
    assert told.startswith("gpt2fast: warning: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["lm_head.bias", "h.0.attn.c_attn.scale", "transformer.h.0.crossattention.c_attn.bias"]
)
def test_unknown_tensors_are_refused(tmp_path, tiny, name):
    tensors = {**st.load_file(tiny / "plain" / "model.safetensors"), name: np.zeros(3, np.float32)}
    with pytest.raises(InputError, match=f"{name} is not part of this model"):
        GPT2.from_pretrained(write(tmp_path, tensors, Config.from_pretrained(tiny / "plain")))


@pytest.mark.parametrize(
    "prefix",
    ["module.", "model.", "pretrained_model.", "_fsdp_wrapped_module.", "module._orig_mod.", "base_model.model."],
)
@pytest.mark.parametrize("inner", ["", "transformer."])
def test_prefixes_are_named(tmp_path, tiny, prefix, inner):
    tensors = st.load_file(tiny / "plain" / "model.safetensors")
    wrapped = {prefix + inner + name.removeprefix("transformer."): values for name, values in tensors.items()}
    config = Config.from_pretrained(tiny / "plain")
    with pytest.raises(InputError, match=rf"config\.json: '{prefix}' stands in names such as {prefix}.*expected"):
        GPT2.from_pretrained(write(tmp_path, wrapped, config))
    with pytest.raises(InputError, match=f"configuration: '{prefix}' stands in names such as"):
        GPT2.from_tensors(config, wrapped)


def test_wrappers_inside_and_lora_are_named(tmp_path, tiny):
    tensors = st.load_file(tiny / "plain" / "model.safetensors")
    config = Config.from_pretrained(tiny / "plain")
    for change, message in [
        (("h.0.attn", "h.0._fsdp_wrapped_module.attn"), r"'_fsdp_wrapped_module\.' stands in names"),
        (("h.0.mlp", "h.0.mlp._checkpoint_wrapped_module"), r"'_checkpoint_wrapped_module\.' stands in names"),
        (("c_attn.weight", "c_attn.lora_A.default.weight"), "belongs to a LoRA adapter: merge it"),
    ]:
        with pytest.raises(InputError, match=message):
            GPT2.from_pretrained(write(tmp_path, {k.replace(*change): v for k, v in tensors.items()}, config))
