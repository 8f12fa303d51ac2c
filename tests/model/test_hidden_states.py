"""Hidden states of every layer, and the place in the network where numbers cease to be finite."""

from __future__ import annotations

import re

import numpy as np
import pytest
import reference_model

from gpt2fast.checkpoint.config import Config
from gpt2fast.checkpoint.names import expected_shapes
from gpt2fast.checkpoint.weights import Checkpoint
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError
from gpt2fast.hub.models import resolve
from gpt2fast.language_model import LanguageModel
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.tokenizer.encoding import Tokenizer

CONFIG = Config(vocab_size=270, n_ctx=64, n_embd=16, n_layer=3, n_head=2, eos_token_id=269, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def tensors():
    generator = np.random.default_rng(5)
    made = {name: generator.normal(0, 0.3, shape) for name, shape in expected_shapes(CONFIG).items()}
    return {name: values.astype(np.float32) for name, values in made.items()}


@pytest.fixture(scope="module")
def model(tensors):
    return GPT2.from_tensors(CONFIG, tensors)


# Hidden states


@pytest.mark.parametrize("variant", ["plain", "scale-by-layer", "untied", "gelu-exact"])
def test_every_layer_equals_the_numpy_twin(tiny, variant):
    ids = np.load(tiny / variant / "expected.npz")["ids"][0]
    model = GPT2.from_pretrained(tiny / variant)
    with Checkpoint(tiny / variant) as checkpoint:
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
        stages = reference_model.residuals(ids, checkpoint.config, tensors)
    for stage, expected in enumerate(stages):
        np.testing.assert_allclose(model.residual(ids, stage), expected, rtol=0, atol=1e-4)
    layers = model.hidden_states(ids, layers="all")
    assert len(layers) == model.config.n_layer + 1
    for layer, expected in zip(layers, [*stages[:-2:2], stages[-1]], strict=True):
        np.testing.assert_allclose(layer, expected, rtol=0, atol=1e-4)


def test_layers_equal_hugging_faces(data, tiny):
    expected = np.load(data / "reference" / "hidden-states.npz")
    for variant in expected:
        ids = np.load(tiny / variant / "expected.npz")["ids"][:1]
        model = GPT2.from_pretrained(tiny / variant)
        np.testing.assert_allclose(model.hidden_states(ids, layers="all"), expected[variant], rtol=0, atol=1e-4)


def test_layers_by_number(model):
    ids = np.arange(40).reshape(2, 20)
    every = model.hidden_states(ids, layers="all")
    assert every.shape == (4, 2, 20, 16)
    np.testing.assert_array_equal(every[-1], model.hidden_states(ids))
    for layer in (0, 2, 3, -1, np.int64(1)):
        np.testing.assert_array_equal(model.hidden_states(ids, layers=layer), every[layer])
    for layers in ([3, 0, 3], (-1,), np.array([1, 2]), []):
        np.testing.assert_array_equal(model.hidden_states(ids, layers=layers), every[list(layers)])
    assert model.hidden_states([], layers="all").shape == (4, 0, 16)


def test_layers_with_a_cache(model):
    ids = np.arange(40)
    cache = model.new_cache()
    parts = [model.hidden_states(part, cache, layers=1) for part in np.split(ids, [3, 20])]
    np.testing.assert_array_equal(np.concatenate(parts), model.hidden_states(ids, layers=1))
    np.testing.assert_array_equal(model([7], cache), model([*ids, 7])[-1:])


def test_layers_of_a_text_of_several_passes():
    model = GPT2.from_pretrained(resolve("demo"))
    ids = np.arange(400)
    every = model.hidden_states(ids, layers="all")
    for length in (1, 256, 300):
        np.testing.assert_array_equal(model.hidden_states(ids[:length], layers=[2, 5]), every[[2, 5], :length])


@pytest.mark.parametrize(
    ("layers", "error", "words"),
    [
        (4, InputError, "layers has 4; the model's hidden states have numbers from 0 to 3"),
        (-5, InputError, "layers is -5"),
        ([0, 7], InputError, "layers has 7"),
        ("last", InputError, "layers is 'last'"),
        (1.5, InputTypeError, "layers is 1.5"),
        (True, InputTypeError, "layers is True"),
    ],
)
def test_refused_layers(model, layers, error, words):
    with pytest.raises(error) as caught:
        model.hidden_states([1, 2], layers=layers)
    assert words in str(caught.value)
    with pytest.raises(InputError, match="stage is 8"):
        model.residual([1, 2], 8)


# Where numbers cease to be finite


@pytest.fixture(scope="module")
def letters(data):
    """A tokenizer of 270 tokens: the bytes and a few more; 269 is end-of-text."""
    return Tokenizer.from_pretrained(data / "generation" / "g-stop-strings" / "model")


def damaged(tensors, letters, name, place, value=np.nan):
    weights = {key: values.copy() for key, values in tensors.items()}
    weights[name][place] = value
    return LanguageModel(GPT2.from_tensors(CONFIG, weights), letters)


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        ("wte.weight", (67, 3), "the embedding (wte + wpe) is not finite first, at position 3 (id 67)"),
        ("wpe.weight", (2, 0), "the embedding (wte + wpe) is not finite first, at position 2 (id 66)"),
        ("h.0.ln_1.bias", 3, "layer 0's attention (h.0.attn) is not finite first, at position 0 (id 269)"),
        ("h.1.attn.c_proj.bias", 3, "layer 1's attention (h.1.attn) is not finite first, at position 0 (id 269)"),
        ("h.2.mlp.c_fc.bias", 0, "layer 2's MLP (h.2.mlp) is not finite first, at position 0 (id 269)"),
        ("ln_f.bias", 0, "the output of the final LayerNorm (ln_f) is not finite first, at position 0 (id 269)"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_error_names_the_layer(tensors, letters, name, place, words, value):
    lm = damaged(tensors, letters, name, place, value)
    text = letters.decode([65, 66, 67, 68])
    assert letters.encode_ordinary(text) == [65, 66, 67, 68]
    for call in (lambda: lm.generate([269, 65, 66, 67, 68], seed=1), lambda: lm.score(text + "x")):
        with pytest.raises(NonFiniteError) as caught:
            call()
        assert words in str(caught.value)
        assert str(caught.value).startswith("the logits are not finite")


def test_a_head_that_overflows(tensors, letters):
    lm = damaged(tensors, letters, "lm_head.weight", slice(None), 3e38)
    with pytest.raises(NonFiniteError, match=re.escape("the output of the head is not finite first, at position 1")):
        lm.generate([269, 65])


@pytest.mark.parametrize("length", [3, 55, 70, 200])  # in one piece, in several, in windows
def test_positions_count_from_the_beginning_of_the_text(tensors, letters, length):
    lm = damaged(tensors, letters, "wte.weight", 67)
    text = letters.decode([65] * length + [67, 66, 68])
    with pytest.raises(NonFiniteError, match=re.escape(f"at position {length + 1} (id 67)")):
        lm.score(text)
    with pytest.raises(NonFiniteError, match=re.escape(f"at position {length} (id 67)")):
        lm.generate([65] * length + [67], overflow="slide")


def test_the_network_itself_checks_nothing(tensors, letters):
    lm = damaged(tensors, letters, "wte.weight", 67)
    assert np.isnan(lm.model([66, 67])[1]).all()
    assert np.isfinite(lm.score(letters.decode([65, 66])).log_probabilities).all()
