"""Words and other spans of a text, and which tokens count to which of them.

Tokens and words are cut differently: GPT-2's tokens carry the space before a word, and a word may be several tokens.  A
token counts, whole, to the span that holds its first character that is not white space; one of white space alone goes
with the token that follows.  So a word's tokens are those that a reader's eye meets on the way to its end.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import listed, one_of, whole_number
from gpt2fast.errors import InputError, InputTypeError

__all__ = ["Punctuation", "Span", "regions", "tokens_of_spans", "words"]

Span = tuple[int, int]
Punctuation = Literal["attached", "separate"]


def words(text: str | bytes, punctuation: Punctuation = "attached") -> list[Span]:
    """From where to before where each word of `text` goes, in characters, of bytes in bytes.

    Words are what white space separates.  With "separate", punctuation and symbols at a word's beginning and end are
    items of their own; inside a word they stay: "don't", "3.5".  Raises InputError for another value.

    >>> [("(I don't.)")[slice(*span)] for span in words("(I don't.)", "separate")]
    ['(', 'I', "don't", '.)']
    """
    one_of("punctuation", punctuation, ("attached", "separate"))
    characters = _characters(text)
    whole = [match.span() for match in re.finditer(r"\S+", characters)]
    return whole if punctuation == "attached" else [part for span in whole for part in _parts(characters, *span)]


def regions(text: str, separator: str = "|") -> tuple[str, list[Span]]:
    """The text without its separators, and the spans of the regions between them, without white space at their ends.

    Where white space stands on both sides of a separator, that on its right goes with it, so "the | old man" is "the
    old man"; other white space stays.  An empty region is one of no characters, but a separator at the beginning or the
    end of the text does not make one.  Raises InputError for an empty separator, InputTypeError for
    what is no str.

    >>> regions("the |old man| slept")
    ('the old man slept', [(0, 3), (4, 11), (12, 17)])
    """
    for name, value in (("text", text), ("separator", separator)):
        if not isinstance(value, str):
            raise InputTypeError(f"{name} is of type {type(value).__name__}; expected str")
    if not separator:
        raise InputError("separator is empty; expected what stands between regions")
    whole, spans = "", []
    parts = text.split(separator)
    for i, part in enumerate(parts):
        if i in (0, len(parts) - 1) and not part.strip():
            continue
        if not whole or whole[-1].isspace():
            part = part.lstrip() if i else part
        inside = part.strip()
        start = len(whole) + len(part) - len(part.lstrip()) if inside else len(whole)
        spans.append((start, start + len(inside)))
        whole += part
    return whole, spans


def _parts(text: str, start: int, end: int) -> Iterator[Span]:
    first, last = start, end
    while first < last and _is_punctuation(text[first]):
        first += 1
    while last > first and _is_punctuation(text[last - 1]):
        last -= 1
    for span in ((start, first), (first, last), (last, end)):
        if span[0] < span[1]:
            yield span


def _characters(text: str | bytes) -> str:
    # Of bytes one character each, so that there is one way for both.
    return text if isinstance(text, str) else text.decode("ascii", "replace")


def _is_punctuation(character: str) -> bool:
    # Bytes over 127 are letters of some kind or other.
    return character != "\N{REPLACEMENT CHARACTER}" and unicodedata.category(character)[0] in "PS"


def tokens_of_spans(
    text: str | bytes, token_spans: npt.NDArray[np.int64], spans: Sequence[Span]
) -> list[tuple[int, int, bool]]:
    """For each of `spans` the tokens that count to it, from one to before another, and whether they cover it exactly:
    not so where a token has characters, other than white space, on both sides of the span's border.

    `token_spans` (T, 2) are in order, as `Score.spans` are.  Raises InputTypeError where a span is no pair of whole
    numbers, InputError where it is not in the text.

    >>> tokens_of_spans("the cats", np.array([[0, 3], [3, 7], [7, 8]]), [(4, 8), (4, 7), (0, 2)])
    [(1, 3, True), (1, 2, True), (0, 1, False)]
    """
    checked = [
        _checked(span, i, len(text)) for i, span in enumerate(listed("spans", spans, "pairs of a start and an end"))
    ]
    firsts, lasts = _printed(text, token_spans)
    # Growing numbers both, so the tokens of a span are neighbours.
    found = np.searchsorted(firsts, np.array(checked, np.int64).reshape(-1, 2))
    result = []
    for (first, last), (start, end) in zip(found.tolist(), checked, strict=True):
        crossed = (first > 0 and lasts[first - 1] > start) or (last > first and lasts[last - 1] > end)
        result.append((first, last, not crossed))
    return result


def _printed(text: str | bytes, token_spans: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """For each token where its first character begins that is not white space, and where its last one ends."""
    characters = _characters(text)
    firsts = np.empty(len(token_spans), np.int64)
    lasts = [0] * len(token_spans)
    following = -1
    for i, (start, end) in reversed(list(enumerate(token_spans.tolist()))):
        part = characters[start:end]
        inside = part.strip()
        if inside:
            following = start + len(part) - len(part.lstrip())
            lasts[i] = following + len(inside)
        elif following < 0:  # white space that ends the text
            following = start
        firsts[i] = following
    return firsts, lasts


def _checked(span: Any, place: int, length: int) -> Span:
    if isinstance(span, (str, bytes)) or not isinstance(span, (Sequence, np.ndarray)) or len(span) != 2:
        raise InputTypeError(f"spans[{place}] is {span!r}; expected a start and an end")
    start, end = (whole_number(f"a number of spans[{place}]", number) for number in span)
    if not start <= end <= length:
        raise InputError(f"spans[{place}] goes from {start} to {end}; the text has {length} places")
    return start, end
