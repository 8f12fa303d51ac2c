"""The caller's functions in a generation: logits processors, allowed tokens, stopping criteria."""

from __future__ import annotations

import numpy as np
import pytest

import gpt2fast
from gpt2fast.errors import InputTypeError, ProcessorError
from gpt2fast.generation.processors import process

PROMPTS = ["Once upon a time", "The king's daughter", "The king's daughter said that"]
HOW = {"max_new_tokens": 24, "seed": 5}


@pytest.fixture(scope="module")
def lm():
    return gpt2fast.load("demo")


def even(ids, logits):
    """Even ids, likelier the longer the text."""
    logits[1::2] -= len(ids)
    return logits


def unchanged(ids, logits):
    logits, ids = logits.copy(), ids.copy()
    return logits


def texts(found):
    return [generation.ids for generation in found]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_one_that_changes_nothing(lm, temperature):
    how = {**HOW, "temperature": temperature}
    expected = texts(lm.generate_batch(PROMPTS, **how))
    assert texts(lm.generate_batch(PROMPTS, logits_processor=unchanged, **how)) == expected
    assert texts(lm.generate_batch(PROMPTS, logits_processor=[unchanged, unchanged], **how)) == expected
    every = range(lm.model.config.vocab_size)
    assert texts(lm.generate_batch(PROMPTS, prefix_allowed_tokens_fn=lambda prompt, ids: every, **how)) == expected
    assert texts(lm.generate_batch(PROMPTS, stopping_criteria=lambda ids, logits: False, **how)) == expected


@pytest.mark.parametrize(
    "how", [{"speculate": "lookup"}, {"speculate": "int8"}, {"batch_size": 1}, {"overflow": "slide"}]
)
def test_whatever_else_is_asked_for(lm, how):
    expected = lm.generate_batch(PROMPTS, logits_processor=even, temperature=0, **HOW)
    assert all(id % 2 == 0 for generation in expected for id in generation.ids[10:])
    found = lm.generate_batch(PROMPTS, logits_processor=even, temperature=0, **HOW, **how)
    assert texts(found) == texts(expected)


def test_it_sees_all_ids_and_a_copy_of_the_logits(lm):
    seen = []

    def processor(ids, logits):
        seen.append((ids.dtype, ids.tolist(), logits.dtype, logits.shape))
        logits[:] = 0
        logits[7] = 1
        ids[:] = 0
        return logits

    prompt = lm.tokenizer.encode(PROMPTS[0])
    found = lm.generate(PROMPTS[0], logits_processor=processor, temperature=0, max_new_tokens=3)
    assert found.ids == [7, 7, 7]
    n_vocab = lm.model.config.vocab_size
    assert seen == [(np.int64, [*prompt, *[7] * i], np.float32, (n_vocab,)) for i in range(3)]


def test_samples_and_beams(lm):
    samples = lm.generate(PROMPTS[0], n=3, logits_processor=even, **HOW)
    alone = [lm.generate(PROMPTS[0], n=i + 1, logits_processor=even, **HOW) for i in range(1, 3)]
    assert texts(alone[1]) == texts(samples)
    found = lm.beam_search(PROMPTS[0], num_beams=2, max_new_tokens=4, logits_processor=lambda ids, x: x - 1e9 * odd(x))
    assert all(id % 2 == 0 for id in found[0].ids)


def odd(logits):
    return np.arange(len(logits)) % 2


def test_allowed_tokens_are_told_the_prompt(lm):
    def allowed(prompt, ids):
        return [100 + prompt, 200 + prompt]

    found = lm.generate_batch(PROMPTS, prefix_allowed_tokens_fn=allowed, max_new_tokens=5, seed=1, min_new_tokens=5)
    for prompt, generation in enumerate(found):
        assert set(generation.ids) <= {100 + prompt, 200 + prompt}


def test_a_criterion_ends_the_text_with_the_token_that_it_sees_last(lm):
    expected = lm.generate(PROMPTS[0], **HOW)
    calls = []

    def criterion(ids, logits):
        calls.append((ids.tolist(), logits.shape))
        return len(calls) == 4

    found = lm.generate(PROMPTS[0], stopping_criteria=criterion, **HOW)
    assert (found.ids, found.finish_reason) == (expected.ids[:4], "stop")
    assert [ids for ids, _ in calls] == [[*found.prompt_ids, *found.ids[: i + 1]] for i in range(4)]


def fails(ids, logits):
    raise KeyError("what")


