"""What a pass of the network gives after some of its tokens: hidden states, and all that is made of their logits.

Logits are large, 200 KB a token for GPT-2.  So a pass ends with hidden states, and its head runs for a few rows at a
time, of which chosen ids or measures are kept: memory does not grow with vocabulary times tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import ids_of, listed, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.kernels import elementwise
from gpt2fast.model.draw import Draw, choose

__all__ = ["ROWS", "Outputs", "measures"]

#: Rows of logits that exist at the same time; with 50,257 columns they are 13 MB.
ROWS = 64

Floats = npt.NDArray[np.float32]


class Outputs(ABC):
    """The outputs of a pass, in the order of its tokens: `len` of them, which all methods count from 0.

    A device gives `states` and `logits`, and may do the other things better than by way of these.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def states(self, start: int, stop: int) -> Floats:
        """The final hidden states of the outputs `start` to `stop`: float32 (stop - start, n_embd)."""

    @abstractmethod
    def logits(self, start: int, stop: int) -> Floats:
        """The logits of the outputs `start` to `stop`: float32 (stop - start, vocab_size)."""

    def choose(self, start: int, draws: Sequence[Draw]) -> list[int]:
        """The id that each of `draws` takes from the logits of the outputs from `start` on; -1 where these are not
        finite."""
        draws = listed("draws", draws, "draws")
        if not all(isinstance(draw, Draw) for draw in draws):
            raise InputTypeError("draws holds what is no Draw")
        start = self._start(start, len(draws))
        found: list[int] = []
        for first, last in _blocks(len(draws)):
            for row, draw in zip(self.logits(start + first, start + last), draws[first:last], strict=True):
                found.append(choose(row, draw) if np.isfinite(row[: draw.n_vocab].max()) else -1)
        return found

    def measure(self, start: int, targets: Sequence[int], n_vocab: int) -> npt.NDArray[np.float64]:
        """The `measures` of `targets`, ids under `n_vocab`, in the logits of the outputs from `start` on."""
        n_vocab = whole_number("n_vocab", n_vocab, least=1, most=2**31 - 1)
        targets = ids_of("targets", targets, n_vocab)
        start = self._start(start, len(targets))
        return self._measures(start, np.asarray(targets, np.int64), n_vocab)

    def _measures(self, start: int, targets: npt.NDArray[np.int64], n_vocab: int) -> npt.NDArray[np.float64]:
        out = np.empty((len(targets), 4))
        for first, last in _blocks(len(targets)):
            logits = np.asarray(self.logits(start + first, start + last)[:, :n_vocab], np.float32)
            out[first:last] = elementwise.measures(logits, targets[first:last])
        return out

    def _start(self, start: int, count: int) -> int:
        """`start`, from which on there are `count` outputs.  Raises InputError where there are not."""
        start = whole_number("start", start)
        if start + count > len(self):
            raise InputError(f"there are {len(self)} outputs; expected {count} from number {start} on")
        return start


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, ROWS):
        yield first, min(first + ROWS, count)


def measures(logits: npt.NDArray[np.floating[Any]], targets: Sequence[int]) -> npt.NDArray[np.float64]:
    """The natural logarithm of each row's target's probability, the target's rank, counted from 1, the row's entropy in
    bits, and the variance of the log-probability (a natural logarithm) of an id drawn from the row's distribution:
    float64 (T, 4) for logits (T, n_vocab).  A row that is not finite has NaN instead of all four.

    >>> measures(np.array([[0, 0, -np.inf], [np.nan, 0, 0]], np.float32), [1, 1]).round(3)
    array([[-0.693,  1.   ,  1.   ,  0.   ],
           [   nan,    nan,    nan,    nan]])
    """
    return elementwise.measures(np.asarray(logits, np.float32), np.asarray(targets, np.int64))
