"""Sparse autoencoders: SAELens' numbers, a splice that changes what it is asked to and nothing else, hostile files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import seeded

from gpt2fast import GPT2, Config, safetensors
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.interpretability import SparseAutoencoder, Steering
from gpt2fast.model.hooks import HookPoint

KINDS = ["standard", "layer-norm", "heads", "topk", "topk-rescaled", "jumprelu", "former"]
CONFIG = Config(vocab_size=331, n_ctx=64, n_embd=12, n_layer=3, n_head=3)
IDS = np.random.default_rng(7).integers(0, 331, (2, 9))


@pytest.fixture(scope="module")
def model():
    return GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG))


@pytest.fixture
def copied(data, tmp_path):
    """A copy of one of them whose files may be changed."""

    def copy(kind):
        return shutil.copytree(data / "sae" / kind, tmp_path / kind)

    return copy


def zero(features):
    features[...] = 0


# Numbers


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_saelens(data, kind):
    sae = SparseAutoencoder.load(data / "sae" / kind)
    expected = np.load(data / "sae" / kind / "expected.npz")
    features = sae.encode(expected["activation"])
    np.testing.assert_array_equal(features > 0, expected["features"] > 0)
    np.testing.assert_allclose(features, expected["features"], rtol=1e-5, atol=1e-5)
    assert features.min() == 0 < features.max()
    assert not np.signbit(features).any()
    np.testing.assert_allclose(sae.reconstruct(expected["activation"]), expected["decoded"], rtol=1e-5, atol=1e-5)
    if kind not in ("layer-norm", "heads"):
        np.testing.assert_allclose(sae.decode(features), expected["decoded"], rtol=1e-5, atol=1e-5)

    def change(features):
        features[..., 3] = 2

    name, through = sae.splice(change)
    spliced = through(expected["activation"], HookPoint(name))
    np.testing.assert_allclose(spliced, expected["spliced"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("kind", "k"), [("topk", 4), ("topk-rescaled", 7), ("former", 3)])
def test_no_more_than_k_features_are_there(data, kind, k):
    sae = SparseAutoencoder.load(data / "sae" / kind)
    assert sae.architecture == "topk"
    found = sae.encode(np.random.default_rng(1).normal(size=(200, 12)) * 3)
    assert (found > 0).sum(axis=1).max() == k


def test_of_equal_features_the_first_count(copied):
    home = copied("topk")
    tensors = safetensors.load_file(home / "sae_weights.safetensors")
    tensors["W_enc"][:] = 0
    tensors["b_enc"][:] = 1
    safetensors.save_file(tensors, home / "sae_weights.safetensors")
    found = SparseAutoencoder.load(home).encode(np.ones(12))
    assert np.flatnonzero(found).tolist() == [0, 1, 2, 3]


def test_what_it_is(data):
    sae = SparseAutoencoder.load(data / "sae" / "jumprelu")
    found = (sae.architecture, sae.hook_name, sae.d_in, sae.d_sae, sae.centred, sae.directions.shape)
    assert found == ("jumprelu", "blocks.1.hook_resid_post", 12, 30, False, (30, 12))
    assert repr(sae) == "<SparseAutoencoder 'jumprelu' of 30 features at 'blocks.1.hook_resid_post', d_in=12>"
    assert sae.encode(np.ones(12)).shape == (30,)
    assert sae.encode(np.ones((0, 12))).shape == (0, 30)
    assert sae.decode(np.ones((2, 3, 30))).shape == (2, 3, 12)


# Splices


@pytest.mark.parametrize("kind", KINDS)
def test_a_splice_that_changes_nothing_leaves_the_bits(data, model, kind):
    sae = SparseAutoencoder.load(data / "sae" / kind)
    np.testing.assert_array_equal(model.run_with_hooks(IDS, [sae.splice()]), model(IDS))
    np.testing.assert_array_equal(model.run_with_hooks(IDS, [sae.splice(lambda features: features)]), model(IDS))
    assert (model.run_with_hooks(IDS, [sae.splice(error=False)]) != model(IDS)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_splice_adds_what_the_change_does(data, model, kind):
    sae = SparseAutoencoder.load(data / "sae" / kind)
    before = model.run_with_cache(IDS, sae.hook_name)[1][sae.hook_name]
    found, cache = {}, {}
    for error in (True, False):
        hook = sae.splice(zero, error=error)
        with model.hooks([hook]):
            found[error], kept = model.run_with_cache(IDS, sae.hook_name)
        cache[error] = kept[sae.hook_name]
    # With the error: the activation less what the features made of it, plus what no features make.
    np.testing.assert_allclose(cache[True] - before, cache[False] - sae.reconstruct(before), atol=1e-5)
    assert (found[True] != found[False]).any()


def test_a_feature_off_is_its_direction_taken_away(data, model):
    sae = SparseAutoencoder.load(data / "sae" / "standard")
    before = model.run_with_cache(IDS, sae.hook_name)[1][sae.hook_name]
    feature = int(sae.encode(before).sum(axis=(0, 1)).argmax())

    def off(features):
        features[..., feature] = 0

    with model.hooks([sae.splice(off)]):
        after = model.run_with_cache(IDS, sae.hook_name)[1][sae.hook_name]
    strength = sae.encode(before)[..., feature, None]
    np.testing.assert_allclose(after, before - strength * sae.directions[feature], atol=1e-5)
    untouched = strength[..., 0] == 0
    np.testing.assert_array_equal(after[untouched], before[untouched])
    assert Steering(sae.hook_name, sae.directions[feature]).vector.shape == (12,)


def test_one_that_knows_no_means_gets_none(copied, model):
    home = copied("standard")
    config = json.loads((home / "cfg.json").read_text())
    plain = SparseAutoencoder.load(home)
    config["metadata"]["model_from_pretrained_kwargs"] = {"center_writing_weights": True}
    (home / "cfg.json").write_text(json.dumps(config))
    sae = SparseAutoencoder.load(home)
    assert sae.centred
    assert not SparseAutoencoder.load(home, centred=False).centred
    x = np.random.default_rng(3).normal(size=(5, 12)).astype(np.float32) + 4
    mean = x.mean(axis=1, keepdims=True)
    np.testing.assert_array_equal(sae.encode(x), plain.encode(x - mean))
    np.testing.assert_allclose(sae.reconstruct(x), plain.reconstruct(x - mean) + mean, atol=1e-5)
    np.testing.assert_array_equal(model.run_with_hooks(IDS, [sae.splice()]), model(IDS))


def test_what_a_change_gives_is_checked(data, model):
    sae = SparseAutoencoder.load(data / "sae" / "standard")
    for change, error, message in [
        (lambda features: features[..., :3], InputError, r"shape \(2, 9, 3\).*expected \(2, 9, 30\)"),
        (lambda features: features * np.nan, InputError, "not finite"),
        (lambda features: "odd", InputTypeError, "array of floats"),
    ]:
        with pytest.raises(error, match=message):
            model.run_with_hooks(IDS, [sae.splice(change)])
    with pytest.raises(InputTypeError, match="change is of type int"):
        sae.splice(3)
    np.testing.assert_array_equal(model.run_with_hooks(IDS), model(IDS))


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.ones(11), InputError),
        (np.ones((3, 4)), InputError),
        (np.array(3.0), InputTypeError),
        (np.ones(12, int), InputTypeError),
        (np.full(12, np.inf), InputError),
        ([[1.0], [1.0, 2.0]], InputError),
    ],
)
def test_what_is_no_activation_is_refused(data, array, error):
    sae = SparseAutoencoder.load(data / "sae" / "standard")
    for method in (sae.encode, sae.decode, sae.reconstruct):
        with pytest.raises(error):
            method(array)


# Files


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("standard", {"architecture": "gated"}, "architecture is 'gated'; expected 'standard' or 'topk' or 'jumprelu'"),
        ("standard", {"architecture": 3}, "architecture is 3"),
        ("standard", {"architecture": ["standard"]}, "architecture"),
        ("standard", {"normalize_activations": "expected_average_only_in"}, "normalize_activations"),
        ("former", {"normalize_activations": True}, "normalize_activations is True"),
        ("standard", {"d_in": -1}, "d_in is -1"),
        ("standard", {"d_in": 1 << 40}, "d_in is 1099511627776"),
        ("standard", {"d_in": "12"}, "d_in is '12'"),
        ("standard", {"d_in": None}, "d_in is None"),
        ("standard", {"d_in": 13}, r"W_dec' has shape \(30, 12\); expected \(30, 13\)"),
        ("standard", {"d_sae": True}, "d_sae is True"),
        ("standard", {"apply_b_dec_to_input": "no"}, "apply_b_dec_to_input is 'no'"),
        ("standard", {"metadata": {}}, "hook_name is None"),
        ("standard", {"metadata": [1]}, "hook_name is None"),
        ("standard", {"hook_head_index": 3}, "hook_head_index is 3"),
        ("standard", {"activation_fn": "tanh-relu"}, "activation_fn is 'tanh-relu'"),
        ("standard", {"reshape_activations": "odd"}, "reshape_activations is 'odd'"),
        ("standard", {"architecture": "jumprelu"}, "no tensor 'threshold'"),
        ("jumprelu", {"architecture": "standard"}, "a tensor 'threshold', which 'standard' does not have"),
        ("topk", {"k": 31}, "k is 31; there are 30 features"),
        ("topk", {"k": None}, "k is None"),
        ("topk", {"k": 0}, "k is 0"),
        ("topk", {"rescale_acts_by_decoder_norm": 1}, "rescale_acts_by_decoder_norm is 1"),
        ("former", {"activation_fn_kwargs": {}}, "k is None"),
        ("former", {"activation_fn_kwargs": [3]}, "k is None"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(copied, kind, change, message):
    home = copied(kind)
    config = json.loads((home / "cfg.json").read_text())
    (home / "cfg.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InputError, match=message) as caught:
        SparseAutoencoder.load(home)
    assert str(home) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W_enc": None}, "no tensor 'W_enc'"),
        ({"more": np.ones(3)}, "a tensor 'more'"),
        ({"b_enc": np.ones(29, np.float32)}, r"b_enc' has shape \(29,\)"),
        ({"W_enc": np.ones((30, 12), np.float32)}, r"W_enc' has shape \(30, 12\)"),
        ({"b_dec": np.full(12, np.nan, np.float32)}, "b_dec' has numbers that are not finite"),
        ({"b_dec": np.ones(12, np.int64)}, "b_dec'.*I64"),
        ({"scaling_factor": np.full(30, 2.0)}, "scaling_factor' is not 1"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(copied, change, message):
    home = copied("standard")
    path = home / "sae_weights.safetensors"
    tensors = {**safetensors.load_file(path), **change}
    safetensors.save_file({name: array for name, array in tensors.items() if array is not None}, path)
    with pytest.raises(InputError, match=message) as caught:
        SparseAutoencoder.load(home)
    assert str(path) in str(caught.value)


def test_a_scaling_factor_of_1_is_nothing(copied):
    home = copied("standard")
    path = home / "sae_weights.safetensors"
    before = SparseAutoencoder.load(home).encode(np.ones(12))
    safetensors.save_file({**safetensors.load_file(path), "scaling_factor": np.ones(30, np.float32)}, path)
    np.testing.assert_array_equal(SparseAutoencoder.load(home).encode(np.ones(12)), before)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b'{"a": ' * 100_000, b"\xff"])
def test_damaged_files_are_refused(copied, content):
    home = copied("standard")
    (home / "cfg.json").write_bytes(content)
    with pytest.raises(InputError, match=r"cfg\.json"):
        SparseAutoencoder.load(home)
    other = copied("topk")
    weights = other / "sae_weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InputError, match="sae_weights"):
        SparseAutoencoder.load(other)


@pytest.mark.parametrize("name", ["cfg.json", "sae_weights.safetensors"])
def test_a_missing_file_is_named(copied, name):
    home = copied("standard")
    (home / name).unlink()
    with pytest.raises(MissingFileError, match=name):
        SparseAutoencoder.load(home)
