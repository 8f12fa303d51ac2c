"""Special tokens: which of them a text may hold, and where they are in it."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NoReturn, TypeAlias

from gpt2fast.errors import InputError
from gpt2fast.tokenizer_arguments import Text
from gpt2fast.tokenizer_files import SpecialToken

__all__ = ["Allowed", "Disallowed", "SpecialTokens"]

Allowed: TypeAlias = Literal["all"] | AbstractSet[str]
Disallowed: TypeAlias = Literal["all"] | Collection[str]


class SpecialTokens:
    """The special tokens of a vocabulary, by their texts."""

    def __init__(self, tokens: Mapping[str, SpecialToken]) -> None:
        self._tokens = tokens
        #: The id of each.
        self.ids = {text: token.id for text, token in tokens.items()}
        #: The only one, where there is one: the quick check for it is `in`.
        self.only = next(iter(self.ids)) if len(self.ids) == 1 else None

    def allowed_in(self, text: Text, allowed: Allowed, disallowed: Disallowed) -> AbstractSet[str]:
        """Which of them are allowed, after refusing a text that contains a disallowed one.  Raises InputError."""
        names = self.ids.keys()
        allowed_names = frozenset(names if allowed == "all" else allowed)
        if disallowed == "all":
            disallowed = names - allowed_names
        if isinstance(disallowed, str):
            raise InputError(f"disallowed_special is {disallowed!r}; expected 'all' or a collection of special tokens")
        if disallowed:
            found = _find(text, frozenset(disallowed))
            if found is not None:
                _refuse(found)
        return allowed_names & names

    def parts(self, text: Text, allowed: AbstractSet[str]) -> Iterable[tuple[Text, int | None]]:
        """The text between those that are allowed, and the id of the one that follows, None after the last part."""
        if not allowed:
            yield text, None
            return
        is_str = isinstance(text, str)
        view = text if is_str else memoryview(text)
        start = 0
        for match in _pattern(frozenset((name, self._tokens[name]) for name in allowed), is_str).finditer(view):
            name = match[match.lastindex or 0]
            yield view[start : match.start()], self.ids[name if is_str else bytes(name).decode()]
            start = match.end()
        yield view[start:], None


@functools.lru_cache(maxsize=64)
def _any_pattern(names: frozenset[str], is_str: bool) -> re.Pattern[Any]:
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(pattern) if is_str else re.compile(pattern.encode())


def _find(text: Any, names: frozenset[str]) -> str | None:
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
def _pattern(tokens: frozenset[tuple[str, Any]], is_str: bool) -> re.Pattern[Any]:
    """A pattern for (text, SpecialToken) pairs, longest first; the group that matched is the token."""
    parts = []
    for name, token in sorted(tokens, key=lambda item: (-len(item[0]), item[0])):
        parts.append(r"\s*" * token.lstrip + f"({re.escape(name)})" + r"\s*" * token.rstrip)
    pattern = "|".join(parts)
    return re.compile(pattern) if is_str else re.compile(pattern.encode())


def _refuse(token: str) -> NoReturn:
    """Raises the InputError that says what to do about a special token in a text."""
    raise InputError(
        f"the text contains the special token {token!r}, which is not allowed by default. To get its special id pass "
        f"allowed_special={{{token!r}}}; to have it encoded as ordinary text pass disallowed_special=()"
    )
