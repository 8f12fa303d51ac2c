"""Beam search: what Hugging Face's finds, the best of all texts where it looks at all, and rows that do not mix."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA
from toy_model import ToyModel, hashed

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError
from gpt2fast.generation.beam import Beam, beam_searches
from gpt2fast.generation.settings import Settings
from gpt2fast.hub.models import resolve
from gpt2fast.model.gpt2 import GPT2

FILES = DATA / "generation"


@pytest.fixture(scope="module")
def demo() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def letters() -> gpt2fast.Tokenizer:
    """A tokenizer of 270 tokens: the bytes and a few more; 269 is end-of-text."""
    return gpt2fast.Tokenizer.from_pretrained(FILES / "g-stop-strings" / "model")


def beam_search(model: Any, tokenizer: gpt2fast.Tokenizer, prompt: list[int], *arguments: Any, **options: Any) -> Any:
    return beam_searches(model, tokenizer, [prompt], *arguments, **options)[0]


# Equal to Hugging Face's


CASES = json.loads((FILES / "beams.json").read_text())


@pytest.mark.parametrize("name", sorted({case["model"] for case in CASES["ids"]}))
def test_the_same_beams_as_hugging_face(tiny: Path, letters: gpt2fast.Tokenizer, name: str) -> None:
    model = GPT2.from_pretrained(resolve("demo") if name == "demo" else tiny / name)
    tokenizer = gpt2fast.get_encoding("gpt2")  # more ids than either model has: all of the model's count
    for case in CASES["ids"]:
        if case["model"] == name:
            model.config = dataclasses.replace(model.config, eos_token_id=case["eos"])
            options = dict(case["options"])
            search = {
                key: options.pop(key) for key in ("num_beams", "length_penalty", "early_stopping") & options.keys()
            }
            found = beam_search(
                model,
                tokenizer,
                case["prompt"],
                Settings(**options),
                num_return_sequences=search["num_beams"],
                **search,
            )
            assert [beam.ids for beam in found] == case["ids"]
            np.testing.assert_allclose([beam.score for beam in found], case["scores"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES["stop"], ids=lambda case: f"{case['prompt']}-{case['stop'][0]}")
def test_stop_strings(demo: gpt2fast.LanguageModel, case: Any) -> None:
    count = case["num_beams"]
    found = demo.beam_search(
        case["prompt"], num_beams=count, num_return_sequences=count, max_new_tokens=20, stop=case["stop"]
    )
    assert [beam.ids for beam in found] == case["ids"]
    for beam in found:
        whole = demo.tokenizer.decode(beam.ids)
        assert whole.startswith(beam.text)
        assert not any(string in beam.text for string in case["stop"])
        assert (beam.finish_reason == "stop") == (beam.text != whole)
        if beam.finish_reason == "stop":
            assert whole[len(beam.text) :].startswith(tuple(case["stop"]))


# Equal to a slow twin


def slow_search(model: ToyModel, prompt: list[int], options: dict[str, Any]) -> list[tuple[list[int], float]]:
    """Hugging Face's algorithm with its large negative numbers for what cannot be, and everything computed anew."""
    beams, limit, eos = options["num_beams"], options["max_new_tokens"], model.config.eos_token_id
    power, early = options["length_penalty"], options["early_stopping"]
    n_vocab, never = model.config.vocab_size, -1e9
    running = [(0.0 if i == 0 else never, list[int]()) for i in range(beams)]
    done: list[tuple[float, list[int], bool]] = [(never, [], False)] * beams
    for length in range(1, limit + 1):
        candidates = []
        for total, ids in running:
            logits = model.logits_after(prompt + ids).astype(np.float64)
            logarithms = logits - np.log(np.exp(logits).sum())
            if length <= options["min_new_tokens"]:
                logarithms[eos] = -np.inf
            candidates += [(total + logarithms[i], [*ids, i]) for i in range(n_vocab)]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * beams]
        ends = [ids[-1] == eos or length == limit for _, ids in candidates]
        moved = [(total + (never if end else 0), ids) for (total, ids), end in zip(candidates, ends, strict=True)]
        running = sorted(moved, key=lambda candidate: -candidate[0])[:beams]
        full = all(finished for _, _, finished in done)
        for place, ((total, ids), end) in enumerate(zip(candidates, ends, strict=True)):
            counts = end and place < beams and not (full and early is True)
            done.append((total / length**power + (0 if counts else never), ids, counts))
        done = sorted(done, key=lambda hypothesis: -hypothesis[0])[:beams]
        hopeful = limit if early == "never" and power > 0 else length
        worst = min(score for score, _, _ in done)
        improvable = any(running[0][0] / hopeful**power > (worst if finished else never) for _, _, finished in done)
        if not improvable or (early is True and all(finished for _, _, finished in done)) or all(ends):
            break
    return [(ids, score) for score, ids, _ in done]


