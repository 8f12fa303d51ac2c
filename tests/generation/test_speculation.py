"""Speculative decoding changes nothing but speed: whatever is proposed, the texts are those of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA
from toy_model import ToyModel, hashed, scripted

import gpt2fast
from gpt2fast import GPT2, LanguageModel, Tokenizer
from gpt2fast.generation.generate import Settings, generate
from gpt2fast.generation.sequence import GeneratedSequence
from gpt2fast.generation.speculation import ModelDrafter, PromptLookup, RunIndex

FILES = DATA / "generation"
EOS = 269


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


class Oracle:
    """Proposes any ids at all, right ones among them."""

    def __init__(self, model: ToyModel, seed: int) -> None:
        self.model, self.random = model, np.random.default_rng(seed)

    def propose(self, sequences: Sequence[GeneratedSequence], most: Sequence[int]) -> list[list[int]]:
        proposals = []
        for text, count in zip(sequences, most, strict=True):
            ids: list[int] = []
            while len(ids) < self.random.integers(count + 1):
                seen = text.ids + ids
                token = text.choose(self.model.logits_after(seen[text.dropped :]), seen)
                if self.random.random() < 0.2:
                    token = int(self.random.integers(EOS + 1))
                ids.append(token)
            proposals.append(ids)
        return proposals

    def forget(self, sequence: GeneratedSequence) -> None:
        pass


def ends_often(ids: Sequence[int], size: int) -> Any:
    return hashed(ids, size) + 9 * (np.arange(size) == EOS)


PROMPTS = st.lists(st.lists(st.integers(0, EOS), min_size=1, max_size=20), min_size=1, max_size=5)


@given(
    PROMPTS,
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.sampled_from([0, 0.7, 2]),
    st.sampled_from(["stop", "slide"]),
    st.sampled_from([None, "a", ["e ", "\n"]]),
)
def test_whatever_is_proposed(
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    n: int,
    batch_size: int,
    seed: int,
    temperature: float,
    overflow: Any,
    stop: Any,
) -> None:
    settings = Settings(
        temperature=temperature,
        max_new_tokens=20,
        repetition_penalty=1.5,
        seed=seed,
        batch_size=batch_size,
        overflow=overflow,
        stop=stop,
        logprobs=2,
        min_new_tokens=3,
    )
    model, near = ToyModel(n_ctx=24, logits=ends_often), ToyModel(n_ctx=20)
    plain = generate(model, tokenizer, prompts, settings, n=n)
    for drafter in (Oracle(model, seed), PromptLookup(), ModelDrafter(model, near, batch_size)):
        assert generate(model, tokenizer, prompts, settings, n=n, drafter=drafter) == plain
    same = generate(model, tokenizer, prompts, settings, n=n, drafter=ModelDrafter(model, model, batch_size))
    assert same == plain
    assert all(text.accepted <= text.drafted for texts in same for text in texts)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draft_of_the_same_network_is_always_right(tokenizer: Tokenizer, temperature: float) -> None:
    model = ToyModel(n_ctx=64, eos_token_id=None)
    settings = Settings(temperature=temperature, max_new_tokens=40, seed=5, banned_ids=[EOS])
    drafter = ModelDrafter(model, ToyModel(n_ctx=64, eos_token_id=None), 1)
    [[found]] = generate(model, tokenizer, [[1, 2]], settings, drafter=drafter)
    assert found.accepted == found.drafted > 30
    # The prompt, then the last token and 4, 5, 6 … proposals in one pass each, at last those that are left.
    assert model.calls == [[2], [5], [6], [7], [8], [9], [4]]


def test_proposals_stay_within_the_text(tokenizer: Tokenizer) -> None:
    model = ToyModel(n_ctx=9)
    for wanted in (1, 2, 7):
        settings = Settings(temperature=0, max_new_tokens=wanted, banned_ids=[EOS])
        [[found]] = generate(model, tokenizer, [[1, 2, 3]], settings, drafter=ModelDrafter(model, model, 1))
        assert len(found.ids) == wanted
    assert model.caches[-2].capacity == 9


def test_a_text_without_any_token_left_fails_alone(tokenizer: Tokenizer) -> None:
    model = ToyModel(logits=lambda ids, size: np.full(size, -np.inf) if len(ids) > 4 else scripted([64])(ids, size))
    settings = Settings(temperature=0, max_new_tokens=9)
    with pytest.raises(ValueError, match="logits are not finite"):
        generate(model, tokenizer, [[1]], settings, drafter=ModelDrafter(model, model, 1))


def test_lookup_finds_what_came_last() -> None:
    for ids, count, expected in [
        ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], 3, [8, 1, 2]),
        ([1, 2, 3, 9, 1, 2, 3], 0, []),
        ([5, 5, 5, 5], 4, [5, 5, 5, 5]),
        ([1, 2, 1, 2, 1], 4, [2, 1, 2, 1]),
        ([1, 2, 3, 1, 2], 4, []),
        ([1, 1], 4, []),
        ([1], 4, []),
    ]:
        assert RunIndex().following(ids, count) == expected
        index = RunIndex()  # of a text that grows
        for length in range(1, len(ids)):
            index.following(ids[:length], 1)
        assert index.following(ids, count) == expected


# The engine


@pytest.mark.parametrize("speculate", ["int8", "int4", "lookup"])
def test_texts_of_the_demo(demo: LanguageModel, speculate: Any) -> None:
    prompts = ["Once upon a time", "The king said to the king: the king said", ""]
    for temperature in (0, 0.9):
        options: dict[str, Any] = {"max_new_tokens": 60, "temperature": temperature, "seed": 11}
        plain = demo.generate_batch(prompts, speculate="off", **options)
        found = demo.generate_batch(prompts, speculate=speculate, **options)
        assert found == plain
        # Chance repeats itself too seldom for what came before to be often right.
        assert sum(text.accepted for text in found) > 0 or (speculate == "lookup" and temperature)
        assert sum(text.drafted for text in plain) == 0
        assert "".join(demo.stream(prompts[0], speculate=speculate, **options)) == plain[0].text
    plain = demo.generate(prompts[0], n=2, speculate="off", **options)
    assert demo.generate(prompts[0], n=2, draft=demo, **options) == plain


@pytest.mark.parametrize(("gemm", "proposed"), [("panel", True), ("blas", False)])
def test_the_text_itself_proposes_by_default_where_that_cannot_change_a_digit(gemm: str, proposed: bool) -> None:
    text = gpt2fast.load("demo", gemm=gemm).generate("Once upon a time", temperature=0, max_new_tokens=60)
    assert (text.drafted > 0) == proposed


def test_int8_is_right_nearly_always(demo: LanguageModel) -> None:
    for temperature in (0, 1):
        text = demo.generate("Once upon a time", temperature=temperature, seed=2, max_new_tokens=300, speculate="int8")
        assert text.accepted / text.drafted > 0.75


def test_a_copy_in_fewer_bits_is_the_model_that_would_be_loaded(demo: LanguageModel) -> None:
    for dtype in ("bfloat16", "int8", "int4"):
        loaded = gpt2fast.load("demo", dtype=dtype).model
        np.testing.assert_array_equal(demo.model.with_dtype(dtype)([1, 2, 3]), loaded([1, 2, 3]))
    assert demo.model.dtype == "float32"


def test_what_cannot_draft_is_refused(demo: LanguageModel) -> None:
    other = LanguageModel(GPT2.from_pretrained(FILES / "g-stop-strings" / "model"), demo.tokenizer)
    for options, words in [
        ({"speculate": "int2"}, "speculate is 'int2'; expected 'int4', 'int8', 'lookup' or 'off'"),
        ({"speculate": "int8", "draft": demo}, "speculate and draft were given"),
        ({"draft": "demo"}, "draft is of type str"),
        ({"draft": other}, "the draft model has a vocabulary of 270 tokens, the model one of 4096"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            demo.generate("Once", **options)
    with pytest.raises(ValueError, match="the model itself is kept so"):
        gpt2fast.load("demo", dtype="int8").generate("Once", speculate="int8")
