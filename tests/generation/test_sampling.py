"""Which token is chosen from logits: the filters against slow twins, ties, seeds, and logits that are none."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.generation.sampling import (
    Sampling,
    highest,
    log_probabilities,
    penalize_repetition,
    repeated_ngrams,
    sample_key,
)

# Few different values, so that ties are common, and some that are far apart.
LOGITS = st.lists(st.sampled_from([-30.0, -3.5, -1.0, 0.0, 0.25, 1.0, 1.5, 4.0, -math.inf]), min_size=1, max_size=24)


@pytest.fixture(scope="session")
def case(data: Path) -> Any:
    cases = {case["id"]: case for case in json.loads((data / "generation" / "cases.json").read_text())}
    return cases.__getitem__


def finite(logits: list[float]) -> bool:
    return max(logits) > -math.inf


# The highest values


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 45))
def test_highest_is_a_stable_sort_cut_off(values: list[int], k: int) -> None:
    expected = sorted(range(len(values)), key=lambda i: -values[i])[:k]
    assert highest(np.array(values, np.float32), k).tolist() == expected


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(640, 5000), st.sampled_from([2, 50, 10**6]))
def test_highest_of_many_values(seed: int, k: int, n: int, different: int) -> None:
    values = np.random.default_rng(seed).integers(0, different, n).astype(np.float32)
    assert highest(values, k).tolist() == np.argsort(-values, kind="stable")[:k].tolist()


# Probabilities


def slow_probabilities(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The filters one after the other, each on probabilities made anew, in plain Python."""
    top = max(logits)
    weights = {i: math.exp((x - top) / temperature) for i, x in enumerate(logits)}
    order = sorted(weights, key=lambda i: (-logits[i], i))
    kept = order[:top_k] if top_k else order
    if top_p < 1:
        # `choose` compares in the same order of summation; a tie in the last bit is not what this test is about.
        total, mass, count = sum(weights[i] for i in kept), 0.0, 0
        for i in kept:
            mass += weights[i]
            count += 1
            if mass >= top_p * total * (1 - 1e-12):
                break
        kept = kept[:count]
    kept = [i for i in kept if weights[i] >= min_p]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


@given(
    LOGITS.filter(finite),
    st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    st.integers(0, 10),
    st.sampled_from([0.013, 0.31, 0.57, 0.83, 0.97, 1.0]),
    st.sampled_from([0.0, 0.011, 0.23, 0.91, 1.0]),
)
def test_probabilities_equal_the_slow_twin(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = slow_probabilities(logits, temperature, top_k, top_p, min_p)
    np.testing.assert_allclose(sampling.probabilities(logits), expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0, 1), (0.3, 1), (0.4, 1), (0.41, 2), (0.7, 2), (0.71, 3), (0.9, 3), (0.95, 4), (1, 4)]
)
def test_top_p_is_the_smallest_set_that_reaches_the_mass(top_p: float, kept: int) -> None:
    probabilities = np.array([0.1, 0.4, 0.2, 0.3])
    # 0.4 + 0.3 is 0.7 only up to rounding: a hair below the mark.
    sampling = Sampling(temperature=1, top_k=0, top_p=max(0, top_p - 1e-9) if top_p < 1 else 1)
    assert np.count_nonzero(sampling.probabilities(np.log(probabilities))) == kept


def test_top_p_beyond_the_first_sort() -> None:
    flat = np.zeros(20_000, np.float32)
    assert np.count_nonzero(Sampling(temperature=1, top_k=0, top_p=0.5).probabilities(flat)) == 10_000


def test_filters_look_at_what_is_left() -> None:
    # Of all four, 0.45 takes two; of the two that top-k leaves, one is enough.
    logits = np.log([0.3, 0.25, 0.25, 0.2])
    assert np.count_nonzero(Sampling(temperature=1, top_k=0, top_p=0.45).probabilities(logits)) == 2
    assert np.count_nonzero(Sampling(temperature=1, top_k=2, top_p=0.45).probabilities(logits)) == 1


