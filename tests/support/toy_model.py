"""A stand-in for the network that knows exactly what it was shown: quick, and it tells on a cache that is wrong.

The logits after some ids depend on all of them and on nothing else, so a row that sees another's tokens, or its own at
the wrong place, goes on differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.model.outputs import Outputs

Floats = npt.NDArray[np.float32]


class ToyCache:
    """The ids themselves, row by row."""

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch, self.capacity = batch, capacity
        self.rows: list[list[int]] = [[] for _ in range(batch)]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(row) for row in self.rows], np.int64)

    def truncate(self, row: int, length: int) -> None:
        assert length <= len(self.rows[row])
        del self.rows[row][length:]

    def copy_row(self, source: int, target: int) -> None:
        self.rows[target] = list(self.rows[source])


class ToyOutputs(Outputs):
    """The ids that each output comes after."""

    def __init__(self, model: ToyModel, seen: list[list[int]]) -> None:
        self._model, self._seen = model, seen

    def __len__(self) -> int:
        return len(self._seen)

    def states(self, start: int, stop: int) -> Floats:
        """Of four numbers, which depend on all ids."""
        found = [hashed(ids, 4) for ids in self._seen[start:stop]]
        return np.array(found, np.float32).reshape(len(found), 4)

    def logits(self, start: int, stop: int) -> Floats:
        found = [self._model.logits_after(ids) for ids in self._seen[start:stop]]
        self._model.most = max(self._model.most, len(found))
        return np.array(found, np.float32).reshape(len(found), self._model.config.vocab_size)


class ToyModel:
    """`gpt2fast.GPT2` as far as generation and scoring know it."""

    gemm = "panel"
    has_hooks = False

    def __init__(
        self,
        vocab_size: int = 270,
        n_ctx: int = 64,
        eos_token_id: int | None = 269,
        logits: Callable[[Sequence[int], int], npt.ArrayLike] | None = None,
    ) -> None:
        self.config = SimpleNamespace(
            vocab_size=vocab_size,
            n_ctx=n_ctx,
            n_layer=1,
            n_embd=4,
            eos_token_id=eos_token_id,
            bos_token_id=eos_token_id,
        )
        self._logits = logits or hashed
        #: The lengths of the ids of each call of `forward`.
        self.calls: list[list[int]] = []
        #: The most rows of logits that there were at the same time.
        self.most = 0
        self.caches: list[ToyCache] = []

    def logits_after(self, ids: Sequence[int]) -> Floats:
        return np.asarray(self._logits(ids, self.config.vocab_size), np.float32)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> ToyCache:
        self.caches.append(ToyCache(batch, capacity or self.config.n_ctx))
        return self.caches[-1]

    def forward(
        self,
        cache: ToyCache,
        rows: Sequence[int],
        ids: Sequence[npt.ArrayLike],
        outputs: Sequence[int] | None = None,
        *,
        fwd_hooks: Sequence[Any] = (),
    ) -> ToyOutputs:
        """As `gpt2fast.GPT2.forward`; there is nothing inside that functions could change."""
        assert not fwd_hooks
        assert len(set(rows)) == len(rows) == len(ids) > 0
        self.calls.append([np.size(row_ids) for row_ids in ids])
        seen: list[list[int]] = []
        for row, row_ids, count in zip(rows, ids, outputs or [1] * len(rows), strict=True):
            held = cache.rows[row]
            held.extend(np.asarray(row_ids).tolist())
            assert len(held) <= min(cache.capacity, self.config.n_ctx)
            assert count <= np.size(row_ids)
            seen += [held[: len(held) - i] for i in reversed(range(count))]
        return ToyOutputs(self, seen)

    def residual(self, ids: npt.ArrayLike, stage: int) -> Floats:
        """All is finite up to the head."""
        return np.zeros((np.size(ids), 1), np.float32)

    def __call__(self, ids: npt.ArrayLike, cache: Any = None, last_only: bool = False) -> Floats:
        """Without a cache, for one text or several."""
        assert cache is None
        array = np.asarray(ids)
        if array.ndim == 2:
            return np.stack([self(row, last_only=last_only) for row in array])
        assert len(array) <= self.config.n_ctx
        logits = [self.logits_after(array[: i + 1].tolist()) for i in range(len(array))]
        return logits[-1] if last_only else np.array(logits, np.float32).reshape(len(array), self.config.vocab_size)


def hashed(ids: Sequence[int], vocab_size: int) -> Floats:
    """Normal logits from a seed that is made of the ids, in their order."""
    return (3 * np.random.default_rng([len(ids), *ids]).standard_normal(vocab_size)).astype(np.float32)


def scripted(script: Sequence[int], prompt_length: int = 1) -> Callable[[Sequence[int], int], Floats]:
    """Logits whose likeliest ids spell `script` after a prompt of that length, whatever the prompt."""

    def logits(ids: Sequence[int], vocab_size: int) -> Floats:
        out = np.zeros(vocab_size, np.float32)
        out[script[min(len(ids) - prompt_length, len(script) - 1)]] = 10
        return out

    return logits
