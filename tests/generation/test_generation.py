"""Texts come out right: the same whatever the batch around them, ended where they should be, within the context."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA
from toy_model import ToyModel, hashed, scripted

import gpt2fast
from gpt2fast import GPT2, InputError, InputTypeError, LanguageModel, Tokenizer
from gpt2fast.generation.generate import Generation, Settings, Step, generate, steps
from gpt2fast.generation.sampling import Sampling, log_probabilities, sample_key

FILES = DATA / "generation"
EOS = 269


@pytest.fixture(scope="session")
def case() -> Any:
    return {case["id"]: case for case in json.loads((FILES / "cases.json").read_text())}.__getitem__


@pytest.fixture(scope="session")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


def of(tokenizer: Tokenizer, model: ToyModel, prompts: Sequence[Sequence[int]], n: int = 1, **options: Any) -> Any:
    return generate(model, tokenizer, prompts, Settings(**options), n=n)


# Cases: trouble that other projects had


def test_stop_strings_case(case: Any) -> None:
    inputs, expected = case("g-stop-strings")["input"], case("g-stop-strings")["expected"]
    lm = gpt2fast.load(FILES / inputs["model"])
    options = {"temperature": inputs["temperature"], "max_new_tokens": inputs["max_new_tokens"]}
    unstopped = lm.generate(inputs["prompt_ids"], **options)
    assert (unstopped.text, unstopped.ids) == (inputs["unstopped_text"], inputs["unstopped_ids"])
    for stop, text, reason in zip(inputs["stop"], expected["text"], expected["finish_reason"], strict=True):
        found = lm.generate(inputs["prompt_ids"], stop=stop, **options)
        assert (found.text, found.finish_reason) == (text, reason)
        assert found.ids == inputs["unstopped_ids"][: len(found.ids)]
        pieces = list(lm.stream(inputs["prompt_ids"], stop=stop, **options))
        assert "".join(pieces) == text
        assert "" not in pieces
    with pytest.raises(ValueError, match="stop holds an empty string"):
        lm.generate(inputs["prompt_ids"], stop=[""], **options)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_batch_case(case: Any, batch_size: int) -> None:
    inputs, expected = case("g-batch-eos")["input"], case("g-batch-eos")["expected"]
    lm = gpt2fast.load(FILES / inputs["model"])
    options = {"temperature": 0, "max_new_tokens": inputs["max_new_tokens"], "batch_size": batch_size}
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 2, 2, 0]):
        prompts = [inputs["prompts"][i] for i in order]
        for i, found in zip(order, lm.generate_batch(prompts, **options), strict=True):
            row = expected["rows"][i]
            assert (found.ids, found.text) == (row["ids_through_eos"], row["text"])
            assert found.finish_reason == row["finish"]
            assert found == lm.generate(inputs["prompts"][i], seed=found.seed, **options)


def test_context_end_case(case: Any) -> None:
    inputs, expected = case("g-context-end")["input"], case("g-context-end")["expected"]
    lm = gpt2fast.load(FILES / inputs["model"])
    prompts = [[inputs["prompt_token"]] * case["prompt_len"] for case in inputs["cases"]]
    new = [case["max_new_tokens"] for case in inputs["cases"]]
    right = expected["first_case_ids_if_generated"]
    with pytest.raises(ValueError, match=r"20 tokens, and 10 new are wanted.* 29 tokens; the model's limit is 23"):
        lm.generate(prompts[0], max_new_tokens=new[0], temperature=0, overflow="error")
    for wanted in (new[0], None):  # four, because the last token needs no position of its own
        found = lm.generate(prompts[0], max_new_tokens=wanted, temperature=0)
        assert (found.ids, found.finish_reason) == (right, "length")
    assert lm.generate(prompts[0], max_new_tokens=4, temperature=0, overflow="error").ids == right
    slid = lm.generate(prompts[0], max_new_tokens=new[0], temperature=0, overflow="slide")
    assert (slid.ids[:4], len(slid.ids)) == (right, 10)
    assert lm.generate(prompts[1], max_new_tokens=new[1], temperature=0).ids == right[-1:]
    for overflow in ("stop", "error"):
        with pytest.raises(ValueError, match="24 tokens, and 1 new is wanted.* limit is 23"):
            lm.generate(prompts[2], max_new_tokens=new[2], temperature=0, overflow=overflow)
    assert len(lm.generate(prompts[3], max_new_tokens=new[3], temperature=0).ids) <= 23


@pytest.mark.parametrize("weights", ["nan_weights", "inf_weights"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_nonfinite_case(case: Any, tokenizer: Tokenizer, weights: str, temperature: float) -> None:
    model = GPT2.from_pretrained(FILES / "g-nonfinite" / weights)
    options = {"temperature": temperature, "max_new_tokens": case("g-nonfinite")["input"]["max_new_tokens"]}
    with pytest.raises(ValueError, match="logits are not finite"):
        LanguageModel(model, tokenizer).generate(case("g-nonfinite")["input"]["prompt_ids"], **options)


def test_greedy_texts_of_the_demo(demo: LanguageModel) -> None:
    for prompt, text in json.loads((FILES / "demo.json").read_text())["greedy"].items():
        tokens = len(demo.tokenizer.encode(text)) - len(demo.tokenizer.encode(prompt))
        assert prompt + demo.generate(prompt, max_new_tokens=tokens, temperature=0).text == text


# The same text, whatever is around it


def slow_generate(
    logits_after: Callable[[Sequence[int]], Any], prompt: Sequence[int], seed: int, sample: int, **options: Any
) -> list[int]:
    """The ids of one text, everything computed anew for each token, without cache, batch or stop strings."""
    count, sampling = options.pop("max_new_tokens"), Sampling(**options)
    ids = list(prompt)
    while len(ids) < len(prompt) + count and (ids[-1] != EOS or len(ids) == len(prompt)):
        ids.append(sampling.choose(logits_after(ids), ids, key=sample_key(seed, sample, len(ids))))
    return ids[len(prompt) :]


PROMPTS = st.lists(st.lists(st.integers(0, EOS), min_size=1, max_size=9), min_size=1, max_size=6)


@given(PROMPTS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**70), st.sampled_from([0, 0.7, 2]))
def test_every_row_equals_the_slow_twin(
    tokenizer: Tokenizer, prompts: list[list[int]], n: int, batch_size: int, seed: int, temperature: float
) -> None:
    # End-of-text comes often, so that rows are freed all the time.
    model = ToyModel(logits=lambda ids, size: hashed(ids, size) + 9 * (np.arange(size) == EOS))
    options = {"temperature": temperature, "max_new_tokens": 12, "top_k": 9, "repetition_penalty": 1.5}
    found = of(tokenizer, model, prompts, n, seed=seed, batch_size=batch_size, **options)
    for prompt, samples in zip(prompts, found, strict=True):
        for sample, text in enumerate(samples):
            assert text.ids == slow_generate(model.logits_after, prompt, seed, sample, **options)
            assert (text.prompt_ids, text.seed) == (prompt, seed)
            assert text.finish_reason == ("eos" if text.ids[-1] == EOS else "length")
            assert text.text == tokenizer.decode([i for i in text.ids if i != EOS])


def test_batch_of_the_demo_equals_single_runs(demo: LanguageModel) -> None:
    prompts = ["Once", "The old king looked out of the window and", "A", '"Where', "In the middle of the night " * 12]
    options: Any = {"max_new_tokens": 24, "temperature": 1.2, "top_k": 0, "top_p": 0.95}
    alone = [demo.generate(prompt, seed=i, **options) for i, prompt in enumerate(prompts)]
    for size in (2, 16):
        assert demo.generate_batch(prompts, seed=range(5), batch_size=size, **options) == alone
    backwards = demo.generate_batch(prompts[::-1], seed=range(5)[::-1], **options)
    assert backwards == alone[::-1]
    samples = demo.generate(prompts[1], seed=1, n=5, **options)
    assert samples[0] == alone[1]
    assert len({sample.text for sample in samples}) == 5
    assert demo.generate(prompts[1], seed=1, n=3, batch_size=1, **options) == samples[:3]


def test_samples_share_the_prompt_and_finished_rows_make_room(tokenizer: Tokenizer) -> None:
    model = ToyModel()
    of(tokenizer, model, [[1] * 20], 4, max_new_tokens=5, seed=1)
    # The prompt once; its last token again for each of the other three samples.
    assert model.calls == [[20], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1]]

    # By the length of the prompt: the first text ends after one token, the others do not.
    ends = ToyModel(logits=lambda ids, size: np.eye(size)[EOS if len(ids) == 1 else 5])
    of(tokenizer, ends, [[1], [2] * 2, [3] * 9, [4] * 3], max_new_tokens=3, temperature=0, batch_size=2)
    assert ends.calls == [[1, 2], [9, 1], [1, 1], [1, 3], [1], [1]]
    assert len(ends.caches) == 1
    assert ends.caches[0].capacity == 11


@pytest.mark.parametrize("length", [3, 8, 11])
@pytest.mark.parametrize("count", [1, 11])
def test_samples_that_slide_begin_at_the_prompt_all_the_same(tokenizer: Tokenizer, length: int, count: int) -> None:
    model = ToyModel(n_ctx=8)
    options: dict[str, Any] = {"max_new_tokens": count, "overflow": "slide", "seed": 3}
    found = of(tokenizer, model, [[1] * length], 5, batch_size=2, **options)
    assert found == of(tokenizer, model, [[1] * length], 5, batch_size=16, **options)
    last = found[0][4]
    first_draw = Sampling().choose(model.logits_after(([1] * length)[-8:]), [1], key=sample_key(3, 4, length))
    assert last.ids[0] == first_draw


@given(st.integers(1, 11), st.integers(0, 3))
def test_a_text_is_taken_up_anywhere(tokenizer: Tokenizer, count: int, sample: int) -> None:
    """With what it has so far as the prompt, and the same seed, it goes on as it would have."""
    model = ToyModel(eos_token_id=None)
    options: Any = {"seed": 2**70, "temperature": 1, "banned_ids": [EOS]}
    whole = of(tokenizer, model, [[1, 2, 3]], 4, max_new_tokens=12, **options)[0][sample]
    begun = whole.prompt_ids + whole.ids[:count]
    assert of(tokenizer, model, [begun], 4, max_new_tokens=12 - count, **options)[0][sample].ids == whole.ids[count:]


# The end of the context


@given(st.lists(st.integers(0, 268), min_size=1, max_size=20), st.integers(1, 40), st.integers(1, 9))
def test_slide_forgets_the_older_half(tokenizer: Tokenizer, prompt: list[int], count: int, n_ctx: int) -> None:
    model = ToyModel(n_ctx=n_ctx, eos_token_id=None)
    expected = list(prompt)
    window = expected[-n_ctx:]
    for _ in range(count):
        if len(window) > n_ctx:
            window = window[-max(n_ctx // 2, 1) :]
        token = Sampling(temperature=0, banned_ids=[EOS]).choose(model.logits_after(window))
        expected.append(token)
        window.append(token)
    options = {"temperature": 0, "max_new_tokens": count, "overflow": "slide", "banned_ids": [EOS]}
    found = of(tokenizer, model, [prompt], **options)[0][0]
    assert found.prompt_ids + found.ids == expected
    assert found.finish_reason == "length"


def test_nothing_is_computed_where_one_prompt_does_not_fit(tokenizer: Tokenizer) -> None:
    model = ToyModel(n_ctx=10)
    with pytest.raises(InputError, match=r"prompts\[1\] has 8 tokens, and 4 new are wanted.* 11 tokens; .* is 10"):
        of(tokenizer, model, [[1], [2] * 8], max_new_tokens=4, overflow="error")
    assert not model.calls
    assert not model.caches


def test_a_long_wish_takes_no_memory(tokenizer: Tokenizer) -> None:
    model = ToyModel(n_ctx=16, logits=scripted([65, 66, EOS]))
    assert of(tokenizer, model, [[1]], max_new_tokens=10**9, overflow="slide", temperature=0)[0][0].ids[-1] == EOS
    assert model.caches[0].capacity == 16


# How a text ends


def test_end_of_text_is_no_text_and_in_a_prompt_no_end(tokenizer: Tokenizer) -> None:
    model = ToyModel(logits=scripted([64, 65, EOS, 66]))
    found = of(tokenizer, model, [[EOS]], temperature=0)[0][0]
    assert (found.text, found.ids, found.finish_reason) == ("ab", [64, 65, EOS], "eos")


@pytest.mark.parametrize("least", [0, 2, 3, 6])
def test_min_new_tokens_puts_the_end_off(tokenizer: Tokenizer, least: int) -> None:
    model = ToyModel(logits=lambda ids, size: 9 * np.eye(size)[EOS] + np.eye(size)[64])
    found = of(tokenizer, model, [[1]], temperature=0, min_new_tokens=least)[0][0]
    assert found.ids == [64] * least + [EOS]


def test_end_of_text_comes_from_the_configuration_or_else_from_the_tokenizer(tokenizer: Tokenizer) -> None:
    for eos in (EOS, None):
        model = ToyModel(eos_token_id=eos, logits=scripted([64, EOS]))
        assert of(tokenizer, model, [[1]], temperature=0)[0][0].finish_reason == "eos"
    other = ToyModel(eos_token_id=65, logits=scripted([64, 65]))
    assert of(tokenizer, other, [[1]], temperature=0)[0][0].ids == [64, 65]


def test_an_empty_prompt_starts_from_end_of_text(demo: LanguageModel, tokenizer: Tokenizer) -> None:
    found = demo.generate("", seed=5, max_new_tokens=8)
    assert found.prompt_ids == [demo.tokenizer.eot_token]
    assert found == demo.generate(b"", seed=5, max_new_tokens=8) == demo.generate([], seed=5, max_new_tokens=8)
    nameless = SimpleNamespace(n_vocab=270, bos_token_id=None, eos_token_id=None)
    with pytest.raises(InputError, match="the prompt is empty"):
        generate(ToyModel(eos_token_id=None), nameless, [[]], Settings())


def test_a_padded_vocabulary_is_never_chosen_from(tokenizer: Tokenizer) -> None:
    model = ToyModel(vocab_size=320, logits=lambda ids, size: np.arange(size, dtype=float))
    for temperature in (0, 1):
        found = of(tokenizer, model, [[1]], temperature=temperature, top_k=0, min_new_tokens=30, max_new_tokens=30)
        assert max(found[0][0].ids) < tokenizer.n_vocab
    small = ToyModel(vocab_size=100, eos_token_id=None)
    assert max(of(tokenizer, small, [[1]], top_k=0, temperature=9)[0][0].ids) < 100


# What is told


def test_logprobs_are_those_of_the_network(tokenizer: Tokenizer) -> None:
    model = ToyModel()
    found = of(tokenizer, model, [[1, 2]], max_new_tokens=6, logprobs=3, seed=4, temperature=0.3, top_k=2)[0][0]
    ids = list(found.prompt_ids)
    assert len(found.logprobs) == len(found.top_logprobs) == 6
    for token, logprob, best in zip(found.ids, found.logprobs, found.top_logprobs, strict=True):
        expected = log_probabilities(model.logits_after(ids))
        assert logprob == expected[token]
        assert [i for i, _ in best] == np.argsort(-expected, kind="stable")[:3].tolist()
        assert [value for _, value in best] == [expected[i] for i, _ in best]
        ids.append(token)
    none = of(tokenizer, model, [[1, 2]], max_new_tokens=2, logprobs=0)[0][0]
    assert (len(none.logprobs), none.top_logprobs) == (2, [[], []])
    quiet = of(tokenizer, model, [[1, 2]], max_new_tokens=2)[0][0]
    assert (quiet.logprobs, quiet.top_logprobs) == (None, None)


def test_steps_add_up_to_the_texts(demo: LanguageModel) -> None:
    seen: list[Step] = []
    found = demo.generate("Once", n=3, max_new_tokens=9, seed=3, on_token=seen.append)
    assert isinstance(found, list)
    assert len(seen) == 27
    for sample, text in enumerate(found):
        own = [step for step in seen if step.sample == sample]
        assert [step.id for step in own] == text.ids
        assert "".join(step.text for step in own) == text.text
        assert [step.finish_reason for step in own] == [None] * 8 + ["length"]


def test_a_drawn_seed_is_told(demo: LanguageModel) -> None:
    first, second = (demo.generate("Once", max_new_tokens=12) for _ in range(2))
    assert first.seed != second.seed
    assert demo.generate("Once", max_new_tokens=12, seed=first.seed) == first
    assert str(first) == first.text


def test_no_prompts_give_no_texts(demo: LanguageModel) -> None:
    assert demo.generate_batch([]) == []


# Arguments


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_new_tokens": 0}, InputError, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.5}, InputTypeError, r"max_new_tokens is 2\.5"),
        ({"min_new_tokens": -1}, InputError, "min_new_tokens is -1"),
        ({"min_new_tokens": 61}, InputError, "min_new_tokens is 61, max_new_tokens only 60"),
        ({"stop": ""}, InputError, "stop holds an empty string"),
        ({"stop": ["a", 1]}, InputTypeError, "stop holds 1"),
        ({"stop": b"a"}, InputTypeError, "stop is b'a'"),
        ({"stop": 7}, InputTypeError, "stop is 7"),
        ({"seed": -1}, InputError, "seed is -1"),
        ({"seed": "x"}, InputTypeError, "seed is 'x'"),
        ({"seed": [1, 2]}, InputError, "seed has 2 seeds; there are 1 prompts"),
        ({"logprobs": -1}, InputError, "logprobs is -1"),
        ({"overflow": "wrap"}, InputError, "overflow is 'wrap'; expected 'stop', 'error' or 'slide'"),
        ({"overflow": "slide", "max_new_tokens": None}, InputError, "max_new_tokens is None"),
        ({"batch_size": 0}, InputError, "batch_size is 0"),
        ({"n": 0}, InputError, "n is 0"),
        ({"n": None}, InputTypeError, "n is None"),
        ({"temperature": -1}, InputError, "temperature is -1"),
        ({"banned_ids": [4096]}, InputError, "banned_ids names id 4096"),
        ({"logit_bias": {5000: 1}}, InputError, "logit_bias names id 5000"),
        ({"max_tokens": 5}, InputTypeError, "no option 'max_tokens'; did you mean 'max_new_tokens'?"),
        ({"zzz": 5}, InputTypeError, "no option 'zzz'$"),
    ],
)
def test_options_are_checked_by_name(
    demo: LanguageModel, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        demo.generate("Once", **options)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([4096], InputError, "the prompt has id 4096, which is outside the vocabulary of 4096"),
        ([-1], InputError, "an id of the prompt is -1"),
        ([1.0], InputTypeError, r"an id of the prompt is 1\.0"),
        (["a"], InputTypeError, "an id of the prompt is 'a'"),
        (5, InputTypeError, "the prompt is of type int"),
        (None, InputTypeError, "the prompt is of type NoneType"),
        (np.array([[1, 2]]), InputTypeError, "an id of the prompt is"),
    ],
)
def test_prompts_are_checked(demo: LanguageModel, prompt: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        demo.generate(prompt)


def test_prompts_are_a_list(demo: LanguageModel) -> None:
    for one in ("Once", b"Once"):
        with pytest.raises(InputTypeError, match="expected a list of prompts"):
            demo.generate_batch(one)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"an id of prompts\[1\]"):
        demo.generate_batch(["Once", ["a"]])  # type: ignore[list-item]


def test_prompts_of_any_kind_are_the_same_prompt(demo: LanguageModel) -> None:
    ids = demo.tokenizer.encode("Once upon")
    prompts: list[Any] = ["Once upon", b"Once upon", ids, tuple(ids), np.array(ids), np.array(ids, np.uint16)]
    found = demo.generate_batch(prompts, seed=1, max_new_tokens=4)
    assert len({tuple(text.ids) for text in found}) == 1
    assert all(isinstance(i, int) for text in found for i in text.ids + text.prompt_ids)


def test_special_tokens_in_a_text_are_text(demo: LanguageModel) -> None:
    found = demo.generate("<|endoftext|>", max_new_tokens=1)
    assert demo.tokenizer.eot_token not in found.prompt_ids


def test_a_failed_call_leaves_nothing_behind(demo: LanguageModel) -> None:
    before = demo.generate("Once", seed=1, max_new_tokens=8)

    def interrupt(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.generate("Once", n=2, on_token=interrupt)
    made = steps(demo.model, demo.tokenizer, [[1]], Settings())
    next(made)
    made.close()  # type: ignore[attr-defined]
    assert demo.generate("Once", seed=1, max_new_tokens=8) == before
    assert isinstance(before, Generation)


@pytest.mark.parametrize("speculate", ["off", "lookup"])
def test_on_token_ends_a_text(demo: LanguageModel, speculate: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0, "logprobs": 0, "speculate": speculate}
    whole = demo.generate("Once upon a time", **options)
    for count in (1, 7, 30):
        seen: list[int] = []

        def enough(step: Any, seen: list[int] = seen, count: int = count) -> bool:
            seen.append(step.id)
            return len(seen) == count

        text = demo.generate("Once upon a time", on_token=enough, **options)
        assert text.ids == seen == whole.ids[:count]
        assert text.text == demo.tokenizer.decode(whole.ids[:count])
        assert text.logprobs == whole.logprobs[:count]  # type: ignore[index]
        assert text.finish_reason == ("length" if count == 30 else "stop")
    texts: Any = demo.generate("Once", n=2, seed=1, max_new_tokens=9, on_token=lambda step: step.sample == 0)
    first, second = texts
    assert (len(first.ids), len(second.ids)) == (1, 9)