def test_temperature_comes_before_top_p_and_min_p() -> None:
    logits = np.log([0.6, 0.3, 0.1])
    assert np.count_nonzero(Sampling(temperature=0.2, top_k=0, top_p=0.9).probabilities(logits)) == 1
    assert np.count_nonzero(Sampling(temperature=5, top_k=0, top_p=0.9).probabilities(logits)) == 3
    assert np.count_nonzero(Sampling(temperature=0.2, top_k=0, min_p=0.1).probabilities(logits)) == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9, 1e9, 1e308])
def test_any_temperature_gives_probabilities(temperature: float) -> None:
    found = Sampling(temperature=temperature, top_k=0).probabilities(np.array([-3e38, 0, 1, 1], np.float32))
    assert found.sum() == pytest.approx(1)
    assert (found[3], found[2] > 0) == (found[2], True)


# Choosing


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_greedy_takes_the_lowest_of_equal_ids(dtype: npt.DTypeLike) -> None:
    assert Sampling(temperature=0).choose(np.array([1, 5, 2, 5], dtype)) == 1


@given(LOGITS.filter(finite), st.integers(0, 2**64), st.sampled_from([0, 1, 3]), st.sampled_from([0.2, 0.9, 1.0]))
def test_choice_is_possible_and_repeats_with_its_seed(logits: list[float], seed: int, top_k: int, top_p: float) -> None:
    sampling = Sampling(temperature=1, top_k=top_k, top_p=top_p)
    chosen = sampling.choose(logits, key=sample_key(seed))
    assert sampling.probabilities(logits)[chosen] > 0
    assert chosen == sampling.choose(logits, key=sample_key(seed))


def test_choices_come_with_their_probabilities() -> None:
    sampling = Sampling(temperature=0.5, top_k=3, min_p=0.01)
    logits = [0.0, 1.0, 0.5, -1.0, 0.25]
    counts = Counter(sampling.choose(logits, key=sample_key(1, position=i)) for i in range(20_000))
    for i, probability in enumerate(sampling.probabilities(logits)):
        # Five standard deviations; the seed is fixed, so this passes always or never.
        assert abs(counts[i] - 20_000 * probability) <= 5 * math.sqrt(20_000 * probability)


