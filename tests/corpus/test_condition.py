"""Conditions on a document's numbers: what Python would say of them, and what is wrong with what is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2fast.corpus.condition import Condition
from gpt2fast.errors import InputError, InputTypeError

NAMES = ["perplexity", "bytes", "log_likelihood"]

_numbers = st.one_of(
    st.sampled_from(NAMES),
    st.integers(0, 300).map(str),
    st.floats(0, 300, allow_nan=False).map(repr),
)
_sums = st.recursive(
    _numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", "-", "*"]), inner).map("".join), inner.map("-({})".format)
    ),
    max_leaves=4,
)
_comparisons = st.lists(
    st.tuples(st.sampled_from(["<", " <= ", ">", ">=", " == ", "!="]), _sums).map("".join), min_size=1, max_size=2
)
_conditions = st.recursive(
    st.tuples(_sums, _comparisons).map(lambda parts: parts[0] + "".join(parts[1])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join),
        inner.map("not ({})".format),
        inner.map("({})".format),
        inner.map("not {}".format),
    ),
    max_leaves=5,
)
_values = st.one_of(st.sampled_from([math.nan, math.inf, 0.0]), st.integers(-5, 300), st.floats(-300, 300))


@given(_conditions, st.fixed_dictionaries(dict.fromkeys(NAMES, _values)))
def test_what_python_says(text: str, numbers: dict[str, float]) -> None:
    expected = eval(text, {"__builtins__": {}}, {name: float(value) for name, value in numbers.items()})
    assert Condition(text, NAMES)(numbers) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes / 0 > 1e300", True),
        ("-bytes / 0 < -1e300", True),
        ("0 / 0 == 0 / 0", False),
        ("bytes / perplexity > 0", False),  # the perplexity of nothing is NaN
        ("perplexity < 200", False),
        ("not perplexity < 200", True),
        ("perplexity != perplexity", True),
        ("1e3 < bytes * bytes < 1e5", True),
    ],
)
def test_division_by_zero_and_what_is_no_number(text: str, expected: bool) -> None:
    assert Condition(text, NAMES)({"perplexity": math.nan, "bytes": 90}) is expected


def test_the_names_that_are_looked_at() -> None:
    assert Condition("perplexity < 200 and (bytes > 3 or perplexity > 7)", NAMES).names == ["bytes", "perplexity"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the condition is empty"),
        (" \n", "the condition is empty"),
        ("perplexity", "'perplexity' is a number; expected a comparison"),
        ("perplexty < 3", "there is no 'perplexty'; expected perplexity, bytes, log_likelihood"),
        ("perplexity <", "cannot be read"),
        ("perplexity < 200)", "cannot be read at ')'"),
        ("perplexity = 200", "cannot be read"),
        ("perplexity < 200 && bytes > 3", "cannot be read at '& bytes > 3'"),
        ("perplexity < 200 and bytes", "'bytes' is a number where a comparison is expected"),
        ("(perplexity < 200) < 3", "'perplexity < 200' is a condition where a number is expected"),
        ("(not perplexity < 200) + 1 < 3", "is a condition where a number is expected"),
        ("perplexity in (1, 2)", "compares with what is none of < <= > >= == !="),
        ("perplexity < '200'", "\"'200'\" is no part of the language"),
        ("perplexity < True", "'True' is no part of the language"),
        ("perplexity < 2j", "'2j' is no part of the language"),
        ("perplexity ** 2 < 3", "'perplexity ** 2' is no part of the language"),
        ("perplexity // 2 < 3", "is no part of the language"),
        ("__import__('os').abort()", "is no part of the language"),
        ("perplexity.real < 3", "'perplexity.real' is no part of the language"),
        ("(lambda: 1)() < 3", "is no part of the language"),
        ("[p for p in (1,)] < 3", "is no part of the language"),
        ("(bytes := 3) < 4", "is no part of the language"),
        ("f'{bytes}' < 4", "is no part of the language"),
        ("perplexity < " + "9" * 400, "is too large a number"),
        ("perplexity < " + "9" * 5000, "has 5,013 characters; at most 1,000 are read"),
        ("(" * 300 + "bytes < 1" + ")" * 300, "cannot be read"),
        ("-" * 600 + "1 < 2", "nested too deeply"),
        ("not " * 200 + "1 < 2", "nested too deeply"),
        ("bytes\0 < 3", "cannot be read"),
        ("\ud800 < 3", "cannot be read"),
        ("2perplexity < 3", "cannot be read"),
        ("bytes < 3and bytes > 1", "cannot be read"),
    ],
)
def test_what_is_no_condition(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        Condition(text, NAMES)
    assert words in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        found = Condition(text, NAMES)(dict.fromkeys(NAMES, 1.0))
    except InputError:
        return
    assert found in (True, False)


@pytest.mark.parametrize("text", [5, None, b"bytes < 3", ["bytes < 3"]])
def test_what_is_no_text(text: Any) -> None:
    with pytest.raises(InputTypeError, match="the condition is of type"):
        Condition(text, NAMES)
