"""Finding the special tokens in a text."""

from __future__ import annotations

import functools
import re
from typing import Any, NoReturn

from gpt2fast.errors import InputError

__all__ = ["find_special", "refuse_special", "special_pattern"]


@functools.lru_cache(maxsize=64)
def _any_pattern(names: frozenset[str], is_str: bool) -> re.Pattern[Any]:
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(pattern) if is_str else re.compile(pattern.encode())


def find_special(text: Any, names: frozenset[str]) -> str | None:
    """The first of `names` that `text`, str or bytes-like, contains; None where there is none."""
    if len(names) == 1:  # the usual case, many times as fast as a pattern
        (name,) = names
        if isinstance(text, str):
            return name if name in text else None
        if isinstance(text, bytes):
            return name if name.encode() in text else None
    match = _any_pattern(names, isinstance(text, str)).search(text)
    if match is None:
        return None
    found: str | bytes = match[0]
    return found if isinstance(found, str) else bytes(found).decode()


@functools.lru_cache(maxsize=64)
def special_pattern(tokens: frozenset[tuple[str, Any]], is_str: bool) -> re.Pattern[Any]:
    """A pattern for (text, SpecialToken) pairs, longest first; the group that matched is the token."""
    parts = []
    for name, token in sorted(tokens, key=lambda item: (-len(item[0]), item[0])):
        parts.append(r"\s*" * token.lstrip + f"({re.escape(name)})" + r"\s*" * token.rstrip)
    pattern = "|".join(parts)
    return re.compile(pattern) if is_str else re.compile(pattern.encode())


def refuse_special(token: str) -> NoReturn:
    """Raises the InputError that says what to do about a special token in a text."""
    raise InputError(
        f"the text contains the special token {token!r}, which is not allowed by default. To get its special id pass "
        f"allowed_special={{{token!r}}}; to have it encoded as ordinary text pass disallowed_special=()"
    )