@given(
    st.integers(0, 2**32), st.integers(1, 3000), st.sampled_from([0, 0.1, 3, 100]), st.sampled_from([1e-6, 0.5, 1, 50])
)
def test_who_cannot_win_the_race_of_all_is_left_out(seed: int, n: int, spread: float, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(size=n) * spread
    logits[1::7] = -np.inf
    found, expected = (
        Sampling(temperature=temperature, top_k=top_k).choose(logits, key=sample_key(seed)) for top_k in (0, n)
    )
    assert found == expected


def test_what_takes_more_than_logits_is_not_plain() -> None:
    """All fields that `choose` reads before the temperature; a new one must be told to `plain`, or a GPU ignores it."""
    others = {
        "repetition_penalty": 2,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "no_repeat_ngram_size": 2,
        "logit_bias": {1: 0.5},
        "banned_ids": [1],
        "banned_sequences": [[1, 2]],
    }
    plain = {"temperature": 0.3, "top_k": 7, "top_p": 0.5, "min_p": 0.1}
    assert {field.name for field in dataclasses.fields(Sampling)} == {*others, *plain}
    assert Sampling(**plain).plain
    assert not any(Sampling(**{name: value}).plain for name, value in others.items())


def test_keys_are_what_they_were() -> None:
    """The texts of a seed must be the same in a later version, on every machine."""
    assert sample_key(0) == 1682718143862937739
    assert sample_key(42) == 3367378889920146240
    assert sample_key(42, sample=1) == 3800216645285536064
    assert sample_key(42, sample=1, position=1023) == 4092300928482383149
    assert sample_key(2**80, position=7) == 5978502904982621583


def test_a_key_is_that_of_the_published_generator() -> None:
    """Each text has a SplitMix64 of its own, written here as its authors did, from a state that is a hash."""

    def split_mix(state: int) -> Iterator[int]:
        while True:
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
            yield z ^ (z >> 31)

    # The authors' first numbers from state 1234567.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert list(itertools.islice(split_mix(1234567), 5)) == known
    start = int.from_bytes(hashlib.sha256(bytes([3, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12])).digest()[:8], "little")
    made = [sample_key(0x1234, 3, position) for position in range(50)]
    assert made == list(itertools.islice(split_mix(start), 50))


# Seeds that differ in one bit, in size only, or by the width of a word; samples; positions.
SEEDS = [0, 1, 2, 3, 255, 256, 2**32, 2**32 + 1, 2**63, 2**64, 2**64 + 1, 2**80, 10**5000]


def test_no_two_keys_are_the_same() -> None:
    keys = {sample_key(seed, sample, position) for seed in SEEDS for sample in range(20) for position in range(50)}
    assert len(keys) == len(SEEDS) * 20 * 50


@pytest.mark.parametrize("varied", ["seed", "sample", "position"])
def test_keys_that_are_neighbours_have_nothing_in_common(varied: str) -> None:
    """Every bit is set in half of the keys, and changes from one key to the next in half of them."""
    count = 4000
    keys = np.array([sample_key(**{"seed": 9, varied: i}) for i in range(count)], np.uint64)
    bits = np.unpackbits(keys.view(np.uint8).reshape(count, 8), axis=1)
    for seen in (bits, bits[1:] ^ bits[:-1], bits[1:, :-1] ^ bits[:-1, 1:]):
        # Five standard deviations; nothing here is drawn anew, so this passes always or never.
        assert (abs(seen.sum(axis=0, dtype=np.int64) - len(seen) / 2) < 2.5 * math.sqrt(len(seen))).all()


@pytest.mark.parametrize("varied", ["seed", "sample", "position"])
def test_choices_of_neighbours_are_independent(varied: str) -> None:
    """Of ten equal ids each pair of a choice and the next one is as frequent as any other: chi-squared, 99 degrees."""
    sampling, count = Sampling(temperature=1, top_k=0), 20_000
    chosen = [sampling.choose(np.zeros(10), key=sample_key(**{"seed": 5, varied: i})) for i in range(count)]
    pairs = np.bincount([10 * a + b for a, b in itertools.pairwise(chosen)], minlength=100)
    expected = (count - 1) / 100
    assert ((pairs - expected) ** 2 / expected).sum() < 170  # one in 100,000 is above that


def test_choosing_needs_a_key() -> None:
    with pytest.raises(InputError, match=r"temperature is 0\.8; a key is needed"):
        Sampling().choose([1.0, 2.0])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"repetition_penalty": 2},
        {"frequency_penalty": 2},
        {"logit_bias": {0: 3}},
        {"banned_ids": [1]},
        {"top_p": 0.5},
    ],
)
def test_logits_stay_as_they_are(options: dict[str, Any]) -> None:
    logits = np.array([1, 2, 3, -1], np.float32)
    logits.flags.writeable = False
    Sampling(**options).choose(logits, [0, 2], key=sample_key(0), banned=[3])


# Bias, bans, repetition


def test_bias_and_bans() -> None:
    logits = [0.0, 1.0, 2.0]
    assert Sampling(temperature=0, logit_bias={0: 2.5}).choose(logits) == 0
    assert Sampling(temperature=0, logit_bias={2: -2}).choose(logits) == 1
    assert Sampling(temperature=0, banned_ids=[2]).choose(logits) == 1
    assert Sampling(temperature=0, banned_ids=np.array([2])).choose(logits, banned=[1]) == 0
    assert Sampling(temperature=1, banned_ids=[2], top_k=2).probabilities(logits)[2] == 0
    with pytest.raises(InputError, match="no token is left"):
        Sampling(banned_ids=[0, 1]).choose(logits, banned=[2])


