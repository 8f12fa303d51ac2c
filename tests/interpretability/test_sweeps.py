"""Patching and ablation: every value of a sweep is that of a run of its own with hooks, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from seeded import tensors

from gpt2fast import GPT2, Config
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.interpretability import ablation, ablation_sweep, patch_sweep
from gpt2fast.language_model import load

CLEAN, CORRUPTED = "The king went home. The king", "The queen went home. The king"
SHORT = ("q", "k", "v", "attn_scores", "pattern", "z", "result")


@pytest.fixture(scope="module")
def lm():
    return load("demo")


def metric(logits):
    return logits[..., 7].astype(np.float64).sum() - logits[..., 100].max()


def ids_of(lm, text):
    return [lm.model.config.bos_token_id, *lm.tokenizer.encode_ordinary(text)]


def one_by_one(lm, name, units, place, last_only=False):
    """The metrics of runs through all layers, in which one place comes from the clean run."""
    _, kept = lm.model.run_with_cache(ids_of(lm, CLEAN), name)
    found = []
    for unit in units:

        def patch(activation, hook, unit=unit):
            activation[place(unit)] = kept[name][place(unit)]

        found.append(metric(lm.model.run_with_hooks(ids_of(lm, CORRUPTED), [(name, patch)], last_only=last_only)))
    return found


@pytest.mark.parametrize("short", SHORT)
def test_heads(lm, short):
    names = [name for name in lm.model.hook_names if name.endswith(f"hook_{short}")]
    found = patch_sweep(lm, CLEAN, CORRUPTED, metric, short)
    assert found.shape == (6, 8)
    on_axis_1 = short in ("attn_scores", "pattern")
    for layer in (0, 3, 5):
        expected = one_by_one(lm, names[layer], range(8), lambda h: np.s_[:, h] if on_axis_1 else np.s_[:, :, h])
        np.testing.assert_array_equal(found[layer], expected)
    assert len(np.unique(found)) > 24  # the patches do something


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("hook_embed", "blocks.0.hook_resid_pre", "blocks.2.hook_resid_mid", "blocks.4.mlp.hook_post"),
        *("blocks.3.attn.hook_pattern", "blocks.5.attn.hook_z", "blocks.1.ln2.hook_scale", "ln_final.hook_normalized"),
    ],
)
def test_positions(lm, name, last_only):
    length = len(ids_of(lm, CLEAN))
    found = patch_sweep(lm, CLEAN, CORRUPTED, metric, [name], by="position", last_only=last_only)
    expected = one_by_one(
        lm, name, range(length), lambda t: np.s_[:, :, t] if "pattern" in name else np.s_[:, t], last_only
    )
    np.testing.assert_array_equal(found, [expected])


def test_batches_are_cut_where_a_text_is_long(lm):
    text = "The king went home. " * 12  # four runs in a batch
    ids = ids_of(lm, text)
    other = [ids[0], *ids[1:][::-1]]
    found = patch_sweep(lm, other, ids, metric, ["blocks.4.attn.hook_z", "ln_final.hook_scale"], by="position")
    _, kept = lm.model.run_with_cache(other, "blocks.4.attn.hook_z")

    def patch(activation, hook):
        activation[:, 50] = kept["z", 4][:, 50]

    assert found[0, 50] == metric(lm.model.run_with_hooks(ids, [("blocks.4.attn.hook_z", patch)]))


def test_the_functions_that_a_model_has_are_called_once(lm):
    def shift(activation, hook):
        activation += 0.5

    def patch(activation, hook):
        activation[:, 2] = kept["resid_pre", 3][:, 2]

    with lm.model.hooks([("blocks.3.hook_resid_pre", shift)]):
        found = patch_sweep(lm, CLEAN, CORRUPTED, metric, "blocks.3.hook_resid_pre")
        _, kept = lm.model.run_with_cache(ids_of(lm, CLEAN), "blocks.3.hook_resid_pre")
        expected = metric(lm.model.run_with_hooks(ids_of(lm, CORRUPTED), [("blocks.3.hook_resid_pre", patch)]))
    assert found[0, 2] == expected


def test_patched_with_itself_nothing_changes(lm):
    found = patch_sweep(lm, CLEAN, CLEAN, metric, lambda name: "hook_" in name, by="position")
    assert (found == metric(lm.model(ids_of(lm, CLEAN)))).all()


@pytest.mark.parametrize("mean_over", [None, ["A cat sat.", "Once upon a time"]])
def test_knocked_out(lm, mean_over):
    found = ablation_sweep(lm, CLEAN, metric, "z", mean_over=mean_over)
    neuron = ablation_sweep(lm, CLEAN, metric, ["blocks.2.mlp.hook_post"], mean_over=mean_over)
    for layer, head in ((0, 3), (5, 7)):
        hook = ablation(lm, f"blocks.{layer}.attn.hook_z", head, mean_over=mean_over)
        assert found[layer, head] == metric(lm.model.run_with_hooks(ids_of(lm, CLEAN), [hook]))
    assert neuron.shape == (1, len(ids_of(lm, CLEAN)))


def test_zero_and_mean(lm):
    """What stands at the name after an ablation, of heads and of neurons."""
    texts = ["A cat sat.", "Once upon a time"]
    for name, units, place in (
        ("blocks.1.attn.hook_z", [2, 5], np.s_[:, :, [2, 5]]),
        ("blocks.1.attn.hook_result", 0, np.s_[:, :, 0]),
        ("blocks.4.mlp.hook_post", [0, 77, 1023], np.s_[:, :, [0, 77, 1023]]),
        ("hook_pos_embed", None, np.s_[:]),
    ):
        plain = lm.model.run_with_cache(ids_of(lm, CLEAN), name)[1][name]
        runs = [lm.model.run_with_cache(ids_of(lm, text), name)[1][name][:, 1:] for text in texts]
        mean = np.concatenate(runs, axis=1).astype(np.float64).mean(axis=1, keepdims=True).astype(np.float32)
        for value, mean_over in ((np.zeros_like(mean), None), (mean, texts)):
            expected = plain.copy()
            expected[place] = np.broadcast_to(value, plain.shape)[place]
            with lm.model.hooks([ablation(lm, name, units, mean_over=mean_over)]):
                found = lm.model.run_with_cache(ids_of(lm, CLEAN), name)[1][name]
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(found != plain, expected != plain)


def test_ids_and_no_beginning(lm):
    ids = lm.tokenizer.encode_ordinary(CLEAN)
    other = lm.tokenizer.encode_ordinary(CORRUPTED)
    names = ["blocks.5.attn.hook_z"]
    np.testing.assert_array_equal(
        patch_sweep(lm, ids, np.array(other), metric, names),
        patch_sweep(lm, CLEAN, CORRUPTED.encode(), metric, names, bos=False),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_dtypes(dtype):
    config = Config(n_layer=2, n_head=2, n_embd=16, n_ctx=32, vocab_size=200)
    lm = load("demo", dtype="float32")
    lm.model = GPT2.from_tensors(config, tensors(config), dtype=dtype)
    found = patch_sweep(lm, [1, 2, 3], [4, 2, 3], metric, "v")
    _, kept = lm.model.run_with_cache([1, 2, 3], "blocks.1.attn.hook_v")

    def patch(activation, hook):
        activation[:, :, 1] = kept["v", 1][:, :, 1]

    assert found[1, 1] == metric(lm.model.run_with_hooks([4, 2, 3], [("blocks.1.attn.hook_v", patch)]))


def test_progress(lm, capsys):
    patch_sweep(lm, CLEAN, CORRUPTED, metric, ["blocks.5.attn.hook_z"], progress=True)
    assert "8" in capsys.readouterr().err
    patch_sweep(lm, CLEAN, CORRUPTED, metric, ["blocks.5.attn.hook_z"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clean": "The king"}, InputError, "clean has 3 tokens, corrupted 8"),
        ({"clean": 5}, InputError, "clean"),
        ({"corrupted": []}, InputError, "corrupted has 0 tokens"),
        ({"names": "zz"}, InputError, "names has 'zz', which does not exist"),
        ({"names": []}, InputError, "names has none"),
        ({"names": "mlp_out", "by": "head"}, InputError, "hook_mlp_out has no heads"),
        ({"by": "neuron"}, InputError, "by is 'neuron'; expected one of head, position"),
        ({"metric": 3}, InputTypeError, "metric is of type int"),
        ({"metric": lambda logits: logits}, InputTypeError, "metric gave"),
    ],
)
def test_refused(lm, arguments, error, message):
    with pytest.raises(error, match=message):
        patch_sweep(lm, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": metric, "names": "z", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "blocks.0.attn.hook_pattern"}, "hook_pattern cannot be knocked out"),
        ({"name": "z"}, "name has 'z'"),
        ({"units": 8}, "units is 8; expected 7 or less"),
        ({"units": [-1]}, "units is -1"),
        ({"name": "blocks.0.mlp.hook_post", "units": 1024}, "expected 1023 or less"),
        ({"mean_over": []}, "mean_over has no tokens"),
        ({"mean_over": [""]}, "mean_over has no tokens"),
    ],
)
def test_no_ablation(lm, arguments, message):
    with pytest.raises(InputError, match=message):
        ablation(lm, **{"name": "blocks.0.attn.hook_z", "units": 0, **arguments})
