"""Sequences of every kind share passes and do not notice each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA
from toy_model import ToyModel, hashed

import gpt2fast
from gpt2fast import InputError, LanguageModel, Tokenizer
from gpt2fast.generation.beam import beam_searches
from gpt2fast.generation.generate import Settings, generate, generated_sequences
from gpt2fast.generation.speculation import ModelDrafter
from gpt2fast.scheduler import Scheduler, Sequence
from gpt2fast.scoring.score import score_sequences, score_texts
from gpt2fast.server.work import EmbeddedSequence, MeasuredPrompt

FILES = DATA / "generation"
EOS = 269


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """A tokenizer of 270 tokens: the bytes and a few more."""
    return Tokenizer.from_pretrained(FILES / "g-stop-strings" / "model")


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


class Mixture:
    """Sequences of every kind for one model, and what each of them gives, in numbers that can be compared."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer

    def made(self, kind: str, number: int) -> tuple[Sequence, Callable[[], Any]]:
        """A sequence, the same one for the same arguments, and how to get its result."""
        text = "once there was a king " * (number % 4) + "and so on " * (number % 3) + chr(97 + number % 26)
        ids = self._tokenizer.encode_ordinary(text)
        if kind == "score":
            (scored,) = score_sequences(self._model, self._tokenizer, [text * (1 + number % 2)])
            return scored.sequence, lambda: scored.sequence.measures.tolist()
        if kind == "embedding":
            embedded = EmbeddedSequence(ids[: self._model.config.n_ctx], self._model.config.n_embd)
            return embedded, lambda: embedded.embedding.tolist()
        if kind == "prompt":
            measured = MeasuredPrompt(ids[: self._model.config.n_ctx], 2)
            return measured, lambda: measured.measures
        options: dict[str, Any] = {"seed": number, "temperature": number % 2, "max_new_tokens": 5 + number % 9}
        options |= {"logprobs": 1 if number % 3 == 0 else None, "overflow": "slide"}
        (text_made,) = generated_sequences(self._model, self._tokenizer, [ids], Settings(**options))
        return text_made, text_made.generation

    def alone(self, kind: str, number: int) -> Any:
        sequence, result = self.made(kind, number)
        scheduler: Scheduler[Sequence] = Scheduler(self._model, n_vocab=self.n_vocab, slots=1, background=1)
        for _ in scheduler.run(sequence):
            pass
        return result()

    @property
    def n_vocab(self) -> int:
        return min(self._model.config.vocab_size, self._tokenizer.n_vocab)


KINDS = ["score", "embedding", "prompt", "text"]


@given(st.data())
def test_a_sequence_gets_the_same_whatever_is_around_it(letters: Tokenizer, data: st.DataObject) -> None:
    model = ToyModel(n_ctx=90, logits=lambda ids, size: hashed(ids, size) + 5 * (np.arange(size) == EOS))
    mixture = Mixture(model, letters)
    scheduler: Scheduler[Sequence] = Scheduler(
        model, n_vocab=270, slots=data.draw(st.integers(1, 3)), background=data.draw(st.integers(1, 4))
    )
    inside = []
    for _ in range(data.draw(st.integers(1, 20))):
        action = data.draw(st.sampled_from(["add", "add", "step", "remove"]))
        if action == "add":
            kind, number = data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 30))
            inside.append((kind, number, *mixture.made(kind, number)))
            scheduler.add(inside[-1][2])
        elif action == "remove" and inside:
            scheduler.remove(inside.pop(data.draw(st.integers(0, len(inside) - 1)))[2])
        else:
            scheduler.step()
    while scheduler.running or scheduler.waiting:
        scheduler.step()
    for kind, number, sequence, result in inside:
        assert sequence.finished
        assert result() == mixture.alone(kind, number)


def test_the_bits_of_a_real_model_do_not_depend_on_the_mixture(demo: LanguageModel) -> None:
    mixture = Mixture(demo.model, demo.tokenizer)
    scheduler: Scheduler[Sequence] = Scheduler(demo.model, n_vocab=mixture.n_vocab, slots=3, background=5)
    inside = [(kind, number, *mixture.made(kind, number)) for number in range(6) for kind in KINDS]
    for _, _, sequence, _ in inside:
        scheduler.add(sequence)
    while scheduler.running or scheduler.waiting:
        scheduler.step()
    for kind, number, _, result in inside:
        assert result() == mixture.alone(kind, number)


# Prefixes


