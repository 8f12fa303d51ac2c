"""A stream gives the text of `generate` as soon as it is certain: whole characters, nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_model import ToyModel, scripted

import gpt2fast
from gpt2fast import InputError, LanguageModel, Tokenizer
from gpt2fast.generation.stop_strings import StopStrings, check_stop

EOS = 269
ALPHABET = "abé🦊"


@pytest.fixture(scope="session")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


def speaker(tokenizer: Tokenizer, text: str | bytes, end: Sequence[int] = (EOS,)) -> Any:
    """A language model whose greedy text is `text`, byte by byte."""
    raw = text.encode() if isinstance(text, str) else text
    script = [tokenizer.encode_single_token(bytes([byte])) for byte in raw]
    return LanguageModel(ToyModel(n_ctx=1000, logits=scripted([*script, *end])), tokenizer)  # type: ignore[arg-type]


# Stop strings


def cut_off(text: str, strings: Sequence[str]) -> tuple[str, bool]:
    places = [text.find(string) for string in strings if string in text]
    return (text[: min(places)], True) if places else (text, False)


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
)
def test_stop_strings_do_not_depend_on_the_pieces(pieces: list[str], strings: list[str]) -> None:
    stop, shown, whole = StopStrings(strings), "", ""
    expected, found = cut_off("".join(pieces), strings)
    for piece in pieces:
        shown += stop.feed(piece)
        whole += piece
        assert expected.startswith(shown)
        # What is held back is held back for a reason: it could begin a stop string, or a found one ends the text.
        held = whole[len(shown) :]
        assert stop.found or not held or any(string.startswith(held[: len(string)]) for string in strings)
    shown += stop.flush()
    assert (shown, stop.found) == (expected, found)
    assert stop.feed("more") + stop.flush() == ("" if found else "more")


def test_held_text_comes_as_soon_as_it_is_settled() -> None:
    stop = StopStrings(["STOP", "TOO"])
    fed = ["a S", "T", "O", "b", "TO", "S", "TOO", "P"]
    assert [stop.feed(piece) for piece in fed] == ["a ", "", "", "STOb", "", "TO", "S", ""]
    assert stop.found


def test_a_stop_string_within_another_waits_for_the_earlier_one() -> None:
    stop = StopStrings(["abcd", "bc"])
    assert (stop.feed("abc"), stop.found) == ("", False)
    assert (stop.feed("d"), stop.found) == ("", True)
    stop = StopStrings(["abcd", "bc"])
    assert stop.feed("abc") + stop.feed("x") == "a"
    assert stop.found
    stop = StopStrings(["abcd", "bc"])
    assert (stop.feed("abc"), stop.flush(), stop.found) == ("", "a", True)


@pytest.mark.parametrize("strings", ["a", ["a"], ("a",), {"a"}, frozenset("a")])
def test_stop_strings_come_in_any_collection(strings: Any) -> None:
    assert check_stop(strings) == ("a",)


# Streams


@given(st.text(ALPHABET, max_size=30), st.lists(st.text(ALPHABET, min_size=1, max_size=3), max_size=3))
def test_stream_is_the_text_in_whole_characters(tokenizer: Tokenizer, text: str, stop: list[str]) -> None:
    lm = speaker(tokenizer, text)
    options: Any = {"temperature": 0, "max_new_tokens": 200, "stop": stop}
    pieces = list(lm.stream([1], **options))
    expected, found = cut_off(text, stop)
    assert "".join(pieces) == expected
    assert all(pieces)
    assert not any("�" in piece for piece in pieces)
    whole = lm.generate([1], **options)
    assert (whole.text, whole.finish_reason) == (expected, "stop" if found else "eos")


@given(st.binary(max_size=24))
def test_bytes_that_are_no_text_become_replacement_characters(tokenizer: Tokenizer, raw: bytes) -> None:
    lm = speaker(tokenizer, raw)
    assert "".join(lm.stream([1], temperature=0)) == raw.decode(errors="replace")
    assert lm.generate([1], temperature=0).text == raw.decode(errors="replace")


def test_a_character_that_the_last_token_cuts_is_shown_as_cut(tokenizer: Tokenizer) -> None:
    lm = speaker(tokenizer, "a🦊")
    assert list(lm.stream([1], temperature=0, max_new_tokens=4)) == ["a", "�"]
    assert list(lm.stream([1], temperature=0, max_new_tokens=5)) == ["a", "🦊"]


def test_half_a_stop_string_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    lm = speaker(tokenizer, "go STO")
    assert "".join(lm.stream([1], temperature=0, stop="STOP")) == "go STO"
    assert lm.generate([1], temperature=0, stop="STOP", max_new_tokens=5).text == "go ST"


def test_a_stop_string_wins_over_the_length(tokenizer: Tokenizer) -> None:
    lm = speaker(tokenizer, "abc")
    assert lm.generate([1], temperature=0, stop="c", max_new_tokens=3).finish_reason == "stop"


def test_nothing_is_computed_after_the_stop(tokenizer: Tokenizer) -> None:
    lm = speaker(tokenizer, "abSTOPxyz")
    assert list(lm.stream([1], temperature=0, stop="STOP")) == ["a", "b"]
    assert len(lm.model.calls) == 6


def test_text_comes_while_the_model_works(tokenizer: Tokenizer) -> None:
    lm = speaker(tokenizer, "abc")
    stream = lm.stream([1], temperature=0)
    assert not lm.model.calls
    assert next(stream) == "a"
    assert len(lm.model.calls) == 1
    assert next(stream) == "b"
    assert len(lm.model.calls) == 2


def test_arguments_are_checked_at_the_call(demo: LanguageModel) -> None:
    with pytest.raises(InputError, match="top_p is 2"):
        demo.stream("Once", top_p=2)
    with pytest.raises(InputError, match="the prompt has 600 tokens"):
        demo.stream([1] * 600)


def test_stream_of_the_demo_is_its_text(demo: LanguageModel) -> None:
    for seed in range(3):
        text = demo.generate("Once upon a time", seed=seed, max_new_tokens=40, temperature=1.5).text
        assert "".join(demo.stream("Once upon a time", seed=seed, max_new_tokens=40, temperature=1.5)) == text
