"""What may be scored: a text, or its token ids."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputTypeError
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Scorable", "as_scorable", "text_of_ids"]

#: A text, as str or bytes, or a sequence of token ids.
Scorable = str | bytes | Sequence[int] | npt.NDArray[np.integer[Any]]


def as_scorable(value: Any, name: str) -> str | bytes | list[int]:
    """A text as it is, ids as a list.  Raises InputTypeError, naming the argument, where it is neither."""
    if isinstance(value, (str, bytes)):
        return value
    if not isinstance(value, (Sequence, np.ndarray)):
        raise InputTypeError(f"{name} is of type {type(value).__name__}; expected str, bytes or token ids")
    return [whole_number(f"an id of {name}", id) for id in value]


def text_of_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str | bytes, list[tuple[int, int]]]:
    """The text of ids, and for each the span of its characters: str where they are UTF-8 together, else bytes and spans
    of bytes.  A character that several tokens share is in the span of each.

    Raises UnknownTokenError for an id that is no token's.

    >>> from gpt2fast.tokenizer.encoding import get_encoding
    >>> text_of_ids(get_encoding("gpt2"), [64, 12520, 247, 224])
    ('a 🙂', [(0, 1), (1, 3), (2, 3), (2, 3)])
    """
    parts = tokenizer.decode_tokens_bytes(ids)
    ends = list(accumulate(map(len, parts), initial=0))
    whole = b"".join(parts)
    spans = list(pairwise(ends))
    try:
        text = codecs.decode(whole, "utf-8")
    except UnicodeDecodeError:
        return whole, spans
    # Which character each byte belongs to.
    of = np.cumsum([byte & 0xC0 != 0x80 for byte in whole]) - 1
    return text, [(int(of[start]), int(of[end - 1]) + 1) for start, end in spans]
