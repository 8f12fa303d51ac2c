"""What may come next: for a text so far the ids that can follow, as a bit each, from a matcher that reads along.

A matcher knows one state, that after the ids it has accepted.  A `Constraint` is asked about any ids: it takes back
what is not among them and accepts what is new, so drafts, beams and texts that are cut off cost what they differ by.

Performance notes (1 December 2026, 50,257 tokens): a mask as 50,257 bools from its bits 6 us by np.unpackbits, 1.1 ms
by llguidance's own NumPy helper.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.threads import default_num_threads
from gpt2fast.errors import Error, GrammarError, InputTypeError, ProcessorError

__all__ = ["Constraint", "Matcher", "foreign_matcher"]

# Processor time in seconds from which masks are computed beside the forward pass.  Most take well under 0.1 ms, less
# than waking a thread that takes the interpreter's lock, and a core from those of the pass: a profile on two busy cores
# had the caller wait milliseconds for it.
_LONG = 1e-3

Words = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


class Matcher(Protocol):
    """Which ids can follow those that were accepted."""

    #: Whether a mask can be filled by another thread than the one that made the matcher, without the interpreter's
    #: lock.
    threaded: bool
    #: How many ids a mask has bits for.
    size: int

    def fill(self, words: Words) -> None:
        """Write the mask: int32 (ceil(size / 32),), the bit of id i being bit i % 32 of word i // 32.  Raises where
        the matcher cannot go on; then it is of no use any more."""
        ...

    def accept(self, ids: Sequence[int]) -> int:
        """Go on by these ids, as far as they are allowed; how many were."""
        ...

    def rollback(self, count: int) -> None:
        """Take the last `count` ids back.  Raises where that is impossible; then it is of no use any more."""
        ...

    def forced(self) -> int | None:
        """The only id that makes sense next, where that is known, else None."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing can follow."""
        ...


