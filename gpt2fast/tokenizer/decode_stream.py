"""Ids to text as they come: a character is shown when all its bytes are there."""

from __future__ import annotations

import codecs

from gpt2fast.tokenizer.inputs import no_errors

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from typing import Protocol

    class TokenBytes(Protocol):
        """A tokenizer, as far as a stream knows it."""

        def decode_single_token_bytes(self, token: int) -> bytes:
            """The bytes of one token."""
            ...


__all__ = ["DecodeStream"]


class DecodeStream:
    """Ids in, one by one; text out as soon as whole characters exist.

    Raises InputError where there is no error handler of the name `errors`.

    >>> import gpt2fast
    >>> stream = gpt2fast.get_encoding("gpt2").decode_stream()
    >>> [stream.feed(token) for token in [12520, 98, 232, 0]] + [stream.flush()]
    [' ', '', '🥊', '!', '']
    """

    def __init__(self, tokenizer: TokenBytes, errors: str = "replace") -> None:
        self._tokenizer = tokenizer
        try:
            codecs.lookup_error(errors)
        except (LookupError, TypeError, ValueError):
            raise no_errors(errors) from None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def feed(self, token: int) -> str:
        """The characters that are complete with this token, often "".  Raises UnknownTokenError."""
        return self._decoder.decode(self._tokenizer.decode_single_token_bytes(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character.  The stream can then be used anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
