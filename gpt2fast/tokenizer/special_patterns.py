"""Patterns that find several special tokens in a text, or one that takes the white space beside it."""

from __future__ import annotations

import functools
import re
from typing import Any

__all__ = ["any_of", "with_spaces"]


@functools.lru_cache(maxsize=64)
def any_of(names: frozenset[str], is_str: bool) -> re.Pattern[Any]:
    """A pattern for any of the texts, for str or for bytes; the longest where several begin at the same place."""
    return _compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)), is_str)


@functools.lru_cache(maxsize=64)
def with_spaces(tokens: frozenset[tuple[str, bool, bool]], is_str: bool) -> re.Pattern[Any]:
    """The same for texts with the white space to the left and to the right that belongs to them; the group is the text.

    >>> with_spaces(frozenset([("<mask>", True, False)]), True).sub("_", "a  <mask> b")
    'a_ b'
    """
    parts = []
    for name, left, right in sorted(tokens, key=lambda token: (-len(token[0]), token[0])):
        parts.append(r"\s*" * left + f"({re.escape(name)})" + r"\s*" * right)
    return _compile("|".join(parts), is_str)


def _compile(pattern: str, is_str: bool) -> re.Pattern[Any]:
    return re.compile(pattern) if is_str else re.compile(pattern.encode())