class Constraint:
    """The masks of one text's ids, or of several texts that begin alike; `make` makes a matcher that has accepted
    nothing."""

    def __init__(self, make: Callable[[], Matcher], n_vocab: int) -> None:
        self._make = make
        self._matcher = make()
        self._n_vocab = n_vocab
        self._accepted: list[int] = []
        self._coming: Future[list[Words]] | None = None
        # What the last mask took.
        self._spent = 0.0
        # The masks that were computed ahead, the first for what follows the first `_base` of the ids `_known`.
        self._masks: list[Words] = []
        self._known: list[int] = []
        self._base = 0

    def begin(self, ids: list[int], drafts: Sequence[int]) -> None:
        """Have the masks computed that follow `ids`, and each of `drafts` after them, while the caller does something
        else, where that pays."""
        self._join()
        if self._matcher.threaded and self._spent * (1 + len(drafts)) > _LONG:
            self._known, self._base, self._masks = [*ids, *drafts], len(ids), []
            self._coming = _executor().submit(self._ahead, ids, drafts)

    def mask(self, ids: list[int]) -> Bools:
        """Whether each id can follow `ids`: bool (n_vocab,), with at least one that can.

        Raises GrammarError where none can, and whatever the matcher raises.
        """
        self._join()
        place = len(ids) - self._base
        if 0 <= place < len(self._masks) and ids == self._known[: len(ids)]:
            words = self._masks[place]
        else:
            self._follow(ids)
            words = self._fill()
        bits = np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), bitorder="little", count=self._n_vocab)
        mask: Bools = bits.view(np.bool_)
        if not mask.any():
            raise GrammarError("no token of the vocabulary can follow in the grammar")
        return mask

    def forced(self, ids: list[int]) -> int | None:
        """The only id that makes sense after `ids`, where that is known, else None."""
        self._join()
        self._follow(ids)
        return self._matcher.forced()

    def finished(self, ids: list[int]) -> bool:
        """Whether nothing can follow `ids`."""
        self._join()
        self._follow(ids)
        return self._matcher.finished

    def allowed(self, ids: list[int], drafts: Sequence[int]) -> int:
        """How many of `drafts` can follow `ids`, one after the other."""
        self._join()
        self._follow(ids)
        count = self._matcher.accept(drafts)
        self._accepted = [*ids, *drafts[:count]]
        return count

    def _ahead(self, ids: list[int], drafts: Sequence[int]) -> list[Words]:
        """The masks after `ids` and those of `drafts` that are allowed."""
        self._follow(ids)
        masks = [self._fill()]
        for draft in drafts:
            if not self._matcher.accept([draft]):
                break
            self._accepted.append(draft)
            try:
                masks.append(self._fill())
            except GrammarError:  # to be raised where the draft turns out to be right
                break
        return masks

    def _join(self) -> None:
        """Wait for what was begun.  An error of it comes again where its mask is asked for."""
        if self._coming is not None:
            coming, self._coming = self._coming, None
            try:
                self._masks = coming.result()
            except Error:
                self._masks = []

    def _follow(self, ids: list[int]) -> None:
        """Let the matcher have accepted just `ids`."""
        same = min(len(self._accepted), len(ids))
        if self._accepted[:same] != ids[:same]:
            same = next(i for i in range(same) if self._accepted[i] != ids[i])
        back = len(self._accepted) - same
        if back:
            del self._accepted[same:]
            try:
                self._matcher.rollback(back)
            except Error:  # further than the matcher can go back
                self._restart()
        new = ids[len(self._accepted) :]
        if new:
            count = self._matcher.accept(new)
            self._accepted += new[:count]
            if count < len(new):
                raise GrammarError(f"id {new[count]} cannot follow in the grammar")

    def _fill(self) -> Words:
        words = np.zeros((self._matcher.size + 31) // 32, np.int32)
        start = time.thread_time()  # no waiting for the interpreter's lock
        try:
            self._matcher.fill(words)
        except Error:
            self._restart()
            raise
        self._spent = time.thread_time() - start
        return words

    def _restart(self) -> None:
        """Begin with a new matcher, as the old one is of no use any more."""
        self._matcher, self._accepted = self._make(), []


_executors: list[ThreadPoolExecutor] = []


def _executor() -> ThreadPoolExecutor:
    """The threads that compute masks, made when they are first needed."""
    if not _executors:
        _executors.append(ThreadPoolExecutor(default_num_threads(), thread_name_prefix="gpt2fast-mask"))
    return _executors[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.clear)  # threads do not survive a fork


def foreign_matcher(make: Callable[[], Any], n_vocab: int) -> Matcher:
    """The matcher that `make`, a caller's `token_mask`, makes: xgrammar's GrammarMatcher, outlines-core's Guide, or
    what has the methods of the first.

    Raises InputTypeError where it makes something else, ProcessorError where it raises.
    """
    name = getattr(make, "__qualname__", type(make).__qualname__)
    try:
        matcher = make()
    except Exception as error:
        raise ProcessorError(f"token_mask {name} raised {type(error).__name__}: {error}") from error
    if hasattr(matcher, "write_mask_into"):
        return _Guide(matcher, n_vocab)
    if all(hasattr(matcher, method) for method in ("fill_next_token_bitmask", "accept_token", "rollback")):
        return _GrammarMatcher(matcher, n_vocab)
    raise InputTypeError(
        f"token_mask made a {type(matcher).__name__}; expected xgrammar's GrammarMatcher, outlines-core's Guide, or an "
        f"object with fill_next_token_bitmask(bitmask, index), accept_token(id) and rollback(count)"
    )


class _Foreign:
    """What matchers of other packages have in common: they are asked on the caller's thread, and their errors named."""

    threaded = False
    finished = False  # they allow an end-of-text there

    def __init__(self, matcher: Any, n_vocab: int) -> None:
        self._matcher = matcher
        self.size = n_vocab

    def forced(self) -> int | None:
        return None

    def accept(self, ids: Sequence[int]) -> int:
        return next((i for i, id in enumerate(ids) if not self._accept(id)), len(ids))

    def _accept(self, id: int) -> bool:
        raise NotImplementedError

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._matcher, method)(*arguments)
        except Exception as error:
            name = type(self._matcher).__name__
            raise ProcessorError(f"token_mask {name}.{method} raised {type(error).__name__}: {error}") from error


class _GrammarMatcher(_Foreign):
    """xgrammar's, and what has its methods."""

    def fill(self, words: Words) -> None:
        self._call("fill_next_token_bitmask", words.reshape(1, -1), 0)

    def _accept(self, id: int) -> bool:
        return bool(self._call("accept_token", id))

    def rollback(self, count: int) -> None:
        self._call("rollback", count)


class _Guide(_Foreign):
    """outlines-core's."""

    def fill(self, words: Words) -> None:
        self._call("write_mask_into", words.ctypes.data, words.size, words.itemsize)

    def _accept(self, id: int) -> bool:
        if not self._call("accepts_tokens", [id]):
            return False
        self._call("advance", id, False)
        return True

    def rollback(self, count: int) -> None:
        self._call("rollback_state", count)