OPTIONS = st.fixed_dictionaries(
    {
        "num_beams": st.integers(1, 5),
        "max_new_tokens": st.integers(1, 7),
        "min_new_tokens": st.just(0),
        "length_penalty": st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
        "early_stopping": st.sampled_from([True, False, "never"]),
    }
)


@given(prompt=st.lists(st.integers(0, 19), min_size=1, max_size=5), options=OPTIONS, least=st.integers(0, 3))
def test_any_search_equals_the_slow_twin(
    letters: gpt2fast.Tokenizer, prompt: list[int], options: dict[str, Any], least: int
) -> None:
    options = {**options, "min_new_tokens": min(least, options["max_new_tokens"])}
    model = ToyModel(20, 32, 19, lambda ids, n: 0.3 * hashed(ids, n))
    settings = Settings(**{key: options[key] for key in ("max_new_tokens", "min_new_tokens")})
    search = {key: options[key] for key in ("num_beams", "length_penalty", "early_stopping")}
    found = beam_search(model, letters, prompt, settings, num_return_sequences=options["num_beams"], **search)
    expected = slow_search(model, prompt, options)
    assert [beam.ids for beam in found] == [ids for ids, _ in expected]
    assert [beam.score for beam in found] == pytest.approx([score for _, score in expected])
    for beam in found:
        assert beam.score == pytest.approx(beam.log_likelihood / len(beam.ids) ** options["length_penalty"])
        assert beam.finish_reason == ("eos" if beam.ids[-1] == 19 else "length")


def test_enough_beams_find_the_best_of_all_texts(letters: gpt2fast.Tokenizer) -> None:
    model = ToyModel(4, 16, 3)
    every = {}
    for length in range(1, 5):
        for ids in itertools.product(range(4), repeat=length):
            if 3 not in ids[:-1] and (ids[-1] == 3 or length == 4):
                total = 0.0
                for i, token in enumerate(ids):
                    logits = model.logits_after([1, *ids[:i]]).astype(np.float64)
                    total += logits[token] - np.log(np.exp(logits).sum())
                every[ids] = total
    assert sum(np.exp(list(every.values()))) == pytest.approx(1)
    found = beam_search(
        model,
        letters,
        [1],
        Settings(max_new_tokens=4),
        num_beams=len(every),
        num_return_sequences=len(every),
        length_penalty=0,
        early_stopping="never",
    )
    best = sorted(every, key=every.__getitem__, reverse=True)
    assert [tuple(beam.ids) for beam in found] == best
    assert [beam.log_likelihood for beam in found] == pytest.approx([every[ids] for ids in best])


# What it is made of


def test_one_beam_is_greedy(demo: gpt2fast.LanguageModel) -> None:
    (beam,) = demo.beam_search("Once upon a time", num_beams=1, max_new_tokens=30)
    generation = demo.generate("Once upon a time", temperature=0, max_new_tokens=30, logprobs=0)
    assert (beam.ids, beam.text, str(beam)) == (generation.ids, generation.text, generation.text)
    assert beam.log_likelihood == pytest.approx(sum(generation.logprobs or []))
    assert beam.prompt_ids == generation.prompt_ids


def test_more_beams_find_what_is_more_probable(demo: gpt2fast.LanguageModel) -> None:
    found = [
        demo.beam_search("The king", num_beams=count, max_new_tokens=16, min_new_tokens=16)[0].log_likelihood
        for count in (1, 4, 16)
    ]
    assert found == sorted(found)


def test_penalties_and_bans(demo: gpt2fast.LanguageModel) -> None:
    plain = demo.beam_search("The king said to", max_new_tokens=20)[0]
    banned = demo.beam_search("The king said to", max_new_tokens=20, banned_ids=plain.ids[:1])[0]
    assert plain.ids[0] not in banned.ids
    without = demo.beam_search("The king said to", max_new_tokens=20, no_repeat_ngram_size=2)[0]
    ids = without.prompt_ids + without.ids
    assert len(set(itertools.pairwise(ids))) == len(ids) - 1


def test_empty_prompt_and_end_of_the_context(letters: gpt2fast.Tokenizer) -> None:
    model = ToyModel(270, 8, 269)
    (beam,) = beam_search(model, letters, [], Settings(max_new_tokens=None, min_new_tokens=20))
    assert beam.prompt_ids == [269]
    assert (len(beam.ids), beam.finish_reason) == (8, "length")
    with pytest.raises(InputError, match="the model's limit is 8"):
        beam_search(model, letters, [1] * 9, Settings())


def test_the_prompt_is_read_once_and_beams_a_token_at_a_time(letters: gpt2fast.Tokenizer) -> None:
    model = ToyModel(270, 64, 269)
    beam_search(model, letters, [1, 2, 3, 4, 5], Settings(max_new_tokens=6), num_beams=3)
    assert model.calls == [[5], *[[1, 1, 1]] * 5]
    assert model.caches[0].batch == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_beams": 0}, InputError, "num_beams is 0"),
        ({"num_beams": 2, "num_return_sequences": 3}, InputError, "num_return_sequences is 3; there are only 2 beams"),
        ({"length_penalty": "a"}, InputTypeError, "length_penalty is 'a'"),
        ({"early_stopping": "maybe"}, InputError, "early_stopping is 'maybe'"),
        ({"overflow": "slide"}, InputError, "overflow is 'slide'"),
        ({"max_new_tokens": 0}, InputError, "max_new_tokens is 0"),
        ({"banned_ids": [4096]}, InputError, "banned_ids names id 4096"),
        ({"banned_ids": range(4096)}, InputError, "no token is left to choose"),
    ],
)
def test_refusals(demo: gpt2fast.LanguageModel, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        demo.beam_search("Once", **options)
    assert words in str(caught.value)


def test_logits_that_are_not_finite(letters: gpt2fast.Tokenizer) -> None:
    model = ToyModel(270, 64, 269, lambda ids, n: np.full(n, np.nan) if len(ids) == 4 else hashed(ids, n))
    with pytest.raises(NonFiniteError, match="not finite"):
        beam_search(model, letters, [1, 2], Settings())


def test_the_cache_is_used_as_its_rules_want(demo: gpt2fast.LanguageModel) -> None:
    """Scores of the found texts are those of the texts, computed anew: no beam saw another one's tokens."""
    for beam in demo.beam_search("A poor woodcutter", num_beams=6, num_return_sequences=6, max_new_tokens=40):
        assert isinstance(beam, Beam)
        ids = beam.prompt_ids + beam.ids
        logits = demo.model(ids[:-1]).astype(np.float64)[len(beam.prompt_ids) - 1 :]
        logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected = logarithms[np.arange(len(beam.ids)), beam.ids].sum()
        assert beam.log_likelihood == pytest.approx(expected, abs=1e-4)
