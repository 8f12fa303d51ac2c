"""Two models that read the same ids: what a scheduler reads for detection.

It is a model as a scheduler knows it, so batches, windows and shared beginnings are those of scoring, and no more than
a few rows of logits exist at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError
from gpt2fast.model.backend import Cache
from gpt2fast.model.hooks.functions import Hook
from gpt2fast.model.moments import cross_entropies
from gpt2fast.model.outputs import ROWS, Outputs
from gpt2fast.scheduler import Model

__all__ = ["ObservedModel"]

Floats = npt.NDArray[np.float32]


class ObservedModel:
    """A performer and an observer that read the same ids: what comes out is the performer's, but for the fourth
    measure: the `cross_entropies` of the performer's distributions under the observer's, in the variances' place.

    The context is the shorter one of both, and the vocabulary what both have.
    """

    def __init__(self, performer: Model, observer: Model) -> None:
        self._models = performer, observer
        self.config: Config = replace(
            performer.config,
            n_ctx=min(model.config.n_ctx for model in self._models),
            vocab_size=min(model.config.vocab_size for model in self._models),
        )

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> _TwoCaches:
        """A cache for each."""
        capacity = self.config.n_ctx if capacity is None else capacity
        return _TwoCaches([model.new_cache(batch, capacity) for model in self._models])

    def forward(
        self,
        cache: Cache,
        rows: Sequence[int],
        ids: Sequence[npt.ArrayLike],
        outputs: Sequence[int] | None = None,
        *,
        fwd_hooks: Sequence[Hook] = (),
    ) -> Outputs:
        """A pass of both, or of none where one fails; functions are called in the performer's."""
        if not isinstance(cache, _TwoCaches):
            raise InputError("the cache is another model's")
        lengths = cache.lengths
        try:
            performed, observed = (
                model.forward(own, rows, ids, outputs, fwd_hooks=hooks)
                for model, own, hooks in zip(self._models, cache.parts, (fwd_hooks, ()), strict=True)
            )
        except BaseException:
            for row in rows:
                cache.truncate(row, int(lengths[row]))
            raise
        return _ObservedOutputs(performed, observed)

    def residual(self, ids: npt.ArrayLike, stage: int) -> npt.NDArray[Any]:
        """The performer's."""
        return self._models[0].residual(ids, stage)


class _ObservedOutputs(Outputs):
    def __init__(self, performed: Outputs, observed: Outputs) -> None:
        self._performed, self._observed = performed, observed

    def __len__(self) -> int:
        return len(self._performed)

    def states(self, start: int, stop: int) -> Floats:
        return self._performed.states(start, stop)

    def logits(self, start: int, stop: int) -> Floats:
        return self._performed.logits(start, stop)

    def measure(self, start: int, targets: Sequence[int], n_vocab: int) -> npt.NDArray[np.float64]:
        found = self._performed.measure(start, targets, n_vocab)
        for first in range(0, len(found), ROWS):
            part = slice(start + first, min(start + first + ROWS, start + len(found)))
            observed, performed = (
                outputs.logits(part.start, part.stop)[:, :n_vocab] for outputs in (self._observed, self._performed)
            )
            found[first : first + ROWS, 3] = cross_entropies(observed, performed)
        return found


class _TwoCaches:
    """Caches that hold the same ids."""

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = parts
        self.batch = parts[0].batch
        self.capacity = min(part.capacity for part in parts)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The shorter ones, where a pass of one has failed."""
        return np.minimum(*(part.lengths for part in self.parts))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def truncate(self, row: int, length: int) -> None:
        for part in self.parts:
            part.truncate(row, length)

    def copy_row(self, source: int, target: int) -> None:
        for part in self.parts:
            part.copy_row(source, target)
