"""The slots of a scheduler: rows of the cache, who is in them, and which one to begin a sequence from.

A slot keeps its ids after its sequence has left.  A sequence that begins like one that a slot holds, be it another
sample, a request with the same preamble or a text that was scored, starts from a copy of that row: the cache shares the
memory (as in vLLM's PagedAttention, Kwon et al. 2023, arXiv:2309.06180), and the model's promise that results are the
same bit for bit however a text was cut makes it exact.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from gpt2fast.model.backend import Cache
from gpt2fast.model.hooks.steering import Steering
from gpt2fast.scheduler.sequence import Sequence

__all__ = ["Slot", "Slots"]

# A common beginning shorter than this is quicker computed anew than looked for and copied …
_COPIED = 4
# … and one shorter than this than waited for, until the slot that reads it has done so.
_AWAITED = 16


@dataclass(eq=False)
class Slot:
    """A row of the cache, which holds `length` of `ids`, from number `dropped` on."""

    row: int
    ids: list[int] = field(default_factory=list)
    dropped: int = 0
    length: int = 0
    sequence: Sequence | None = None
    #: What was added to the activations of what it holds.
    steer: tuple[Steering, ...] = ()

    @property
    def end(self) -> int:
        """The place of the first id that it does not hold yet."""
        return self.dropped + self.length


class Slots:
    """The slots, as many as `cache` has rows.  Those that no sequence is in keep `kept` tokens together at most."""

    def __init__(self, cache: Cache, kept: int) -> None:
        self._cache = cache
        self._kept = kept
        self._all = [Slot(row) for row in range(cache.batch)]
        self._free = list(self._all)  # first the one whose contents have been of no use for longest

    @property
    def free(self) -> int:
        """How many slots no sequence is in."""
        return len(self._free)

    def enter(self, sequence: Sequence) -> Slot | None:
        """A free slot for the sequence, which holds what another one had of its beginning; None where it is better to
        wait, as another one is reading that now."""
        # The id of the first output is always read again.
        wanted = sequence.ids[sequence.dropped : sequence.next_output]
        source, shared = self._source(wanted, sequence.steer) if len(wanted) >= _COPIED else (None, 0)
        if shared < 0:
            return None
        slot = next((slot for slot in self._free if slot is not source), source)
        if slot is None:
            raise RuntimeError("there is no free slot")
        if source is not None and source is not slot:
            self._cache.copy_row(source.row, slot.row)
            slot.length = source.length
            if source.sequence is None:  # just been of use
                self._free.remove(source)
                self._free.append(source)
        self._free.remove(slot)
        self.truncate(slot, shared)
        slot.ids, slot.dropped, slot.sequence = sequence.ids, sequence.dropped, sequence
        slot.steer = sequence.steer
        return slot

    def leave(self, slot: Slot) -> None:
        """The slot's sequence leaves; its ids stay until the slot is needed."""
        slot.sequence = None
        self._free.append(slot)
        held = sum(slot.length for slot in self._free)
        for old in self._free:
            if held <= self._kept:
                break
            held -= old.length
            self.truncate(old, 0)

    def truncate(self, slot: Slot, length: int) -> None:
        """Forget all but the first `length` tokens that the slot holds."""
        if length < slot.length:
            self._cache.truncate(slot.row, length)
            slot.length = length

    def follow(self, slot: Slot) -> None:
        """Forget what the slot's sequence has dropped: what is left has other positions now and is read again."""
        if slot.sequence is not None and slot.dropped != slot.sequence.dropped:
            self.truncate(slot, 0)
            slot.dropped = slot.sequence.dropped

    def reorder(self, slots: List[Slot], parents: List[int]) -> list[Slot]:
        """For each of `parents` one of `slots` that holds what slot number `parent` does, and then the slots that are
        left, empty."""
        left = [slot for i, slot in enumerate(slots) if i not in parents]
        found: list[Slot] = []
        for parent in parents:
            slot = slots[parent]
            if slot in found:
                slot = left.pop()
                self._cache.copy_row(slots[parent].row, slot.row)
                slot.length = slots[parent].length
            found.append(slot)
        for slot in left:
            self.truncate(slot, 0)
        return found + left

    def _source(self, wanted: list[int], steer: tuple[Steering, ...]) -> tuple[Slot | None, int]:
        """The slot that holds most of the beginning of `wanted`, steered so, and how much; -1 where it pays to wait for
        more."""
        beginning = wanted[:_COPIED]
        source, shared, coming = None, 0, 0
        for slot in self._all:
            if slot.steer == steer and slot.ids[slot.dropped : slot.dropped + _COPIED] == beginning:
                common = _common(wanted, slot.ids[slot.dropped : slot.dropped + len(wanted)])
                if slot.sequence is not None:
                    coming = max(coming, common)
                if min(common, slot.length) > shared:
                    source, shared = slot, min(common, slot.length)
                    if shared == len(wanted):
                        break
        if coming >= shared + _AWAITED:
            return None, -1
        return (source, shared) if shared >= _COPIED else (None, 0)


def _common(first: list[int], second: list[int]) -> int:
    """How many ids two lists have in common, from their beginning."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next(i for i in range(count) if first[i] != second[i])
