"""Token ids on their way into the network: checked, cut into passes, and run, all of them or none.

A pass is one call of the network.  It takes tokens of several rows of a cache; a long text takes several passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.backend import Cache

__all__ = ["Segment", "checked_ids", "checked_segments", "run_passes"]

Ids = npt.NDArray[np.int32]
T = TypeVar("T")

# Tokens per pass: enough that products run at the speed of arithmetic, few enough that activations stay in the caches
# and memory does not grow with the prompt.
_PASS = 256


class Segment(NamedTuple):
    """What one row of a cache grows by."""

    row: int
    ids: Ids
    #: For how many of the ids, the last ones, results are wanted.
    wanted: int


def checked_ids(ids: npt.ArrayLike, vocab_size: int) -> Ids:
    """The ids as an int32 array of the same shape.

    Raises InputTypeError where they are not integers, and InputError where one is outside the vocabulary.
    """
    array = np.asarray(ids)
    if array.size == 0:
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise InputTypeError(f"ids are of type {array.dtype}; expected integers")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"id {low if low < 0 else high} is outside the vocabulary of {vocab_size} tokens (0 to {vocab_size - 1})"
        )
    return array.astype(np.int32, order="C")


def checked_segments(
    rows: Sequence[int], ids: Sequence[npt.ArrayLike], wanted: Sequence[int] | None, vocab_size: int
) -> list[Segment]:
    """The arguments of `GPT2.extend`, checked; without `wanted` the results after the last id of each row.

    Raises as `checked_ids` does, and InputError where the arguments are not for the same rows, a row is named twice, or
    more results are wanted than there are ids.
    """
    if len(rows) != len(ids):
        raise InputError(f"there are {len(rows)} rows, but ids for {len(ids)}")
    if len(set(rows)) != len(rows):
        raise InputError(f"rows names a row of the cache twice: {list(rows)}")
    checked = [checked_ids(row_ids, vocab_size) for row_ids in ids]
    for i, row_ids in enumerate(checked):
        if row_ids.ndim != 1 or not row_ids.size:
            raise InputError(f"ids[{i}] has shape {row_ids.shape}; expected one dimension with at least one id")
    counts = [1] * len(rows) if wanted is None else list(wanted)
    if len(counts) != len(rows):
        raise InputError(f"there are {len(rows)} rows, but numbers of wanted logits for {len(counts)}")
    for i, (row_ids, count) in enumerate(zip(checked, counts, strict=True)):
        if not 0 <= count <= len(row_ids):
            raise InputError(f"wanted[{i}] is {count}; expected 0 to {len(row_ids)}, the number of ids")
    return [Segment(*segment) for segment in zip(rows, checked, counts, strict=True)]


def run_passes(
    forward: Callable[..., Any],
    cache: Cache,
    segments: Sequence[Segment],
    finish: Callable[[Any], T],
    *,
    n_ctx: int,
) -> list[T]:
    """What `finish` makes of the results of each pass; `forward` is a network's, with its keywords.

    Raises InputError, before the first pass, where a row would go past the cache's capacity or `n_ctx`.  Where a pass
    fails, the cache holds afterwards what it held before.
    """
    lengths = cache.lengths
    limit = min(cache.capacity, n_ctx)
    for row, ids, _ in segments:
        held = int(lengths[row]) if 0 <= row < cache.batch else 0
        if held + len(ids) > limit:
            raise InputError(
                f"the text would be {held + len(ids)} tokens long"
                + (f", {held} of them in the cache" if held else "")
                + f"; the limit is {limit}"
            )
    finished = []
    try:
        for pieces in _cut(segments, _PASS):
            rows = np.array([row for row, _, _ in pieces], np.int64)
            counts = np.array([len(ids) for _, ids, _ in pieces], np.int64)
            ids = np.concatenate([ids for _, ids, _ in pieces])
            ends = np.cumsum(counts)
            wanted = [np.arange(end - last, end) for end, (_, _, last) in zip(ends, pieces, strict=True)]
            finished.append(finish(forward(cache, rows, counts, ids, np.concatenate(wanted))))
    except BaseException:
        # A call that fails changes nothing, also where passes before the one that failed have.
        for row, _, _ in segments:
            if 0 <= row < cache.batch:
                cache.truncate(row, int(lengths[row]))
        raise
    return finished


def _cut(segments: Sequence[Segment], size: int) -> Iterator[list[Segment]]:
    """The segments, in order, cut into passes of at most `size` tokens."""
    pieces: list[Segment] = []
    room = size
    for row, ids, wanted in segments:
        start = 0
        while start < len(ids):
            part = ids[start : start + room]
            start += len(part)
            room -= len(part)
            pieces.append(Segment(row, part, min(max(wanted - (len(ids) - start), 0), len(part))))
            if room == 0:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces
