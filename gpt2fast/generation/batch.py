"""The batch: texts that join, grow by a token a step, and leave, each in a row of one cache.

Nothing is padded and nobody waits for the longest: a row that has finished goes to the next text at once.  A prompt is
read in parts, between which the other texts go on.  A text whose prompt begins like one that a row holds, be it
another sample, a request with the same preamble, or one that has ended, starts from a copy of that row; the cache
shares the memory, and the network's promise that logits are the same bit for bit however a text was cut makes it exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import NonFiniteError
from gpt2fast.generation.sequence import Continuation, Step
from gpt2fast.model.draw import Draw
from gpt2fast.model.nonfinite import located

__all__ = ["Batch", "Drafter"]

# New tokens a step, over all rows: what one pass of the network takes.  A step of it is the longest wait for a token.
_STEP = 256
# A common beginning shorter than this is quicker computed anew, beside the other rows, than waited for and copied.
_SHARED = 16
# Proposals for a text at most: with its last token they fill the twelve rows that cost hardly more than one.
_PROPOSALS = 11

Floats = npt.NDArray[np.floating[Any]]


class Cache(Protocol):
    """The cache of keys and values, as far as a batch knows it."""

    capacity: int

    @property
    def lengths(self) -> npt.NDArray[np.integer[Any]]: ...
    def truncate(self, row: int, length: int) -> None: ...
    def copy_row(self, source: int, target: int) -> None: ...


class Drafter(Protocol):
    """Who proposes tokens that the network then checks many at a time."""

    def propose(self, texts: Sequence[tuple[int, int, Continuation]], most: Sequence[int]) -> list[list[int]]:
        """For each text, which comes with its row and with how many of its ids the row has dropped: at most `most`
        ids that could follow."""
        ...


@dataclass
class _Row:
    """A row of the cache: it holds the ids of a text, from `dropped` on, even after the text's end."""

    text: Continuation | None = None
    dropped: int = 0
    #: How many tokens are proposed: one more after a proposal that was right throughout, else one more than were right.
    ambition: int = 4


@dataclass
class _Work:
    """What one row does in a step: the ids it is fed, the last ones of them proposals, and for how many last ones the
    logits are wanted."""

    row: int
    ids: list[int]
    drafted: list[int]
    wanted: int