def test_repetition_penalty_case(case: Any) -> None:
    inputs, expected = case("g-repetition-penalty")["input"], case("g-repetition-penalty")["expected"]
    logits = np.array(inputs["logits"], np.float32)
    assert penalize_repetition(logits, inputs["seen_ids"], inputs["penalty"]).tolist() == expected["logits"]
    assert penalize_repetition(logits, inputs["seen_ids"], 1.0).tolist() == inputs["logits"]
    for penalty in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="repetition_penalty"):
            penalize_repetition(logits, [0], penalty)


def test_repetition_penalty_is_part_of_the_choice() -> None:
    assert Sampling(temperature=0, repetition_penalty=2).choose([3.0, 2.0], [0, 0, 0]) == 1
    assert Sampling(temperature=0, repetition_penalty=1.4).choose([3.0, 2.0], [0, 0, 0]) == 0
    assert Sampling(temperature=0, repetition_penalty=2).choose([-1.0, -1.5], [0]) == 1


def test_presence_and_frequency_penalties_count_new_tokens() -> None:
    seen = [0, 0, 1, 2, 2, 2]  # the first three are the prompt
    logits = [0.0, 1.0, 2.0, -1.0]
    for presence, frequency, expected in ((0.5, 0, 1.5), (0, 0.5, 0.5), (-1, 0.25, 2.25)):
        options = {"presence_penalty": presence, "frequency_penalty": frequency}
        found = Sampling(temperature=1, top_k=0, **options).probabilities(logits, seen, prompt=3)
        right = Sampling(temperature=1, top_k=0).probabilities([0.0, 1.0, expected, -1.0])
        np.testing.assert_allclose(found, right)
    strict = Sampling(temperature=0, frequency_penalty=2)
    assert [strict.choose(logits, seen, prompt=prompt) for prompt in (6, 5, 4, 0)] == [2, 1, 1, 1]
    assert logits == [0.0, 1.0, 2.0, -1.0]


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 4))
def test_repeated_ngrams_by_hand(seen: list[int], size: int) -> None:
    there = {tuple(seen[i : i + size]) for i in range(len(seen) - size + 1)}
    begun = seen[len(seen) - size + 1 :] if size > 1 else []
    enough = len(seen) >= size - 1
    assert repeated_ngrams(seen, size) == [i for i in range(4) if enough and (*begun, i) in there]


def test_no_ngram_comes_twice() -> None:
    sampling, seen = Sampling(temperature=0, no_repeat_ngram_size=2), [0]
    while len(seen) < 6:
        seen.append(sampling.choose([2.0, 1.0, 0.0], seen))
    assert seen == [0, 0, 1, 0, 2, 0]
    with pytest.raises(InputError, match="no token is left"):  # 0, 1 and 2 have followed a 0
        sampling.choose([2.0, 1.0, 0.0], seen)


# Logits that are none


def number(value: Any) -> float:
    return float(value)


def test_nonfinite_case(case: Any) -> None:
    rows = [[number(x) for x in row] for row in case("g-nonfinite")["input"]["filter_logits"]]
    for row in rows[:4]:
        for sampling in (Sampling(temperature=0), Sampling(temperature=1), Sampling(top_k=1), Sampling(top_p=0.5)):
            with pytest.raises(InputError, match="not finite"):
                sampling.choose(row, key=sample_key(0))
        with pytest.raises(InputError, match="not finite"):
            log_probabilities(row)
    assert Sampling(temperature=0).choose(rows[4]) == 1
    found = {Sampling(temperature=2, top_k=0).choose(rows[4], key=sample_key(seed)) for seed in range(50)}
    assert found == {1, 3}


