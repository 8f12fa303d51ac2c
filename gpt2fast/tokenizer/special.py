"""Special tokens: which of them a text may hold, and where they are in it."""

from __future__ import annotations

from gpt2fast.errors import InputError

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any, Literal, NoReturn, TypeAlias

    from gpt2fast.tokenizer.inputs import Text

    Allowed: TypeAlias = Literal["all"] | AbstractSet[str]
    Disallowed: TypeAlias = Literal["all"] | Collection[str]

__all__ = ["END_OF_TEXT", "SpecialToken", "SpecialTokens"]

END_OF_TEXT = "<|endoftext|>"


class SpecialToken:
    """A token that stands for itself wherever its text is allowed to count."""

    def __init__(self, id: int, lstrip: bool = False, rstrip: bool = False) -> None:
        self.id = id
        #: White space to the left, to the right, belongs to the token (RoBERTa's `<mask>`).
        self.lstrip, self.rstrip = lstrip, rstrip


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
        from gpt2fast.tokenizer.special_patterns import with_spaces

        is_str = isinstance(text, str)
        tokens = frozenset((name, self._tokens[name].lstrip, self._tokens[name].rstrip) for name in allowed)
        view = text if is_str else memoryview(text)
        start = 0
        for match in with_spaces(tokens, is_str).finditer(view):
            name = match[match.lastindex or 0]
            yield view[start : match.start()], self.ids[name if is_str else bytes(name).decode()]
            start = match.end()
        yield view[start:], None


def _find(text: Any, names: frozenset[str]) -> str | None:
    """The first of `names` that `text`, str or bytes-like, contains; None where there is none."""
    if len(names) == 1:  # the usual case, many times as fast as a pattern
        (name,) = names
        if isinstance(text, str):
            return name if name in text else None
        if isinstance(text, bytes):
            return name if name.encode() in text else None
    from gpt2fast.tokenizer.special_patterns import any_of

    match = any_of(names, isinstance(text, str)).search(text)
    if match is None:
        return None
    found: str | bytes = match[0]
    return found if isinstance(found, str) else bytes(found).decode()


def _refuse(token: str) -> NoReturn:
    """Raises the InputError that says what to do about a special token in a text."""
    raise InputError(
        f"the text contains the special token {token!r}, which is not allowed by default. To get its special id pass "
        f"allowed_special={{{token!r}}}; to have it encoded as ordinary text pass disallowed_special=()"
    )
