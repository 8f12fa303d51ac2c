"""Steering vectors: made of pairs, kept in files, given to the shell; and files that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import gpt2fast
from gpt2fast import safetensors
from gpt2fast.cli import main
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.interpretability import Steering, contrast_vector, load_steering, save_steering

PAIRS = [
    ("The queen laughed for joy", "The queen wept"),
    ("They were merry", "They were sad"),
    ("Good!", "How bad it is"),
]
NAME = "blocks.3.hook_resid_post"


@pytest.fixture(scope="module")
def lm():
    return gpt2fast.load("demo")


@pytest.mark.parametrize(
    "name", [NAME, "hook_embed", "blocks.0.attn.hook_z", "blocks.5.mlp.hook_post", "ln_final.hook_scale"]
)
@pytest.mark.parametrize("tokens", ["last", "mean"])
@pytest.mark.parametrize("bos", [True, False])
def test_a_vector_is_the_mean_difference_of_activations(lm, name, tokens, bos):
    differences = []
    for pair in PAIRS:
        sides = []
        for text in pair:
            ids = [lm.model.config.bos_token_id] * bos + lm.tokenizer.encode(text)
            array = lm.model.run_with_cache(ids, name)[1][name][0].astype(np.float64)
            sides.append(array[-1] if tokens == "last" else array[int(bos) :].mean(axis=0))
        differences.append(sides[0] - sides[1])
    found = contrast_vector(lm, PAIRS, name, tokens=tokens, bos=bos, strength=3, positions=slice(2, None))
    np.testing.assert_allclose(found.vector, np.mean(differences, axis=0), rtol=1e-5, atol=1e-6)
    assert (found.name, found.strength, found.positions) == (name, 3.0, slice(2, None))


def test_many_pairs_give_the_sum_of_few(lm):
    many = contrast_vector(lm, PAIRS * 20, NAME)
    np.testing.assert_allclose(many.vector, contrast_vector(lm, PAIRS, NAME).vector, rtol=1e-6, atol=1e-6)
    swapped = contrast_vector(lm, [(b, a) for a, b in PAIRS], NAME)
    np.testing.assert_array_equal(swapped.vector, -contrast_vector(lm, PAIRS, NAME).vector)


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([], InputError, "pairs is empty"),
        ([("a",)], InputTypeError, r"pairs\[0\]"),
        (["ab"], InputTypeError, r"pairs\[0\]"),
        ([("a", "b"), ("a", 3)], InputTypeError, r"pairs\[1\] has 3"),
        ([("a", "")], InputError, "no tokens"),
        ([("a", "b " * 600)], InputError, "limit is 512"),
        (3, InputTypeError, "pairs is of type int"),
    ],
)
def test_pairs_that_are_none_are_refused(lm, pairs, error, message):
    with pytest.raises(error, match=message):
        contrast_vector(lm, pairs, NAME)


positions = some.one_of(
    some.none(),
    some.lists(some.integers(0, 1000), max_size=5),
    some.builds(slice, some.none() | some.integers(0, 99), some.none() | some.integers(0, 99), some.integers(1, 9)),
)
steerings = some.builds(
    Steering,
    some.sampled_from([NAME, "hook_embed", "blocks.0.attn.hook_z"]),
    some.lists(some.floats(-1e3, 1e3, width=32), min_size=1, max_size=9),
    some.floats(-1e9, 1e9),
    positions,
)


@given(some.lists(steerings, min_size=1, max_size=3, unique_by=lambda one: one.name))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_saved_is_loaded(tmp_path, vectors):
    path = tmp_path / "x.safetensors"
    save_steering(path, vectors, {"made of": "é"})
    found = {one.name: one for one in load_steering(path)}
    for one in vectors:
        other = found.pop(one.name)
        np.testing.assert_array_equal(other.vector, one.vector)
        assert (other.strength, other.positions) == (one.strength, one.positions)
    assert not found
    assert safetensors.read_metadata(path)["made of"] == "é"


def test_files_of_others_are_added_everywhere_at_strength_1(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save_file({NAME: np.arange(4, dtype=np.float16), "hook_embed": np.ones((2, 3))}, path)
    one, two = load_steering(path)
    assert (one.name, one.vector.tolist(), one.strength, one.positions) == (NAME, [0, 1, 2, 3], 1.0, None)
    assert two.vector.shape == (2, 3)


def with_metadata(value):
    return lambda path: safetensors.save_file({NAME: np.ones(3)}, path, {"gpt2fast.steering": value})


def vectors(**found):
    return with_metadata(json.dumps({"version": 1, "vectors": {NAME: found}}))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b"GGUF\x03\0\0\0" + bytes(40)), r"GGUF.*blocks.N.hook_resid_post"),
        (lambda path: path.write_bytes(b""), "x.safetensors"),
        (lambda path: path.write_bytes(b"GG"), "x.safetensors"),
        (lambda path: safetensors.save_file({}, path), "holds no vector"),
        (lambda path: safetensors.save_file({NAME: np.ones(3, np.int32)}, path), "I32"),
        (lambda path: safetensors.save_file({NAME: np.array([1, np.inf])}, path), "not finite"),
        (lambda path: safetensors.save_file({"blocks.0.attn.hook_pattern": np.ones(3)}, path), "no vector for a token"),
        (with_metadata("{"), "damaged"),
        (with_metadata("[" * 100_000), "damaged"),
        (with_metadata("3"), "damaged"),
        (with_metadata('{"version": 1}'), "damaged"),
        (with_metadata('{"version": 1, "vectors": {"x": 3}}'), "damaged"),
        (with_metadata('{"version": 2, "vectors": {}}'), "version 2"),
        (
            with_metadata('{"version": 1, "vectors": {"x": {"strength": 1, "positions": null}}}'),
            "'x' that is not there",
        ),
        (vectors(strength="1", positions=None), "strength"),
        (vectors(strength=float("nan"), positions=None), "strength"),
        (vectors(strength=1, positions=[-1]), "positions"),
        (vectors(strength=1, positions="odd"), "positions"),
        (vectors(strength=1, positions={"start": 1}), "damaged"),
        (vectors(strength=1, positions={"start": 1, "stop": 2, "step": 0}), "positions.step"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, write, message):
    path = tmp_path / "x.safetensors"
    write(path)
    with pytest.raises(InputError, match=message) as caught:
        load_steering(path)
    assert str(path) in str(caught.value)


def test_what_cannot_be_saved_leaves_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_steering(path, Steering(NAME, [1.0]))
    before = path.read_bytes()
    for steer, error in [
        ([], InputError),
        ([Steering(NAME, [1.0]), Steering(NAME, [2.0])], InputError),
        ([3], InputTypeError),
        (3, InputTypeError),
    ]:
        with pytest.raises(error):
            save_steering(path, steer)
    for metadata in ({"gpt2fast.steering": "x"}, {"a": 1}, 3):
        with pytest.raises((InputError, InputTypeError)):
            save_steering(path, Steering(NAME, [1.0]), metadata)
    assert path.read_bytes() == before
    with pytest.raises(MissingFileError):
        load_steering(tmp_path / "none")


# The shell


LINE = ("generate", "The king was", "--tokens", "8", "--quiet")


@pytest.mark.parametrize(("strength", "factor"), [((), 1), (("--steer-strength", "-2"), -2)])
def test_the_shell_steers_draws_and_beams(lm, tmp_path, capsysbinary, strength, factor):
    one, two = contrast_vector(lm, PAIRS, NAME), Steering("hook_embed", np.linspace(-0.1, 0.1, 256))
    save_steering(tmp_path / "a.safetensors", one)
    save_steering(tmp_path / "b.safetensors", two)
    line = (*LINE, "--steer", str(tmp_path / "a.safetensors"), "--steer", str(tmp_path / "b.safetensors"), *strength)
    steer = [one.scaled(factor), two.scaled(factor)]
    assert main((*line, "--seed", "3")) == 0
    expected = lm.generate("The king was", max_new_tokens=8, seed=3, steer=steer).text
    assert capsysbinary.readouterr().out.decode() == expected + "\n"
    assert expected != lm.generate("The king was", max_new_tokens=8, seed=3).text
    assert main((*line, "--beams", "2")) == 0
    with lm.model.hooks([(vector.name, vector) for vector in steer]):
        expected = lm.beam_search("The king was", num_beams=2, max_new_tokens=8)[0].text
    assert capsysbinary.readouterr().out.decode() == expected + "\n"


def test_the_shell_says_what_is_wrong(tmp_path, capsysbinary):
    path = str(tmp_path / "a.safetensors")
    save_steering(path, Steering("blocks.7.hook_resid_post", np.ones(256)))
    assert main((*LINE, "--steer", path)) == 1
    assert "the model's layers are 0 to 5" in capsysbinary.readouterr().err.decode()
    assert main((*LINE, "--steer", str(tmp_path / "none"))) == 1
    assert "none" in capsysbinary.readouterr().err.decode()
    for line in (("--steer-strength", "2"), ("--steer", path, "--steer-strength", "nan")):
        assert main((*LINE, *line)) == 2
        assert "--steer-strength" in capsysbinary.readouterr().err.decode()