@pytest.mark.parametrize("kind", ["logits_processor", "prefix_allowed_tokens_fn", "stopping_criteria"])
def test_what_fails_ends_its_own_text(lm, kind):
    first = lm.tokenizer.encode(PROMPTS[0])

    def sometimes(a, b):
        ids = b if kind == "prefix_allowed_tokens_fn" else a
        if ids[: len(first)].tolist() == first and len(ids) > len(first) + 2:
            raise KeyError("what")
        return {"logits_processor": b, "prefix_allowed_tokens_fn": range(4096), "stopping_criteria": False}[kind]

    expected = lm.generate_batch(PROMPTS, **HOW)
    found = lm.generate_batch(PROMPTS, **HOW, **{kind: sometimes})
    assert texts(found[1:]) == texts(expected[1:])
    assert found[0].finish_reason == "error"
    assert found[0].ids == expected[0].ids[: len(found[0].ids)]
    assert len(found[0].ids) in (2, 3)
    assert isinstance(found[0].error, ProcessorError)
    message = f"{kind} .*sometimes raised KeyError: 'what'"
    assert found[0].error.__cause__.args == ("what",)
    with pytest.raises(ProcessorError, match=message):
        raise found[0].error
    with pytest.raises(ProcessorError, match=message):
        lm.generate(PROMPTS[0], **HOW, **{kind: sometimes})
    with pytest.raises(ProcessorError, match=message):
        list(lm.stream(PROMPTS[0], **HOW, **{kind: sometimes}))


@pytest.mark.parametrize("kind", ["logits_processor", "prefix_allowed_tokens_fn", "stopping_criteria"])
@pytest.mark.parametrize("after", [0, 3])
def test_what_fails_ends_its_own_search(lm, kind, after):
    first = lm.tokenizer.encode(PROMPTS[1])

    def sometimes(a, b):
        ids = b if kind == "prefix_allowed_tokens_fn" else a
        if ids[:3].tolist() == first[:3] and len(ids) > len(first) + after and len(ids) < len(first) + 6:
            raise KeyError("what")
        return {"logits_processor": b, "prefix_allowed_tokens_fn": range(4096), "stopping_criteria": False}[kind]

    prompts = [PROMPTS[0], PROMPTS[1], "It was", "A fox"]
    how = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 8}
    expected = lm.beam_search_batch(prompts, **how)
    found = lm.beam_search_batch(prompts, **how, **{kind: sometimes})
    assert [found[i] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]
    (beam,) = found[1]
    assert (beam.finish_reason, beam.prompt_ids) == ("error", first)
    assert isinstance(beam.error, ProcessorError)
    assert beam.text == lm.tokenizer.decode(beam.ids)
    message = f"{kind} .*sometimes raised KeyError: 'what'"
    with pytest.raises(ProcessorError, match=message):
        raise beam.error
    with pytest.raises(ProcessorError, match=message):
        lm.beam_search(PROMPTS[1], num_beams=3, max_new_tokens=8, **{kind: sometimes})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned NoneType; expected logits of shape"),
        ("text", "returned an array of <U4"),
        (np.zeros(3), "returned an array of float64"),
        (np.full(4096, np.nan), "returned logits with NaN or positive infinity"),
        (np.full(4096, np.inf), "returned logits with NaN or positive infinity"),
        (np.full(4096, -np.inf), "left no token to choose"),
        (np.zeros(4096, complex), "returned an array of complex128"),
    ],
)
def test_what_a_processor_may_not_return(lm, returned, message):
    with pytest.raises(ProcessorError, match=message):
        lm.generate("a", logits_processor=lambda ids, logits: returned, max_new_tokens=1)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "returned no id"),
        (None, "returned NoneType"),
        (["a"], "returned list; expected a list of ids"),
        ([1.5], "returned list; expected a list of ids"),
        ([-1], "named id -1; the vocabulary has ids 0 to 4095"),
        (np.array([4096]), "named id 4096"),
    ],
)
def test_what_is_no_list_of_ids(lm, returned, message):
    with pytest.raises(ProcessorError, match=message):
        lm.generate("a", prefix_allowed_tokens_fn=lambda prompt, ids: returned, max_new_tokens=1)


@pytest.mark.parametrize("name", ["logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "token_mask"])
@pytest.mark.parametrize("value", [1, "text", [1], {"a": 1}])
def test_what_cannot_be_called(lm, name, value):
    with pytest.raises(InputTypeError, match=rf"{name}.* is of type \w+; expected a callable"):
        lm.generate("a", **{name: value})


def test_an_object_is_named_by_its_class(lm):
    class Picky:
        def __call__(self, ids, logits):
            raise ValueError("no")

    with pytest.raises(ProcessorError, match="Picky raised ValueError: no"):
        lm.generate("a", logits_processor=Picky(), max_new_tokens=1)


def test_processors_follow_each_other():
    found = process([lambda ids, x: x + 1, lambda ids, x: 2 * x], [7], np.array([0.0, 1.0]))
    assert found.tolist() == [2.0, 4.0]
