"""What is wanted of the network besides texts and scores: log-probabilities of prompts, and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.generation.sampling import highest, log_probabilities
from gpt2fast.scheduler import LOGITS, STATES, Need, Sequence

__all__ = ["EmbeddedSequence", "Measure", "MeasuredPrompt"]

#: The log-probability of a token, and the likeliest ids in its place with theirs, best first.
Measure = tuple[float, list[tuple[int, float]]]


class MeasuredPrompt(Sequence):
    """A prompt whose tokens are measured, all but the first, which comes after nothing; with the `top` likeliest."""

    background = True

    def __init__(self, ids: list[int], top: int) -> None:
        super().__init__(ids[:-1])
        #: The measures so far.
        self.measures: list[Measure] = []
        self._targets = ids[1:]
        self._top = top

    @property
    def next_output(self) -> int:
        return len(self.measures)

    @property
    def complete(self) -> bool:
        return len(self.measures) == len(self._targets)

    def need(self, start: int, stop: int) -> Need:
        return LOGITS

    def take(self, values: Any) -> None:
        for row in values:
            logarithms = log_probabilities(row)
            target = self._targets[len(self.measures)]
            best = highest(logarithms, self._top) if self._top else ()
            # A padded table may know ids that the tokenizer does not; they have no probability.
            chosen = float(logarithms[target]) if target < len(logarithms) else -np.inf
            self.measures.append((chosen, [(int(i), float(logarithms[i])) for i in best]))


class EmbeddedSequence(Sequence):
    """A text, at least one id, of which the mean of its tokens' final hidden states is wanted."""

    background = True

    def __init__(self, ids: list[int], n_embd: int) -> None:
        super().__init__(ids)
        self._sum = np.zeros(n_embd)
        self._done = 0

    @property
    def embedding(self) -> npt.NDArray[np.float32]:
        """The mean: float32 (n_embd,)."""
        return (self._sum / len(self.ids)).astype(np.float32)

    @property
    def next_output(self) -> int:
        return self._done

    @property
    def complete(self) -> bool:
        return self._done == len(self.ids)

    def need(self, start: int, stop: int) -> Need:
        return STATES

    def take(self, values: Any) -> None:
        for state in values:  # one after another: a sum that does not depend on how they came
            self._sum += state
        self._done += len(values)
