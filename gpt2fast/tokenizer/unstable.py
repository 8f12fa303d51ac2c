"""Which tokens at the end of a text may still change when the text goes on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from gpt2fast._bpe import Bpe

__all__ = ["split_unstable"]

# A run of tokens of these characters at the end may be cut differently before other text.
_SPACES = b" \n\t"


def split_unstable(
    bpe: Bpe, parts: Iterable[tuple[bytes, int | None]], tokens: Sequence[bytes]
) -> tuple[list[int], list[list[int]]]:
    """The ids that stay whatever follows, and the sequences of ids that the rest of the text may turn into.

    `parts` are those of the text between special tokens, each with the id of the one that follows; `tokens` are the
    bytes of all ordinary tokens, sorted.  Each sequence decodes to something that begins with the rest; its last token
    may reach past it.  The results are those of tiktoken's `encode_with_unstable`, in sorted order.
    """
    ids: list[int] = []
    last_piece = 0  # how many of the ids are the last piece's
    for part, special in parts:
        ids += bpe.encode(part)
        pieces = bpe.split(part)
        last_piece = len(bpe.encode_piece(pieces[-1])) if pieces else 0
        if special is not None:
            ids.append(special)
            last_piece = 0

    def blank(i: int) -> bool:
        return all(byte in _SPACES for byte in bpe.token(ids[i]) or b"x")

    if last_piece > 0 and blank(len(ids) - last_piece):
        while last_piece < len(ids) and blank(len(ids) - last_piece - 1):
            last_piece += 1
    stable, rest = ids[: len(ids) - last_piece], bpe.decode(ids[len(ids) - last_piece :])
    return stable, [list(sequence) for sequence in sorted(_completions(bpe, rest, tokens))]


def _completions(bpe: Bpe, rest: bytes, tokens: Sequence[bytes]) -> set[tuple[int, ...]]:
    if not rest:
        return set()
    found: set[tuple[int, ...]] = {(bpe.id_of(token) or 0,) for token in _starting_with(rest, tokens)}
    # Any token may straddle the end of the rest, beginning at any place in it: put it there and tokenize again.
    for begin in range(1, len(rest)):
        for token in _starting_with(rest[begin:], tokens):
            text = rest[:begin] + token
            sequence: list[int] = []
            length = 0
            for id_ in bpe.encode(text) if _is_utf8(text) else bpe.encode_piece(text):
                sequence.append(id_)
                length += len(bpe.token(id_) or b"")
                if length >= len(rest):
                    break
            found.add(tuple(sequence))
    # White space at the end may become the first character of the next piece.
    last = _last_character(rest)
    if last is not None and last.isspace() and len(last.encode()) < len(rest):
        head = rest[: len(rest) - len(last.encode())]
        found.add((*bpe.encode_piece(head), *bpe.encode_piece(last.encode())))
    return found


def _starting_with(prefix: bytes, tokens: Sequence[bytes]) -> Iterator[bytes]:
    for i in range(bisect_left(tokens, prefix), len(tokens)):
        if not tokens[i].startswith(prefix):
            return
        yield tokens[i]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _last_character(text: bytes) -> str | None:
    for length in range(1, min(4, len(text)) + 1):
        if _is_utf8(text[-length:]):
            return text[-length:].decode()
    return None
