"""Added tokens: which of them are special, and which special ones a text may hold."""

from __future__ import annotations

from gpt2fast.errors import InputError, InputTypeError

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any, Literal, NoReturn, TypeAlias

    from gpt2fast._bpe import Bpe
    from gpt2fast.tokenizer.inputs import Text

    Allowed: TypeAlias = Literal["all"] | AbstractSet[str]
    Disallowed: TypeAlias = Literal["all"] | Collection[str]

__all__ = ["END_OF_TEXT", "AddedToken", "SpecialTokens", "allowed_by"]

END_OF_TEXT = "<|endoftext|>"

#: Encoders for so many sets of allowed special tokens are kept.
_MOST_ENCODERS = 64


class AddedToken:
    """A text that is one token wherever it stands; the names are those of tokenizer.json.

    A token that is not special is found in any text, a special one where it is allowed.
    """

    # Here, too, for pickles of versions that knew fewer of them.
    special = True
    single_word = normalized = False

    def __init__(
        self,
        id: int,
        lstrip: bool = False,
        rstrip: bool = False,
        *,
        special: bool = True,
        single_word: bool = False,
        normalized: bool = False,
    ) -> None:
        self.id = id
        #: White space to the left, to the right, belongs to the token (RoBERTa's `<mask>`).
        self.lstrip, self.rstrip = lstrip, rstrip
        #: Whether it steers a model: text from outside must not hold it unnoticed.
        self.special = special
        #: Whether it counts only where no letter, digit or `_` stands beside it.
        self.single_word = single_word
        #: Whether it is looked for in what is left between those that are not.
        self.normalized = normalized


#: What it was called when all added tokens were special: older pickles look for it.
SpecialToken = AddedToken


class SpecialTokens:
    """The special tokens among added ones, by their texts, and the encoders that find them.

    `bpe` is the encoder that finds none.  A special token that ordinary text is encoded to anyway, as a byte that was
    made the padding, is found in any text, as those that are not special: to refuse it would protect from nothing.
    """

    def __init__(self, bpe: Bpe, tokens: Mapping[str, AddedToken], add_prefix_space: bool) -> None:
        self._plain = bpe
        self._tokens = tokens
        self._add_prefix_space = add_prefix_space
        self._encoders: dict[frozenset[str], Bpe] = {}
        ordinary = {text for text, token in tokens.items() if not bpe.is_added(token.id)}
        #: The id of each.
        self.ids = {text: token.id for text, token in tokens.items() if token.special}
        #: Those that are found only where they are allowed.
        self.guarded = frozenset(self.ids.keys() - ordinary)
        #: The only one, where there is one: the quick check for it is `in`.
        self.only = next(iter(self.guarded)) if len(self.guarded) == 1 else None

    @property
    def texts(self) -> list[str] | None:
        """The texts of all added tokens, where these alone tell what becomes of a text; None where white space or words
        beside them do, too, or where a space is put before it."""
        beside = any(token.lstrip or token.rstrip or token.single_word for token in self._tokens.values())
        return None if beside or self._add_prefix_space else list(self._tokens)

    def allowed_in(self, texts: Iterable[Text], allowed: Allowed, disallowed: Disallowed) -> frozenset[str]:
        """Which of them are allowed, after refusing texts that contain a disallowed one.  Raises InputError."""
        allowed_names = self.guarded if _is_all(allowed) else _names(allowed, "allowed_special")
        if _is_all(disallowed):
            disallowed_names = self.guarded - allowed_names
        else:
            disallowed_names = _names(disallowed, "disallowed_special")
        if disallowed_names:
            for text in texts:
                found = _find(text, disallowed_names)
                if found is not None:
                    _refuse(found)
        return allowed_names & self.guarded

    def encoder(self, allowed: frozenset[str]) -> Bpe:
        """The encoder that finds the special tokens that are `allowed`, and what is found in any text."""
        found = self._encoders.get(allowed)
        if found is None:
            tokens = [
                (text, token.id, token.lstrip, token.rstrip, token.single_word, token.normalized)
                for text, token in self._tokens.items()
                if text in allowed or text not in self.guarded
            ]
            prefix_space = self._add_prefix_space
            found = self._plain.finding(tokens, prefix_space) if tokens or prefix_space else self._plain
            if len(self._encoders) == _MOST_ENCODERS:
                self._encoders.clear()
            self._encoders[allowed] = found
        return found


def allowed_by(allow_special: bool) -> Allowed:
    """What `allowed_special` is for a switch that allows all or none.  Raises InputTypeError for what is no switch."""
    if not isinstance(allow_special, bool):
        raise InputTypeError(f"allow_special is {allow_special!r:.60}; expected True or False")
    return "all" if allow_special else frozenset()


def _is_all(names: Any) -> bool:
    return isinstance(names, str) and names == "all"


def _names(names: Any, argument: str) -> frozenset[str]:
    if isinstance(names, str):
        raise InputError(f"{argument} is {names!r}; expected 'all' or a collection of special tokens")
    try:
        found = frozenset(names)
    except (TypeError, ValueError):  # a number, a set in a list; a closed file
        found = frozenset([0])
    if not all(isinstance(name, str) and name for name in found):
        raise InputTypeError(f"{argument} is {names!r:.60}; expected 'all' or a collection of special tokens")
    return found


def _find(text: Any, names: frozenset[str]) -> str | None:
    """The first of `names` that `text`, str or bytes-like, contains; None where there is none."""
    if len(names) == 1:  # the usual case, many times as fast as a pattern
        (name,) = names
        if isinstance(text, str):
            return name if name in text else None
        if isinstance(text, bytes):
            return name if name.encode() in text else None
    import re

    # The longest where several begin at the same place.
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    match = re.search(pattern, text) if isinstance(text, str) else re.search(pattern.encode(), text)
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
