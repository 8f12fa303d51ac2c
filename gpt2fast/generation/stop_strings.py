"""Stop strings: where a text that comes in pieces ends, and how much of it may be shown before that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpt2fast.errors import InputError, InputTypeError

__all__ = ["StopStrings", "check_stop"]


def check_stop(stop: Any) -> tuple[str, ...]:
    """`stop`, a string, a sequence of strings or None, as a tuple.

    Raises InputTypeError where it is something else and InputError where a string is empty: it would stop at once.
    """
    strings = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if isinstance(strings, (bytes, dict)) or not isinstance(strings, (Sequence, set, frozenset)):
        raise InputTypeError(f"stop is {stop!r}; expected a string or a sequence of strings")
    for string in strings:
        if not isinstance(string, str):
            raise InputTypeError(f"stop holds {string!r}; expected strings")
        if not string:
            raise InputError("stop holds an empty string; an empty string would stop before the first token")
    return tuple(strings)


class StopStrings:
    """Text in, piece by piece; text out up to the first stop string, which is cut off with all that follows.

    What comes out does not depend on how the text was cut into pieces: of all matches in the text the one that begins
    first counts.  A piece that could be the beginning of a stop string is held back until that is settled.

    >>> stop = StopStrings(["STOP"])
    >>> [stop.feed(piece) for piece in ["go", " ST", "ART ST", "O", "P!"]], stop.found
    (['go', ' ', 'START ', '', ''], True)
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._longest = max(map(len, strings), default=0)
        self._held = ""
        #: Whether a stop string has been found; nothing comes out any more.
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is now certain to come before any stop string."""
        if not self._strings or self.found:
            return "" if self.found else text
        self._held += text
        match = self._first_match()
        end = len(self._held) if match is None else match
        # A stop string may have begun before the match and still be unfinished: then it is the one that counts.
        for start in range(max(0, len(self._held) - self._longest + 1), end):
            if any(string.startswith(self._held[start:]) for string in self._strings):
                return self._release(start)
        self.found = match is not None
        return self._release(end)

    def flush(self) -> str:
        """The text that was still held back, now that nothing more comes."""
        match = self._first_match()
        self.found = self.found or match is not None
        return self._release(len(self._held) if match is None else match)

    def _first_match(self) -> int | None:
        places = (self._held.find(string) for string in self._strings)
        return min((place for place in places if place >= 0), default=None)

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], "" if self.found else self._held[end:]
        return text
