"""Steering: a vector added while texts are generated gives the bits of a hook that adds it, to no other text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError
from gpt2fast.generation.sampling import log_probabilities
from gpt2fast.interpretability import Steering

PROMPT = "The old king had three daughters, and the youngest of them was so beautiful that the sun itself wondered"
GREEDY = {"temperature": 0, "max_new_tokens": 12}


@pytest.fixture(scope="module", params=["float32", "int8"])
def lm(request):
    return gpt2fast.load("demo", dtype=request.param)


@pytest.fixture(scope="module")
def one_lm():
    return gpt2fast.load("demo")


def steering(name="blocks.2.hook_resid_post", *, seed=0, shape=(256,), norm=30.0, **keywords):
    vector = np.random.default_rng(seed).normal(size=shape)
    return Steering(name, norm * vector / np.linalg.norm(vector), **keywords)


def by_hooks(lm, prompt, steer, **options):
    """The text that functions of hooks make which do the same without the class."""

    def add(one):
        def function(activation, hook):
            for place in range(activation.shape[1]):
                wanted = one.positions is None or hook.start + place in one.positions
                if wanted:
                    activation[:, place] += one.vector * np.float32(one.strength)

        return function

    with lm.model.hooks([(one.name, add(one)) for one in steer]):
        return lm.generate(prompt, **options)


def same(a, b):
    assert (a.ids, a.logprobs, a.top_logprobs) == (b.ids, b.logprobs, b.top_logprobs)


NAMES = {
    "hook_embed": (256,),
    "blocks.0.hook_resid_pre": (256,),
    "blocks.1.attn.hook_q": (8, 32),
    "blocks.1.attn.hook_z": (8, 32),
    "blocks.3.attn.hook_result": (8, 256),
    "blocks.3.mlp.hook_pre": (1024,),
    "blocks.4.mlp.hook_post": (1024,),
    "blocks.5.hook_mlp_out": (256,),
    "blocks.5.ln2.hook_scale": (1,),
    "ln_final.hook_normalized": (256,),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_those_of_a_hook_that_adds(lm, name):
    one = steering(name, shape=NAMES[name], norm=3.0, strength=1.5)
    options = {**GREEDY, "max_new_tokens": 5, "logprobs": 3}
    found = lm.generate(PROMPT, steer=one, **options)
    same(found, by_hooks(lm, PROMPT, [one], **options))
    assert found.logprobs != lm.generate(PROMPT, **options).logprobs


def test_the_bits_are_those_of_run_with_hooks(lm):
    one = steering()
    found = lm.generate(PROMPT, steer=one, logprobs=0, **GREEDY)
    ids = found.prompt_ids + found.ids
    logits = lm.model.run_with_hooks(ids, [(one.name, one)])
    for place, (token, logprob) in enumerate(zip(found.ids, found.logprobs, strict=True), len(found.prompt_ids) - 1):
        assert logits[place].argmax() == token
        assert logprob == float(log_probabilities(logits[place])[token])


@pytest.mark.parametrize("speculate", ["off", "lookup", "int4"])
def test_texts_of_a_batch_have_what_they_are_steered_with(lm, speculate):
    """Prompts are alike, so that nothing but steering keeps one from sharing what another has read."""
    a, b = steering(seed=1), steering("blocks.4.hook_mlp_out", seed=2, norm=20)
    steer = [None, a, None, [a, b], b, [], a, steering(seed=1, strength=-1)]
    for options in ({"temperature": 0}, {"seed": 3}):
        options |= {"max_new_tokens": 6, "logprobs": 1}
        alone = [lm.generate(PROMPT, steer=one, speculate="off", **options) for one in steer]
        for size in (3, 16):
            found = lm.generate_batch(
                [PROMPT] * len(steer), steer=steer, batch_size=size, speculate=speculate, **options
            )
            for one, text in zip(alone, found, strict=True):
                same(text, one)
        same(alone[0], lm.generate(PROMPT, **options))
        assert len({tuple(text.logprobs) for text in alone}) == 5


def test_one_for_all_samples_and_streams(lm):
    one = steering()
    texts = [text.text for text in lm.generate(PROMPT, n=3, steer=[one], seed=5, max_new_tokens=9)]
    with lm.model.hooks([(one.name, one)]):
        assert texts == [text.text for text in lm.generate(PROMPT, n=3, seed=5, max_new_tokens=9)]
        alone = [text.text for text in lm.generate_batch([PROMPT, "The king"], **GREEDY)]
    assert [text.text for text in lm.generate_batch([PROMPT, "The king"], steer=one, **GREEDY)] == alone
    assert "".join(lm.stream("The king", steer=one, **GREEDY)) == alone[1]


@given(some.lists(some.integers(0, 40), min_size=1, max_size=8, unique=True))
def test_positions_are_places_of_the_text(one_lm, positions):
    lm, one = one_lm, steering(positions=positions)
    options = {"temperature": 0, "max_new_tokens": 6, "logprobs": 0}
    same(lm.generate(PROMPT, steer=one, **options), by_hooks(lm, PROMPT, [one], **options))


@pytest.mark.parametrize(
    "positions", [3, slice(5), slice(20, None), slice(1, 30, 4), slice(None, None, 3), np.arange(2, 9)]
)
def test_positions_are_numbers_slices_and_lists(lm, positions):
    everywhere = list(range(64))
    chosen = everywhere[positions] if isinstance(positions, slice) else np.atleast_1d(positions).tolist()
    options = {**GREEDY, "logprobs": 0}
    found = lm.generate(PROMPT, steer=steering(positions=positions), **options)
    same(found, lm.generate(PROMPT, steer=steering(positions=chosen), **options))


def test_a_text_that_slides_on_is_steered_in_its_window():
    lm = gpt2fast.load("demo")
    room = lm.model.config.n_ctx
    ids = lm.tokenizer.encode("Once upon a time there was a king. " * 80)[: room - 3]
    options = {"temperature": 0, "max_new_tokens": 8, "overflow": "slide", "logprobs": 0}
    one = steering(norm=60)
    found = lm.generate(ids, steer=one, **options)
    same(found, by_hooks(lm, ids, [one], **options))
    assert found.ids != lm.generate(ids, **options).ids


def test_hooks_and_steering_go_together(lm):
    one = steering()

    def half(activation, hook):
        activation *= 0.5

    options = {**GREEDY, "logprobs": 0}
    with lm.model.hooks([("blocks.0.hook_mlp_out", half)]):
        found = lm.generate(PROMPT, steer=one, **options)
        same(found, by_hooks(lm, PROMPT, [one], **options))
    assert not lm.model.has_hooks


def test_what_does_not_fit_is_refused_before_anything_is_computed(lm):
    seen = []
    with lm.model.hooks([("hook_embed", lambda activation, hook: seen.append(1))]):
        for steer, message in [
            (Steering("blocks.9.hook_resid_post", np.ones(256)), "the model's layers are 0 to 5"),
            (Steering("blocks.2.hook_resid_pots", np.ones(256)), "did you mean 'blocks.2.hook_resid_post'"),
            (Steering("blocks.2.hook_resid_post", np.ones(255)), r"shape \(255,\).*expected \(256,\)"),
            (Steering("blocks.2.mlp.hook_post", np.ones(256)), r"expected \(1024,\)"),
        ]:
            with pytest.raises(InputError, match=message):
                lm.generate(PROMPT, steer=steer)
            with pytest.raises(InputError, match=r"steer\[1\].*" + message):
                lm.generate_batch([PROMPT, PROMPT], steer=[None, steer])
            with pytest.raises(InputError, match=message):
                lm.stream(PROMPT, steer=steer)
        for steer in (3, "blocks.2.hook_resid_post", [3], [np.ones(256)], {1: 2}):
            with pytest.raises(InputTypeError, match="Steering"):
                lm.generate(PROMPT, steer=steer)
        with pytest.raises(InputError, match="steer has 1 entries; there are 2 prompts"):
            lm.generate_batch([PROMPT, PROMPT], steer=[steering()])
        with pytest.raises(InputError, match="steer has 0 entries; there are 1 prompts"):
            lm.generate_batch([PROMPT], steer=[])
    assert not seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hook_embed", [[1.0], [2.0, 3.0]]), "different lengths"),
        (("hook_embed", []), r"shape \(0,\)"),
        (("hook_embed", 3.0), r"shape \(\)"),
        (("hook_embed", [np.nan]), "not finite"),
        (("hook_embed", [1e39]), "not finite in float32"),
        (("hook_embed", [1e30], 1e30), "makes the vector infinite"),
        (("hook_embed", [1.0], float("nan")), "strength"),
        (("hook_embed", [1.0], 1, -1), "positions is -1"),
        (("hook_embed", [1.0], 1, [0, -3]), "positions is -3"),
        (("hook_embed", [1.0], 1, slice(-3, None)), "positions.start"),
        (("hook_embed", [1.0], 1, slice(0, None, 0)), "positions.step"),
        (("blocks.0.attn.hook_pattern", [1.0]), "no vector for a token"),
    ],
)
def test_a_steering_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Steering(*arguments)


def test_a_vector_too_large_for_the_model_is_an_error_and_the_model_goes_on(lm):
    before = lm.generate(PROMPT, **GREEDY)
    with pytest.raises(NonFiniteError, match="what steers the text is too strong"):
        lm.generate(PROMPT, steer=[steering(norm=3e38)] * 3, **GREEDY)
    largest = Steering("blocks.2.hook_resid_post", np.full(256, 3e38))
    with pytest.raises(InputError, match="the function at blocks.2.hook_resid_post gave inf"):
        lm.generate(PROMPT, steer=[largest, largest], **GREEDY)
    assert lm.generate(PROMPT, **GREEDY).ids == before.ids


def test_a_vector_is_a_copy_that_nobody_changes():
    given = np.ones(4)
    one = Steering("hook_embed", given)
    given[:] = 7
    assert one.vector.tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        one.vector[0] = 3