@pytest.mark.parametrize(
    ("logits", "error", "words"),
    [
        ([], InputError, r"shape \(0,\)"),
        ([[1.0]], InputError, r"shape \(1, 1\)"),
        (["a"], InputTypeError, "type <U1"),
        ([1j], InputTypeError, "complex128"),
        ([True], InputTypeError, "bool"),
    ],
)
def test_logits_of_the_wrong_kind(logits: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Sampling(temperature=0).choose(logits)


@given(LOGITS.filter(finite))
def test_log_probabilities_are_those_of_all_tokens(logits: list[float]) -> None:
    found = log_probabilities(np.array(logits, np.float32))
    expected = Sampling(temperature=1, top_k=0).probabilities(logits)
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)


# Arguments


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("temperature", -0.1, InputError),
        ("temperature", math.nan, InputError),
        ("temperature", math.inf, InputError),
        ("temperature", "hot", InputTypeError),
        ("temperature", True, InputTypeError),
        ("temperature", None, InputTypeError),
        ("top_k", -1, InputError),
        ("top_k", 1.5, InputTypeError),
        ("top_k", "4", InputTypeError),
        ("top_p", -0.01, InputError),
        ("top_p", 1.01, InputError),
        ("min_p", 2, InputError),
        ("repetition_penalty", 0, InputError),
        ("repetition_penalty", -2, InputError),
        ("presence_penalty", math.nan, InputError),
        ("frequency_penalty", "1", InputTypeError),
        ("temperature", 10**400, InputError),
        ("no_repeat_ngram_size", -1, InputError),
        ("logit_bias", [1.0], InputTypeError),
        ("logit_bias", {-1: 0.5}, InputError),
        ("logit_bias", {1: math.inf}, InputError),
        ("logit_bias", {"a": 1}, InputTypeError),
        ("banned_ids", 5, InputTypeError),
        ("banned_ids", "56", InputTypeError),
        ("banned_ids", [1.0], InputTypeError),
    ],
)
def test_arguments_are_checked_by_name(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        Sampling(**{name: value})


def test_banned_sequences_end_nowhere() -> None:
    logits = np.array([3.0, 2.0, 1.0])
    greedy = Sampling(temperature=0, banned_sequences=[[0, 0], [2, 1, 0], [1, 1]])
    assert [greedy.choose(logits, seen) for seen in ([], [1], [0], [2, 1], [1, 2, 1], [2, 2])] == [0, 0, 1, 2, 2, 0]
    assert greedy.choose(logits, np.array([0])) == 1
    assert Sampling(temperature=0, banned_sequences=[[0]]).choose(logits) == 1
    assert greedy.unwanted([0], [2]) == [0, 2]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("no", InputTypeError, "banned_sequences is 'no'"),
        ([1, 2], InputTypeError, "banned_sequences holds 1; expected a sequence of ids"),
        (["no"], InputTypeError, "banned_sequences holds 'no'"),
        ([[1], []], InputError, "banned_sequences holds an empty sequence"),
        ([[1.5]], InputTypeError, "an id of banned_sequences is 1.5"),
    ],
)
def test_banned_sequences_are_checked(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Sampling(banned_sequences=value)


@pytest.mark.parametrize(
    "options", [{"logit_bias": {9: 1.0}}, {"banned_ids": [3, 9]}, {"banned_sequences": [[1], [1, 9]]}]
)
def test_ids_outside_the_vocabulary(options: dict[str, Any]) -> None:
    Sampling(**options).check_ids(10)
    with pytest.raises(InputError, match="id 9, which is outside the vocabulary of 9 tokens"):
        Sampling(**options).check_ids(9)


def test_numbers_of_other_types_are_welcome() -> None:
    sampling = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), top_p=1, banned_ids=np.array([1, 2]))
    assert (sampling.temperature, sampling.top_k, sampling.banned_ids) == (0.5, 3, (1, 2))
    seen: Sequence[int] = np.array([0, 1])  # type: ignore[assignment]
    assert Sampling(temperature=0, repetition_penalty=3, no_repeat_ngram_size=1).choose([5.0, 4.0, 3.0], seen) == 2
