"""Texts that join a batch, leave it and share its rows do not notice each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_model import ToyModel, hashed

import gpt2fast
from gpt2fast import Tokenizer
from gpt2fast.generation.generate import Settings, generate, generated_sequences
from gpt2fast.generation.sequence import GeneratedSequence
from gpt2fast.scheduler import Scheduler

EOS = 269


def text_of(model: ToyModel, tokenizer: Tokenizer, prompt: list[int], **options: object) -> GeneratedSequence:
    return generated_sequences(model, tokenizer, [prompt], Settings(**options))[0]  # type: ignore[arg-type]


def finish(batch: Scheduler[GeneratedSequence]) -> None:
    while batch.running or batch.waiting:
        batch.step()


@given(st.data(), st.integers(1, 4))
def test_texts_join_and_leave_at_any_time(tokenizer: Tokenizer, data: st.DataObject, size: int) -> None:
    model = ToyModel(n_ctx=80, logits=lambda ids, size: hashed(ids, size) + 7 * (np.arange(size) == EOS))
    batch: Scheduler[GeneratedSequence] = Scheduler(model, n_vocab=270, slots=size)
    texts: list[GeneratedSequence] = []
    gone: list[GeneratedSequence] = []
    # Beginnings in common, long enough to be copied.
    prompt = st.builds(lambda a, b, c: [1] * a + [2] * b + c, st.integers(0, 40), st.integers(0, 20), st.just([3]))
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["add", "step", "step", "remove"]))
        if action == "add":
            options = {"seed": data.draw(st.integers(0, 99)), "temperature": data.draw(st.sampled_from([0, 1]))}
            texts.append(text_of(model, tokenizer, data.draw(prompt), max_new_tokens=10, **options))
            batch.add(texts[-1])
        elif action == "remove" and texts:
            gone.append(data.draw(st.sampled_from(texts)))
            batch.remove(gone[-1])
        else:
            batch.step()
        assert batch.running <= size
    finish(batch)
    for text in texts:
        settings = Settings(seed=text.seed, temperature=text.settings.temperature, max_new_tokens=10)
        [[alone]] = generate(model, tokenizer, [text.ids[: text.start]], settings)
        if text.finished:
            assert text.generation() == alone
        else:
            assert text in gone
            assert alone.ids[: len(text.ids) - text.start] == text.ids[text.start :]


def test_a_long_prompt_does_not_hold_up_the_others(tokenizer: Tokenizer) -> None:
    model = ToyModel(n_ctx=2000, eos_token_id=None)
    batch = Scheduler(model, n_vocab=270, slots=2)
    options = {"max_new_tokens": 8, "temperature": 0, "banned_ids": [EOS]}
    short, long = text_of(model, tokenizer, [5], **options), text_of(model, tokenizer, [6, 7] * 400, **options)
    batch.add(short)
    batch.step()
    batch.add(long)
    for count in range(2, 6):
        batch.step()
        assert len(short.ids) - short.start == count
    assert model.calls[1:5] == [[1, 255], [1, 255], [1, 255], [1, 35]]
    finish(batch)
    assert [text.finish_reason for text in (short, long)] == ["length", "length"]


def test_a_common_beginning_is_read_once(tokenizer: Tokenizer) -> None:
    model = ToyModel(n_ctx=200, eos_token_id=None)
    batch = Scheduler(model, n_vocab=270, slots=3)
    preamble = list(range(50))
    options = {"max_new_tokens": 3, "temperature": 0, "banned_ids": [EOS]}
    for ending in ([60], [61, 62], [63]):
        batch.add(text_of(model, tokenizer, preamble + ending, **options))
    batch.step()
    batch.step()
    assert model.calls == [[51], [1, 2, 1]]
    finish(batch)
    # A text that has ended lends its row as long as nobody needs it; a short beginning is not worth a copy.
    batch.add(text_of(model, tokenizer, [*preamble, 64], **options))
    batch.add(text_of(model, tokenizer, [0, 1, 2], **options))
    batch.step()
    assert sorted(model.calls[-1]) == [1, 3]


def test_an_end_for_one_is_no_end_for_the_others(tokenizer: Tokenizer) -> None:
    model = ToyModel(logits=lambda ids, size: np.full(size, np.nan) if 9 in ids else hashed(ids, size))
    batch = Scheduler(model, n_vocab=270, slots=2)
    ill = text_of(model, tokenizer, [9], max_new_tokens=5, temperature=0)
    well = text_of(model, tokenizer, [8], max_new_tokens=5, temperature=0)
    batch.add(ill)
    batch.add(well)
    assert [(text, text.error is None) for text in batch.step()] == [(ill, False), (well, True)]
    finish(batch)
    [[alone]] = generate(model, tokenizer, [[8]], Settings(max_new_tokens=5, temperature=0, seed=well.seed))
    assert well.generation() == alone
    with pytest.raises(ValueError, match="logits are not finite"):
        ill.generation()


def test_wanted_logits_are_those_of_the_last_ids() -> None:
    model = gpt2fast.load("demo").model
    ids = np.arange(300) % 200
    whole = model(ids)
    for wanted in ([3, 0], [0, 260], [40, 1]):
        cache = model.new_cache(2)
        found = model.extend(cache, [0, 1], [ids[:40], ids], wanted)
        right = np.concatenate([whole[40 - wanted[0] : 40], whole[300 - wanted[1] :]])
        np.testing.assert_array_equal(found, right)
        assert cache.lengths.tolist() == [40, 300]
    for wanted, words in (
        ([41, 1], "wanted.0. is 41; expected 0 to 40"),
        ([1], "numbers of wanted logits for 1"),
        ([1, -1], "wanted.1. is -1"),
    ):
        with pytest.raises(ValueError, match=words):
            model.extend(model.new_cache(2), [0, 1], [ids[:40], ids], wanted)
