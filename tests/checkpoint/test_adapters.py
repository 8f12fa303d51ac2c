"""LoRA adapters: PEFT's own files and what PEFT 0.21 with transformers 5.24 computes with them in float32.

tests/data/adapters has two tiny models, and adapters that PEFT saved; `expected.json` has the logits of the model with
the adapter as it was trained, not merged, after the last of `ids`.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from paths import DATA

import gpt2fast
from gpt2fast import InputError, MissingFileError
from gpt2fast import safetensors as st
from gpt2fast.checkpoint.names import is_matrix
from gpt2fast.cli import main
from gpt2fast.model.gpt2 import GPT2

ADAPTERS = DATA / "adapters"
EXPECTED = json.loads((ADAPTERS / "expected.json").read_text())
IDS = EXPECTED.pop("ids")


def base_of(name):
    return ADAPTERS / ("base-untied" if name.endswith("-untied") else "base-tied")


def changed(tmp_path, name, options=None, tensors=None):
    """A copy of an adapter with other options, and with what `tensors` makes of its tensors."""
    target = tmp_path / "changed"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ADAPTERS / name, target)
    if options:
        config = json.loads((target / "adapter_config.json").read_text())
        (target / "adapter_config.json").write_text(json.dumps({**config, **options}))
    if tensors:
        path = target / "adapter_model.safetensors"
        st.save_file(tensors(st.load_file(path)), path)
    return target


@pytest.mark.parametrize("name", EXPECTED)
def test_as_peft(name):
    model = GPT2.from_pretrained(base_of(name), adapter=ADAPTERS / name)
    np.testing.assert_allclose(model(IDS, last_only=True), EXPECTED[name], rtol=0, atol=1e-5)
    plain = GPT2.from_pretrained(base_of(name))(IDS, last_only=True)
    assert np.abs(plain - EXPECTED[name]).max() > 1e-2, "the adapter changes nothing"


@pytest.mark.parametrize("name", ["everywhere-tied", "save-head-tied", "lora-wte-tied", "lora-head-untied"])
def test_a_merged_model_is_saved_as_it_is(tmp_path, name):
    model = GPT2.from_pretrained(base_of(name), adapter=ADAPTERS / name)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "packed", packed=True)
    for saved in ("whole", "packed"):
        np.testing.assert_array_equal(GPT2.from_pretrained(tmp_path / saved)(IDS), model(IDS))


@pytest.mark.parametrize("name", ["everywhere-tied", "bias-all-tied", "save-both-tied", "lora-wte-head-tied"])
def test_into_nanogpt_s_layout(tmp_path, name):
    shutil.copy(base_of(name) / "config.json", tmp_path)
    tensors = st.load_file(base_of(name) / "model.safetensors")
    linear = {key: value.T if is_matrix(key.removeprefix("transformer.")) else value for key, value in tensors.items()}
    st.save_file(linear, tmp_path / "model.safetensors")
    model = GPT2.from_pretrained(tmp_path, adapter=ADAPTERS / name)
    np.testing.assert_allclose(model(IDS, last_only=True), EXPECTED[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_other_dtypes_are_of_the_merged_weights(tmp_path, dtype):
    adapted = {"adapter": ADAPTERS / "patterns-tied"}
    GPT2.from_pretrained(ADAPTERS / "base-tied", **adapted).save_pretrained(tmp_path)
    expected = GPT2.from_pretrained(tmp_path, dtype=dtype)(IDS)
    np.testing.assert_array_equal(GPT2.from_pretrained(ADAPTERS / "base-tied", dtype=dtype, **adapted)(IDS), expected)


def test_half_precision_and_a_name_of_the_adapter(tmp_path):
    """As checkpoints of training have them."""

    def tensors(found):
        return {
            name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): value.astype(
                np.float16
            )
            for name, value in found.items()
        }

    adapter = changed(tmp_path, "everywhere-tied", tensors=tensors)
    logits = GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=adapter)(IDS, last_only=True)
    np.testing.assert_allclose(logits, EXPECTED["everywhere-tied"], rtol=0, atol=1e-2)


def test_names_without_transformer(tmp_path):
    """The model was trained as a GPT2Model."""
    adapter = changed(
        tmp_path, "plain-tied", tensors=lambda found: {k.replace("transformer.", ""): v for k, v in found.items()}
    )
    logits = GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=adapter)(IDS, last_only=True)
    np.testing.assert_allclose(logits, EXPECTED["plain-tied"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("dora-tied", "use_dora"),
        ("lora-bias-tied", "lora_bias"),
        ("tokens-tied", "trainable_token_indices"),
        ("pissa-tied", "pissa"),
        ("save-wte-tying-tied", "ensure_weight_tying"),
    ],
)
def test_variants_are_refused_by_name(name, word):
    with pytest.raises(InputError, match=rf"adapter_config\.json: .*{word}.*PEFT"):
        GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=ADAPTERS / name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_qalora": True}, "use_qalora"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"something_new": "on"}, "something_new"),
        ({"r": 3}, r"lora_A\.weight is \[4, 8\], expected \[3, 8\]"),
        ({"r": 0}, "r is 0"),
        ({"r": 2**70}, r"is \[4, 8\], expected"),
        ({"r": "4"}, "r is '4'"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"bias": "some"}, "bias is 'some'"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"rank_pattern": {"c_attn": 2}}, r"\[4, 8\], expected \[2, 8\]"),
        ({"alpha_pattern": {"c_attn": "8"}}, "alpha_pattern"),
        ({"alpha_pattern": {"(": 8}}, "no regular expression"),
        ({"alpha_pattern": {"(a+)+": 8}}, "without repeated groups"),
        ({"alpha_pattern": {".*.*.*.*.*.*x": 8}}, "short regular expression"),
    ],
)
def test_bad_options_are_named(tmp_path, options, message):
    with pytest.raises((InputError, gpt2fast.InputTypeError), match=message) as caught:
        GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=changed(tmp_path, "plain-tied", options))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lambda found: {k: v for k, v in found.items() if "lora_A" not in k}, "without its other half"),
        (lambda found: {}, "there are no tensors"),
        (
            lambda found: {**found, "base_model.model.transformer.h.9.attn.c_attn.lora_A.weight": np.zeros(1)},
            "no matrix",
        ),
        (
            lambda found: {k.replace("c_attn", "q_proj"): v for k, v in found.items()},
            "no matrix transformer.h.0.attn.q",
        ),
        (lambda found: {k: v[:, :-1] for k, v in found.items()}, r"expected \[4, 8\]"),
        (lambda found: {k: v.astype(np.int32) for k, v in found.items()}, "is of type I32"),
        (lambda found: {**found, "what": np.zeros(1)}, "what is of a kind that is not supported"),
        (lambda found: {**found, "what.weight": np.zeros(1)}, "what.weight is not part of this model"),
        (lambda found: {**found, **{k.replace("lora_A", "lora_A.b"): v for k, v in found.items()}}, "two adapters"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, tensors, message):
    adapter = changed(tmp_path, "plain-tied", tensors=tensors)
    with pytest.raises(InputError, match=message) as caught:
        GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=adapter)
    assert "adapter_model.safetensors" in str(caught.value)


def test_value_heads_are_left_out(tmp_path):
    adapter = changed(
        tmp_path, "plain-tied", tensors=lambda found: {**found, "base_model.model.score.weight": np.zeros((2, 8))}
    )
    with pytest.warns(UserWarning, match="score.weight"):
        model = GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=adapter)
    np.testing.assert_allclose(model(IDS, last_only=True), EXPECTED["plain-tied"], rtol=0, atol=1e-5)


def test_what_is_no_adapter(tmp_path, tiny):
    with pytest.raises(MissingFileError, match="a LoRA adapter has an adapter_config.json"):
        GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=tiny / "plain")
    shutil.copy(ADAPTERS / "plain-tied" / "adapter_config.json", tmp_path)
    with pytest.raises(MissingFileError, match="adapter_model.safetensors"):
        GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=tmp_path)
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(MissingFileError, match="adapter_model.bin was found, but is not read"):
        GPT2.from_pretrained(ADAPTERS / "base-tied", adapter=tmp_path)
    GPT2.from_pretrained(ADAPTERS / "base-tied", dtype="int8").save_pretrained(tmp_path / "packed", packed=True)
    with pytest.raises(InputError, match="the weights are packed; an adapter is merged into ordinary ones"):
        GPT2.from_pretrained(tmp_path / "packed", adapter=ADAPTERS / "plain-tied")


@pytest.mark.parametrize("extra", [[], ["config.json"], ["vocab.json", "merges.txt"]])
def test_an_adapter_given_as_a_model_says_so(tmp_path, capsys, extra):
    directory = tmp_path / "adapter"
    shutil.copytree(DATA / "cases" / "w-adapter", directory)
    for name in extra:
        shutil.copy(
            (ADAPTERS / "base-tied" / name)
            if name == "config.json"
            else DATA / "generation" / "g-stop-strings" / "model" / name,
            directory,
        )
    for load in (gpt2fast.load, GPT2.from_pretrained):
        with pytest.raises(MissingFileError, match=r"adapter \(LoRA\).*adapter='.*--adapter"):
            load(directory)
    assert main(["generate", "x", "--model", str(directory)]) == 1
    assert "--adapter" in capsys.readouterr().err


def test_from_the_shell(tmp_path, capsysbinary):
    """The adapter changes the text, and `pack` writes the merged model."""
    model = tmp_path / "model"
    shutil.copytree(DATA / "generation" / "g-stop-strings" / "model", model)
    plain = GPT2.from_pretrained(model)
    e = plain.config.n_embd
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 3}')
    random = np.random.default_rng(0)
    name = "base_model.model.transformer.h.0.mlp.c_proj.lora_"
    pair = {"A": random.standard_normal((1, plain.config.n_inner)), "B": random.standard_normal((e, 1))}
    st.save_file(
        {f"{name}{half}.weight": values for half, values in pair.items()}, adapter / "adapter_model.safetensors"
    )
    options = ["--model", str(model), "--adapter", str(adapter)]
    assert main(["generate", "ab", "--temperature", "0", "--tokens", "5", "--quiet", *options]) == 0
    text = capsysbinary.readouterr().out
    assert main(["pack", *options, "--dtype", "float32", str(tmp_path / "packed")]) == 0
    merged = GPT2.from_pretrained(tmp_path / "packed")
    np.testing.assert_array_equal(merged([1, 2]), GPT2.from_pretrained(model, adapter=adapter)([1, 2]))
    assert not np.array_equal(merged([1, 2]), plain([1, 2]))
    assert (
        main(["generate", "ab", "--temperature", "0", "--tokens", "5", "--quiet", "--model", str(tmp_path / "packed")])
        == 0
    )
    assert capsysbinary.readouterr().out == text
