"""The scheduler: sequences of every kind join, are read together, a pass of the model a step, and leave.

Texts that are generated, beams, drafts, texts that are scored or embedded: to the scheduler they are sequences, which
state their ids and what they need of the outputs.  Nothing is padded and nobody waits for the longest: a slot that
becomes free goes to the next sequence at once.

What a step reads, in tokens (chunked prefill, Agrawal et al. 2023, arXiv:2308.16369):
- every sequence that needs one token more, which are texts that grow, gets it, with the ids that are proposed to it;
- prompts get what is left of 256, first come, first served, so a step of 256 is the longest wait for a token;
- background work, which nobody follows token by token, gets as many tokens as all of these together, or fills the step
  up to 32, since 16 rows take the model hardly longer than one; where there is nothing else it gets 256.  A background
  sequence goes behind the others after every 256 of its tokens, so a long one does not hold up the short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gpt2fast.errors import InputError, NonFiniteError
from gpt2fast.model.backend import Outputs
from gpt2fast.model.hooks.steering import row_hooks
from gpt2fast.model.nonfinite import located, not_finite
from gpt2fast.model.outputs import ROWS
from gpt2fast.scheduler.sequence import Choices, Logits, Measures, Model, Need, Sequence, States
from gpt2fast.scheduler.slots import Slot, Slots

__all__ = ["Drafter", "Scheduler"]

#: Tokens of a step.
_STEP = 256
#: Tokens that a pass takes hardly longer for than for one.
_CHEAP = 16

S = TypeVar("S", bound=Sequence)
S_contra = TypeVar("S_contra", bound=Sequence, contravariant=True)


class Drafter(Protocol[S_contra]):
    """Who proposes ids that the model then checks many at a time."""

    def propose(self, sequences: List[S_contra], most: List[int]) -> list[list[int]]:
        """For each sequence, all of whose ids but the last have been read: at most `most` ids that could follow."""
        ...

    def forget(self, sequence: S_contra) -> None:
        """The sequence has left."""
        ...


@dataclass
class _Part:
    """What a step reads of one sequence: `ids`, the first of which is at place `start`, and behind them its drafts."""

    slot: Slot
    sequence: Sequence
    start: int
    ids: list[int]
    outputs: int = 0
    need: Need | None = None

    def ask(self) -> None:
        """Settle what is needed of the outputs."""
        stop = self.start + len(self.ids)
        first = max(self.start, self.sequence.next_output)
        self.outputs = max(stop - first, 0)
        self.need = self.sequence.need(first, stop) if self.outputs else None


class Scheduler(Generic[S]):
    """Sequences over one cache: up to `slots` at once, up to `background` more of the background's, and two queues of
    those that wait.

    `n_vocab` logits are tokens; `capacity` is a length that no sequence outgrows (default: the model's context).  A
    sequence leaves when it has finished or is taken out by `remove`, and gets the same whatever is around it.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_vocab: int,
        slots: int = 0,
        background: int = 0,
        capacity: int | None = None,
        drafter: Drafter[S] | None = None,
    ) -> None:
        self._model = model
        self._n_vocab = n_vocab
        self._n_ctx = model.config.n_ctx
        cache = model.new_cache(slots + background, capacity)
        self._cache = cache
        self._limit = min(cache.capacity, self._n_ctx)
        self._slots = Slots(cache, kept=max(slots, 1) * self._limit)
        self._drafter = drafter
        # By whether they are the background's: how many may run, those that do, in the order of their turns, and jobs
        # of those that wait.  What waits is a group of sequences that enter together.
        self._most = {False: slots, True: background}
        self._running: dict[bool, dict[S, Slot]] = {False: {}, True: {}}
        self._waiting: dict[bool, deque[deque[List[S]]]] = {False: deque(), True: deque()}

    @property
    def running(self) -> int:
        """How many sequences have a slot."""
        return sum(map(len, self._running.values()))

    @property
    def waiting(self) -> int:
        """How many sequences wait for one."""
        return sum(len(group) for jobs in self._waiting.values() for job in jobs for group in job)

    def add(self, *sequences: S, together: bool = False) -> None:
        """Queue the sequences, all of one kind, as one job: jobs take turns.

        With `together` they enter in the same step, and must have slots enough; else InputError.
        """
        sequences = tuple(sequence for sequence in sequences if not sequence.finished)
        if not sequences:
            return
        groups: deque[List[S]] = deque([sequences] if together else [(sequence,) for sequence in sequences])
        background = sequences[0].background
        if len(groups[0]) > self._most[background]:
            raise InputError(
                f"{len(groups[0])} sequences are to run together; there are {self._most[background]} slots for them"
            )
        self._waiting[background].append(groups)

    def remove(self, *sequences: S) -> None:
        """Take sequences out, running or waiting; those that are neither do not matter."""
        gone = set(sequences)
        for background, jobs in self._waiting.items():
            left = (deque(group for group in job if gone.isdisjoint(group)) for job in jobs)
            self._waiting[background] = deque(job for job in left if job)
        for sequence in gone:
            self._leave(sequence)

    def reorder(self, group: List[S], parents: List[int], ids: List[list[int]]) -> None:
        """Let `group[i]` have the ids `ids[i]`, which go on from all that `group[parents[i]]` has read, and the rest of
        the group, which entered together, none.

        This is what a beam search does to its beams: rows of the cache change their owners and none is read again.
        """
        running = self._running[group[0].background]
        slots = self._slots.reorder([running[sequence] for sequence in group], parents)
        for i, (sequence, slot) in enumerate(zip(group, slots, strict=True)):
            sequence.ids = slot.ids = ids[i] if i < len(parents) else []
            slot.sequence = sequence
            running[sequence] = slot

    def truncate(self, sequence: S, length: int) -> None:
        """Forget what was read of the sequence from place `length` on; its owner has changed its ids from there on."""
        slot = self._running[sequence.background].get(sequence)
        if slot is not None:
            self._slots.truncate(slot, max(length - slot.dropped, 0))

    def step(self) -> list[S]:
        """Run the model once and return the sequences that something came of, or that failed; none where there is
        nothing to do, or all are still reading what needs no output.

        Raises what the model raises; then nothing has been read, and a further step does what this one should.
        """
        for background in (False, True):
            self._admit(background)
        parts = self._plan()
        if not parts:
            return []
        # What has the same kind of need stands together.
        kinds = [Choices, Measures, States, Logits, type(None)]
        for part in parts:
            part.ask()
        parts.sort(key=lambda part: (kinds.index(type(part.need)), part.slot.row))
        lengths = [part.slot.length for part in parts]
        hooks = row_hooks({part.slot.row: part.sequence.steer for part in parts})
        try:
            outputs = self._model.forward(
                self._cache,
                [part.slot.row for part in parts],
                [np.array(part.ids, np.int32) for part in parts],
                [part.outputs for part in parts],
                **({"fwd_hooks": hooks} if hooks else {}),
            )
            for part in parts:
                part.slot.length += len(part.ids)
            self._share(outputs, [part for part in parts if part.need is not None])
        except BaseException:
            # A forward that failed has left the cache as it was.  What the sequences have already taken they keep: it
            # is needed no more.
            for part, length in zip(parts, lengths, strict=True):
                part.sequence.drafts = []
                self._slots.truncate(part.slot, length)
            raise
        changed: list[S] = []
        for part in parts:
            self._settle(part)
            if part.need is not None:
                changed.append(part.sequence)  # type: ignore[arg-type]
        for sequence in changed:
            if sequence.finished:
                self._leave(sequence)
        return changed

    def run(self, *sequences: S, failing: bool = False) -> Iterator[S]:
        """Add the sequences and step until they have finished, giving each one as often as something came of it; who
        gets it may finish it.

        Raises the error of one that fails; with `failing` it is given like the others.
        """
        left = {sequence for sequence in sequences if not sequence.finished}
        self.add(*sequences)
        try:
            while left:
                for sequence in self.step():
                    if sequence.error is not None and not failing:
                        raise sequence.error
                    if sequence.finished:
                        left.discard(sequence)
                    yield sequence
                    if sequence.finished and sequence in left:
                        left.discard(sequence)
                        self.remove(sequence)
        finally:
            self.remove(*left)

    # Who has a slot

    def _admit(self, background: bool) -> None:
        running, jobs = self._running[background], self._waiting[background]
        passed = 0  # jobs that wait for a beginning that another one reads
        while passed < len(jobs):
            job = jobs[0]
            group = job[0]
            if len(running) + len(group) > self._most[background]:
                return
            slot = self._slots.enter(group[0])
            if slot is None:
                passed += 1
            else:
                running[group[0]] = slot
                for sequence in group[1:]:
                    running[sequence] = self._slots.enter(sequence) or slot
                job.popleft()
                passed = 0
            jobs.popleft()
            if job:
                jobs.append(job)

    def _leave(self, sequence: S) -> None:
        slot = self._running[sequence.background].pop(sequence, None)
        if slot is not None:
            self._slots.leave(slot)
            if self._drafter is not None:
                self._drafter.forget(sequence)

    # What a step reads

    def _plan(self) -> list[_Part]:
        growing: list[_Part] = []
        reading: list[tuple[S, Slot, int]] = []
        for sequence, slot in self._running[False].items():
            left = self._left(sequence, slot)
            if left == 1:
                growing.append(_Part(slot, sequence, slot.end, sequence.ids[slot.end :]))
            elif left:
                reading.append((sequence, slot, left))
        tokens = self._draft(growing)
        parts = growing + self._read(reading, max(_STEP - tokens, _CHEAP))
        tokens = sum(len(part.ids) for part in parts)
        running = self._running[True]
        waiting = [(sequence, slot, left) for sequence, slot in running.items() if (left := self._left(sequence, slot))]
        room = _STEP - tokens
        if tokens:
            room = max(min(2 * max(tokens, _CHEAP) - tokens, room), _CHEAP)
        others = self._read(waiting, room)
        for part in others:
            if (part.start + len(part.ids)) // _STEP > part.start // _STEP:
                running[part.sequence] = running.pop(part.sequence)  # type: ignore[index, arg-type]
        return parts + others

    def _left(self, sequence: S, slot: Slot) -> int:
        """How many ids of the sequence are still to be read, in the window that it is at."""
        self._slots.follow(slot)
        if slot.length == self._n_ctx and len(sequence.ids) > slot.end:
            sequence.slide(self._n_ctx)
            self._slots.follow(slot)
        return min(len(sequence.ids), slot.dropped + self._n_ctx) - slot.end

    def _read(self, reading: List[tuple[S, Slot, int]], room: int) -> list[_Part]:
        parts = []
        for sequence, slot, left in reading:
            count = min(left, room)
            if count:
                parts.append(_Part(slot, sequence, slot.end, sequence.ids[slot.end : slot.end + count]))
            room -= count
        return parts

    def _draft(self, growing: List[_Part]) -> int:
        """Let ids be proposed to the sequences that take some; how many tokens the step has now."""
        if self._drafter is not None and growing:
            share = max(_STEP // len(growing) - 1, 0)
            limits = [min(part.sequence.draft_length, self._limit - part.slot.length - 1, share) for part in growing]
            asked = [(part, most) for part, most in zip(growing, limits, strict=True) if most > 0]
            sequences: list[S] = [part.sequence for part, _ in asked]  # type: ignore[misc]
            proposed = self._drafter.propose(sequences, [most for _, most in asked])
            for (part, _), drafts in zip(asked, proposed, strict=True):
                part.sequence.drafts = drafts
                part.ids = part.ids + drafts
        return sum(len(part.ids) for part in growing)

    # What comes of it

    def _share(self, outputs: Outputs, parts: List[_Part]) -> None:
        """Give the sequences what they need of the outputs, computed for all of one kind together."""
        placed = list(zip(accumulate((part.outputs for part in parts), initial=0), parts, strict=False))
        for kind, group in groupby(placed, key=lambda item: type(item[1].need)):
            of_kind = list(group)
            if kind is Logits:
                self._share_logits(outputs, of_kind)
                continue
            begin, (last, end) = of_kind[0][0], of_kind[-1]
            values: Any
            if kind is Choices:
                values = outputs.choose(begin, [draw for _, part in of_kind for draw in part.need.draws])  # type: ignore[union-attr]
            elif kind is Measures:
                targets = [i for _, part in of_kind for i in part.need.targets]  # type: ignore[union-attr]
                values = outputs.measure(begin, targets, self._n_vocab)
            else:
                values = outputs.states(begin, last + end.outputs)
            for first, part in of_kind:
                self._give(part, values[first - begin : first - begin + part.outputs], outputs, first)

    def _share_logits(self, outputs: Outputs, parts: List[tuple[int, _Part]]) -> None:
        """Logits, a few rows at a time: those of whole sequences where that is possible."""
        block: list[tuple[int, _Part, int]] = []  # the first output, whose it is, how many

        def give() -> None:
            if block:
                begin, end = block[0][0], block[-1][0] + block[-1][2]
                logits = outputs.logits(begin, end)[:, : self._n_vocab]
                for first, part, count in block:
                    self._give(part, logits[first - begin : first - begin + count], outputs, first)
                block.clear()

        for begin, part in parts:
            for first in range(begin, begin + part.outputs, ROWS):
                count = min(ROWS, begin + part.outputs - first)
                if block and first + count - block[0][0] > ROWS:
                    give()
                block.append((first, part, count))
        give()

    def _give(self, part: _Part, values: Any, outputs: Outputs, first: int) -> None:
        """Let the sequence take values of the outputs from number `first` on; where it cannot, it has failed."""
        sequence = part.sequence
        if sequence.finished:
            return
        place = sequence.next_output
        try:
            sequence.take(values)
        except NonFiniteError as error:
            if sequence.steer:  # a run to find the place would be another one, which nothing is added in
                sequence.error = NonFiniteError(f"{error}: what steers the text is too strong, or the weights damaged")
                return
            row = first + sequence.next_output - place
            seen = sequence.ids[sequence.dropped : part.start] + part.ids
            error = not_finite(outputs.logits(row, row + 1)[0][: self._n_vocab])
            sequence.error = located(error, self._model, seen, sequence.dropped, sequence.next_output)
        except Exception as error:
            sequence.error = error

    def _settle(self, part: _Part) -> None:
        """Forget proposals that were wrong."""
        sequence, drafts = part.sequence, part.sequence.drafts
        if drafts:
            place = part.start + len(part.ids) - len(drafts)
            right = sequence.ids[place : place + len(drafts)]
            known = next((i for i, (a, b) in enumerate(zip(drafts, right, strict=False)) if a != b), len(right))
            sequence.drafts = []
            self._slots.truncate(part.slot, place + known - part.slot.dropped)
