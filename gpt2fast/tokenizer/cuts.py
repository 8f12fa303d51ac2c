"""Where a piece without end can be cut: a run of spaces, or letters without a border, of hundreds of megabytes.

Between pieces a text can be cut anywhere, but a piece is merged as a whole.  Two facts about byte-pair encoding help,
as no merge ever crosses a border between two tokens of the result (`rust/src/merge` has more about them):

1. the first tokens of an encoding are the encoding of their own bytes;
2. a sequence of tokens is the encoding of its bytes if every two neighbours are that of theirs.

However a piece goes on, one of its tokens ends within the last L bytes that are known, where L is the length of the
longest token.  So by 1 a token stays, whatever follows, if it is in the encodings up to each of these L places.  By 2,
two encodings that share a token are the same from there on: so these need only begin a few kilobytes before, with a
token of the whole.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["cut_inside"]

#: Bytes that are encoded up to each place, besides the length of the longest token: far more than after how many two
#: encodings agree.
_WINDOW = 1 << 11
#: With longer tokens there is too much to encode, and nothing is cut.
_LONGEST = 1 << 10

Ints = npt.NDArray[np.int64]


def cut_inside(text: bytes | memoryview, tokenizer: Tokenizer) -> int:
    """A place near the end of the last piece of `text`, in which it can be cut without changing an id whatever follows;
    0 where none is found.

    The text left of it and the text right of it, encoded each on its own, are the text encoded as a whole.
    """
    added = tokenizer._special.texts
    if added is None:
        return 0
    begin = tokenizer.last_cut(text)
    piece = bytes(text[begin:])
    piece = piece[: _whole_characters(piece)]
    lengths = _token_lengths(tokenizer)
    longest = int(lengths.max(initial=1))
    if longest > _LONGEST or len(piece) < 2 * _WINDOW or not _is_one_piece(piece, tokenizer):
        return 0
    if any(token.encode() in piece for token in added):
        return 0
    ids = np.frombuffer(tokenizer._plain.encode_spans(piece, np.array([0, len(piece)]), True, 1)[0], np.uint32)
    last = lengths[ids[-_WINDOW - longest :]]  # enough, as none is shorter than a byte
    ends = len(piece) - last.sum() + np.cumsum(last)
    ends = ends[ends >= len(piece) - _WINDOW - longest]
    first = int(ends[0])
    window = piece[first:]

    def tokens(last: int) -> Ints:
        """Where the tokens of the window up to there begin and end, as one number each."""
        ends = np.cumsum(lengths[tokenizer._plain.encode_piece(window[:last])])
        both: Ints = ends << 32 | np.append(0, ends[:-1])
        return both

    common = (ends[1:] - first) << 32 | (ends[:-1] - first)
    for back in range(longest + 1):
        common = np.intersect1d(common, tokens(len(window) - back), assume_unique=True)
    # An added token may begin at the end of what is known.
    most = len(window) - max((len(token.encode()) for token in added), default=0)
    for cut in (common >> 32)[::-1].tolist():
        if cut <= most and _stays_split(window, cut):
            return int(begin) + first + int(cut)
    return 0


@lru_cache(4)
def _token_lengths(tokenizer: Tokenizer) -> Ints:
    return np.array([len(tokenizer._plain.token(i) or b"") for i in range(tokenizer.n_vocab)], np.int64)


def _whole_characters(text: bytes) -> int:
    """How many bytes of UTF-8 are whole characters."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if length > back else len(text)
    return len(text)


def _is_one_piece(piece: bytes, tokenizer: Tokenizer) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return len(tokenizer.split(piece)) == 1


def _stays_split(piece: bytes, cut: int) -> bool:
    """Whether what is behind the cut is split as before: it begins with a character, and not as a contraction does."""
    if cut + 1 >= len(piece) or piece[cut] & 0xC0 == 0x80:
        return False
    return piece[cut] != ord("'") or not chr(piece[cut + 1]).isalpha()