class Batch:
    """Up to `size` texts at once over one cache, and a queue of those that wait for a row.

    `capacity` is the length that no text will outgrow (default: the model's context).  A text ends by itself or is
    taken out by `remove`; it goes on the same whatever the batch around it.
    """

    def __init__(self, model: Any, size: int, capacity: int | None = None, drafter: Drafter | None = None) -> None:
        self._model = model
        self._n_ctx: int = model.config.n_ctx
        self._cache: Cache = model.new_cache(size, capacity)
        self._limit = min(self._cache.capacity, self._n_ctx)
        self._drafter = drafter
        self._rows = [_Row() for _ in range(size)]
        self._running: list[int] = []  # rows, in the order in which their texts came
        self._free = list(range(size))  # rows, first the one whose contents have been of no use for longest
        self._waiting: deque[Continuation] = deque()

    def add(self, text: Continuation) -> None:
        """Put a text into the queue."""
        self._waiting.append(text)

    def remove(self, text: Continuation) -> None:
        """Take a text out, running or waiting; nothing happens where it is neither."""
        if text in self._waiting:
            self._waiting.remove(text)
        for row in self._running:
            if self._rows[row].text is text:
                self._running.remove(row)
                self._free.append(row)
                break

    @property
    def running(self) -> int:
        """How many texts have a row."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many texts wait for one."""
        return len(self._waiting)

    def step(self) -> list[tuple[Continuation, Step | None]]:
        """Run the network once and return the new tokens, none where all rows are still reading prompts.

        None stands beside a text that leaves because it cannot go on, as its `error` says; the others do not suffer
        from it.  Raises what the network raises; no text has changed then.
        """
        self._admit()
        work = self._plan()
        if not work:
            return []
        # What comes after each text: logits, or what the device has chosen from them.
        after = self._model.choose(
            self._cache,
            [item.row for item in work],
            [np.array(item.ids, np.int32) for item in work],
            [item.wanted for item in work],
            self._draws(work),
        )
        steps: list[tuple[Continuation, Step | None]] = []
        for item in work:
            steps += self._advance(item, after[: item.wanted])
            after = after[item.wanted :]
        return steps

    # Who gets a row

    def _admit(self) -> None:
        while self._waiting and self._free:
            text = self._waiting[0]
            dropped = max(text.start - self._n_ctx, 0)
            # The last id is always read again, for its logits.
            wanted = text.ids[dropped : text.start - 1]
            lengths = self._cache.lengths
            held = [_common(wanted, self._contents(row)[: int(lengths[row])]) for row in range(len(self._rows))]
            donor = max(range(len(held)), key=held.__getitem__)
            if any(_common(wanted, self._contents(row)) >= held[donor] + _SHARED for row in self._running):
                return  # soon there will be more to copy
            self._waiting.popleft()
            shared = held[donor] if held[donor] >= _SHARED else 0
            row = next((row for row in self._free if row != donor), donor) if shared else self._free[0]
            if shared and row != donor:
                self._cache.copy_row(donor, row)
                if donor in self._free:  # just been of use
                    self._free.remove(donor)
                    self._free.append(donor)
            self._cache.truncate(row, shared)
            self._rows[row] = _Row(text, dropped)
            self._free.remove(row)
            self._running.append(row)

    def _contents(self, row: int) -> list[int]:
        """The ids that the row holds or will have read."""
        tenant = self._rows[row]
        return tenant.text.ids[tenant.dropped :] if tenant.text else []

    # What each row does in a step

    def _plan(self) -> list[_Work]:
        lengths = self._cache.lengths
        growing, reading, texts, most = [], [], [], []
        for row in self._running:
            tenant = self._rows[row]
            text = tenant.text
            if text is None:
                continue
            length = int(lengths[row])
            if length == self._n_ctx:  # only texts that slide come here: the older half of the context is forgotten
                self._cache.truncate(row, 0)
                tenant.dropped, length = len(text.ids) - max(self._n_ctx // 2, 1), 0
            ids = text.ids[tenant.dropped + length :]
            if len(ids) > 1:
                reading.append(_Work(row, ids, [], 1))
            else:
                growing.append(_Work(row, ids, [], 1))
                texts.append((row, tenant.dropped, text))
                most.append(max(min(tenant.ambition, self._limit - length - 1, text.room - 1), 0))
        if self._drafter and texts:
            for item, drafted in zip(growing, self._drafter.propose(texts, most), strict=True):
                item.ids, item.drafted, item.wanted = item.ids + drafted, drafted, len(drafted) + 1
        room = _STEP - sum(len(item.ids) for item in growing)
        for item in reading:
            if len(item.ids) > room:
                item.ids, item.wanted = item.ids[: max(room, 0)], 0
            room -= len(item.ids)
        return sorted(growing + [item for item in reading if item.ids], key=lambda item: item.row)

    def _draws(self, work: Sequence[_Work]) -> list[Draw | None]:
        """The draws of all choices of a step."""
        draws: list[Draw | None] = []
        for item in work:
            text = self._rows[item.row].text
            if text is not None:
                draws += text.draws(len(text.ids), item.wanted)
        return draws

    def _advance(self, item: _Work, after: Sequence[Floats | int]) -> list[tuple[Continuation, Step | None]]:
        """The tokens that a row's text gets from what comes after its ids: one, and one for each proposal that was
        right."""
        tenant = self._rows[item.row]
        text = tenant.text
        if text is None or not item.wanted:
            return []
        steps: list[tuple[Continuation, Step | None]] = []
        right = 0
        for this, proposal in zip(after, [*item.drafted, None], strict=True):
            step = text.advance(this)
            if isinstance(text.error, NonFiniteError):
                text.error = located(text.error, self._model, text.ids[tenant.dropped :], tenant.dropped)
            steps.append((text, step))
            if step is None or step.id != proposal:
                break
            right += 1
            if text.finished:
                break
        if item.drafted:
            text.drafted += len(item.drafted)
            text.accepted += right
            most = tenant.ambition if right == len(item.drafted) else right
            tenant.ambition = min(most + 1, _PROPOSALS)
            # Proposals that were wrong, or came after the end, leave the cache.
            self._cache.truncate(item.row, len(text.ids) - 1 - tenant.dropped)
        if text.finished:
            self._running.remove(item.row)
            self._free.append(item.row)
        return steps


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common, from their beginning."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next(i for i in range(count) if first[i] != second[i])