def test_a_beginning_is_shared_by_all_kinds_and_calls(letters: Tokenizer) -> None:
    model = ToyModel(n_ctx=200, eos_token_id=None)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=2, background=2)
    preamble = "in the middle of the night there was a noise in the cellar"
    ids = [EOS, *letters.encode_ordinary(preamble)]
    (scored,) = score_sequences(model, letters, [" and a light"], context=preamble)
    (text,) = generated_sequences(model, letters, [ids], Settings(max_new_tokens=2, banned_ids=[EOS]))
    for sequence in (scored.sequence, text, MeasuredPrompt([*ids, 5], 0), EmbeddedSequence([*ids, 6], 4)):
        for _ in scheduler.run(sequence):
            pass
    # Whoever only goes on from a beginning starts from a copy; whoever needs something of all its ids reads it again.
    lengths = [sum(call) for call in model.calls]
    assert lengths == [len(scored.sequence.ids), 1, 1, len(ids), len(ids) + 1]


def test_slots_that_nobody_is_in_keep_no_more_than_the_texts_would(letters: Tokenizer) -> None:
    model = ToyModel(n_ctx=64)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=1, background=8)
    scored = score_sequences(model, letters, [chr(97 + i) * 30 for i in range(8)])
    for _ in scheduler.run(*(text.sequence for text in scored)):
        pass
    assert 30 <= sum(model.caches[0].lengths) <= 64


# Fairness


def test_scores_do_not_hold_up_texts(letters: Tokenizer) -> None:
    """Background work has as many tokens of a step as the texts, or up to 32 with them: none waits longer than that."""
    model = ToyModel(n_ctx=400)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=24, background=8)
    options: Any = {"max_new_tokens": 10, "banned_ids": [EOS], "temperature": 0}
    (first,) = generated_sequences(model, letters, [[1]], Settings(**options))
    scheduler.add(*(text.sequence for text in score_sequences(model, letters, ["ab" * 5000] * 50)))
    scheduler.add(first)
    for count in range(1, 6):
        scheduler.step()
        assert len(first.steps) == count
        assert sum(model.calls[-1]) == 32
    others = generated_sequences(model, letters, [[i + 2] for i in range(23)], Settings(**options))
    scheduler.add(*others)
    for count in range(1, 6):
        scheduler.step()
        assert [len(text.steps) for text in others] == [count] * 23
        assert sum(model.calls[-1]) == 48
    while not all(text.finished for text in others):
        scheduler.step()
    scheduler.step()
    assert sum(model.calls[-1]) == 256


def test_a_long_score_does_not_hold_up_short_ones(letters: Tokenizer) -> None:
    model = ToyModel(n_ctx=100)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=1, background=2)
    long = score_sequences(model, letters, ["ab" * 3000] * 3)
    short = score_sequences(model, letters, ["abc"])
    scheduler.add(*(text.sequence for text in long))  # three, for two slots
    steps = 0
    while not long[0].sequence.finished:
        scheduler.step()
        steps += 1
        if steps == 3:
            scheduler.add(short[0].sequence)
    assert not short[0].sequence.finished  # it needs a slot, for which it is the next but one
    scheduler.remove(*(text.sequence for text in long[1:]))
    scheduler.step()
    assert short[0].sequence.finished


def test_jobs_take_turns(letters: Tokenizer) -> None:
    model = ToyModel(n_ctx=50)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, background=1)
    many, one = score_sequences(model, letters, ["abc"] * 9), score_sequences(model, letters, ["xyz"])
    scheduler.add(*(text.sequence for text in many))
    scheduler.add(one[0].sequence)
    for _ in range(2):
        scheduler.step()
    assert one[0].sequence.finished
    assert sum(text.sequence.finished for text in many) == 1


# Removal and failures


def test_removal_in_the_middle_of_work(letters: Tokenizer) -> None:
    model = ToyModel(n_ctx=400)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=1, background=1)
    gone, stays = (text.sequence for text in score_sequences(model, letters, ["ab" * 2000, "xyz" * 9]))
    scheduler.add(gone)
    scheduler.add(stays)
    scheduler.step()
    assert 0 < len(gone.measures) < 4000
    scheduler.remove(gone)
    scheduler.remove(gone)
    read = len(model.calls)
    while not stays.finished:
        scheduler.step()
    assert sum(map(sum, model.calls[read:])) == len(stays.ids)
    (expected,) = score_texts(model, letters, ["xyz" * 9])
    assert stays.measures[:, 0].tolist() == expected.log_probabilities.tolist()


class Stubborn(EmbeddedSequence):
    def take(self, values: Any) -> None:
        raise RuntimeError("I will not")


def test_a_sequence_that_fails_fails_alone(letters: Tokenizer) -> None:
    model = ToyModel(logits=lambda ids, size: np.full(size, np.nan) if 64 + 9 in ids else hashed(ids, size))
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=2, background=4)
    well, ill = (text.sequence for text in score_sequences(model, letters, ["abc", "abjd"]))
    assert 64 + 9 in ill.ids
    stubborn = Stubborn([1, 2], 4)
    scheduler.add(well, ill)
    scheduler.add(stubborn)
    assert set(scheduler.step()) == {well, ill, stubborn}
    assert well.complete
    assert isinstance(stubborn.error, RuntimeError)
    assert "the output of the head is not finite first, at position 3 (id 73)" in str(ill.error)
    assert ill.finished
    assert scheduler.running == 0
    with pytest.raises(RuntimeError, match="I will not"):
        list(scheduler.run(Stubborn([1, 2], 4)))


@pytest.mark.parametrize("where", ["forward", "logits"])
def test_a_step_that_fails_is_made_again(letters: Tokenizer, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyModel(n_ctx=300)
    mixture = Mixture(model, letters)
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=3, background=3)
    inside = [(kind, number, *mixture.made(kind, number)) for number in (3, 4) for kind in KINDS]
    for _, _, sequence, _ in inside:
        scheduler.add(sequence)
    name = {"forward": "forward", "logits": "logits_after"}[where]
    whole, calls = getattr(model, name), 0

    def fails(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (3, 50, 101):
            raise MemoryError("no room")
        return whole(*arguments)

    monkeypatch.setattr(model, name, fails)
    raised = 0
    while scheduler.running or scheduler.waiting:
        try:
            scheduler.step()
        except MemoryError:
            raised += 1
    assert raised >= 1
    monkeypatch.undo()
    for kind, number, _, result in inside:
        assert result() == mixture.alone(kind, number)


# Groups


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 9),
)
def test_beams_of_many_prompts(letters: Tokenizer, prompts: list[list[int]], num_beams: int, batch_size: int) -> None:
    model = ToyModel(270, 48, EOS, lambda ids, size: hashed(ids, size) + 6 * (np.arange(size) == EOS))
    settings = Settings(max_new_tokens=8, batch_size=batch_size)
    options: Any = {"num_beams": num_beams, "num_return_sequences": num_beams}
    found = beam_searches(model, letters, prompts, settings, **options)
    for beams, prompt in zip(found, prompts, strict=True):
        assert beams == beam_searches(model, letters, [prompt], settings, **options)[0]


def test_beams_of_several_prompts_share_passes(letters: Tokenizer, demo: LanguageModel) -> None:
    model = ToyModel(270, 64, EOS)
    settings = Settings(max_new_tokens=6, min_new_tokens=6)
    beam_searches(model, letters, [[1, 2, 3], [4, 5], [6]], settings, num_beams=5)
    assert model.calls[:3] == [[3, 2, 1], [1] * 15, [1] * 15]
    prompts = ["Once upon a time", "The king said", "A poor woodcutter"]
    together = demo.beam_search_batch(prompts, num_beams=3, max_new_tokens=12)
    assert together == [demo.beam_search(prompt, num_beams=3, max_new_tokens=12) for prompt in prompts]
    assert demo.beam_search_batch([]) == []


def test_a_group_needs_slots_enough(letters: Tokenizer) -> None:
    model = ToyModel()
    scheduler: Scheduler[Sequence] = Scheduler(model, n_vocab=270, slots=2)
    texts = generated_sequences(model, letters, [[1], [2], [3]], Settings())
    with pytest.raises(InputError, match="3 sequences are to run together; there are 2 slots"):
        scheduler.add(*texts, together=True)
    with pytest.raises(InputError, match="there are 0 slots"):
        scheduler.add(EmbeddedSequence([1], 4))


def test_a_draft_model_with_another_context(letters: Tokenizer) -> None:
    model, draft = ToyModel(n_ctx=60, eos_token_id=None), ToyModel(n_ctx=20, eos_token_id=None)
    settings = Settings(max_new_tokens=50, banned_ids=[EOS], temperature=0)
    plain = generate(model, letters, [[1, 2]], settings)
    [[found]] = generate(model, letters, [[1, 2]], settings, drafter=ModelDrafter(model, draft, 1))
    assert found.ids == plain[0][0].ids
    assert found.accepted == found.drafted >= 10  # until the draft's context is full
