"""Token ids on their way into the network: checked, cut into passes, and run, all of them or none.

A pass is one call of the network.  It takes tokens of several rows of a cache; a long text takes several passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import listed, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.backend import Cache

__all__ = ["PASS", "Segment", "arguments", "checked_ids", "checked_segments", "run_passes"]

Ids = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]
T = TypeVar("T")

# Tokens per pass: enough that products run at the speed of arithmetic, few enough that activations stay in the caches
# and memory does not grow with the prompt.
PASS = 256


class Segment(NamedTuple):
    """What one row of a cache grows by."""

    row: int
    ids: Ids
    #: After how many of the ids, the last ones, there are outputs.
    outputs: int


def checked_ids(ids: npt.ArrayLike, vocab_size: int) -> Ids:
    """The ids as an int32 array of the same shape.

    Raises InputTypeError where they are not integers, and InputError where one is outside the vocabulary.
    """
    try:
        array = np.asarray(ids)
    except (ValueError, OverflowError):  # rows of different lengths, as NumPy says, which has no such arrays
        raise InputError("ids are rows of different lengths; expected one row, or rows of the same length") from None
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
    """What the rows grow by, checked; without `wanted` with an output after the last id of each row.

    Raises as `checked_ids` does, and InputError where the arguments are not for the same rows, a row is named twice, or
    more outputs are wanted than there are ids.
    """
    rows, ids = _numbers("rows", rows), listed("ids", ids, "the ids of each row")
    if len(rows) != len(ids):
        raise InputError(f"there are {len(rows)} rows, but ids for {len(ids)}")
    if len(set(rows)) != len(rows):
        raise InputError(f"rows names a row of the cache twice: {list(rows)}")
    checked = [checked_ids(row_ids, vocab_size) for row_ids in ids]
    for i, row_ids in enumerate(checked):
        if row_ids.ndim != 1 or not row_ids.size:
            raise InputError(f"ids[{i}] has shape {row_ids.shape}; expected one dimension with at least one id")
    counts = [1] * len(rows) if wanted is None else _numbers("wanted", wanted)
    if len(counts) != len(rows):
        raise InputError(f"there are {len(rows)} rows, but numbers of wanted logits for {len(counts)}")
    for i, (row_ids, count) in enumerate(zip(checked, counts, strict=True)):
        if not 0 <= count <= len(row_ids):
            raise InputError(f"wanted[{i}] is {count}; expected 0 to {len(row_ids)}, the number of ids")
    return [Segment(*segment) for segment in zip(rows, checked, counts, strict=True)]


def _numbers(name: str, values: Any) -> list[int]:
    found = listed(name, values, "whole numbers")
    if all(type(number) is int and 0 <= number < 1 << 31 for number in found):
        return found
    return [whole_number(f"{name}[{i}]", number, most=(1 << 31) - 1) for i, number in enumerate(found)]


def arguments(segments: Sequence[Segment]) -> tuple[Integers, Integers, Ids, Integers]:
    """What a network's `forward` takes for the segments, after the cache: rows, counts, ids, and the indices of those
    that there are outputs after."""
    rows = np.array([segment.row for segment in segments], np.int64)
    counts = np.array([len(segment.ids) for segment in segments], np.int64)
    ids = np.concatenate([segment.ids for segment in segments])
    ends = np.cumsum(counts)
    outputs = [np.arange(end - segment.outputs, end) for end, segment in zip(ends, segments, strict=True)]
    return rows, counts, ids, np.concatenate(outputs)


def run_passes(
    run: Callable[[Integers, Integers, Ids, Integers], T],
    cache: Cache,
    segments: Sequence[Segment],
    *,
    n_ctx: int,
    size: int = PASS,
) -> list[T]:
    """What `run` makes of the `arguments` of each pass, of at most `size` tokens.

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
    try:
        return [run(*arguments(pieces)) for pieces in _cut(segments, size)]
    except BaseException:
        # A call that fails changes nothing, also where passes before the one that failed have.
        for row, _, _ in segments:
            if 0 <= row < cache.batch:
                cache.truncate(row, int(lengths[row]))
        raise


def _cut(segments: Sequence[Segment], size: int) -> Iterator[list[Segment]]:
    """The segments, in order, cut into passes of at most `size` tokens."""
    pieces: list[Segment] = []
    room = size
    for row, ids, outputs in segments:
        start = 0
        while start < len(ids):
            part = ids[start : start + room]
            start += len(part)
            room -= len(part)
            pieces.append(Segment(row, part, min(max(outputs - (len(ids) - start), 0), len(part))))
            if room == 0:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces
