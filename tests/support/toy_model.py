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


class ToyModel:
    """`gpt2fast.GPT2` as far as generation and scoring know it."""

    gemm = "panel"

    def __init__(
        self,
        vocab_size: int = 270,
        n_ctx: int = 64,
        eos_token_id: int | None = 269,
        logits: Callable[[Sequence[int], int], npt.ArrayLike] | None = None,
    ) -> None:
        self.config = SimpleNamespace(
            vocab_size=vocab_size, n_ctx=n_ctx, eos_token_id=eos_token_id, bos_token_id=eos_token_id
        )
        self._logits = logits or hashed
        #: The lengths of the ids of each call of `extend`.
        self.calls: list[list[int]] = []
        #: The most rows of logits that a call of `extend` made.
        self.most = 0
        self.caches: list[ToyCache] = []

    def logits_after(self, ids: Sequence[int]) -> Floats:
        return np.asarray(self._logits(ids, self.config.vocab_size), np.float32)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> ToyCache:
        self.caches.append(ToyCache(batch, capacity or self.config.n_ctx))
        return self.caches[-1]

    def extend(
        self, cache: ToyCache, rows: Sequence[int], ids: Sequence[npt.ArrayLike], wanted: Sequence[int] | None = None
    ) -> Floats:
        assert len(set(rows)) == len(rows) == len(ids) > 0
        self.calls.append([np.size(row_ids) for row_ids in ids])
        out: list[Floats] = []
        for row, row_ids, count in zip(rows, ids, wanted or [1] * len(rows), strict=True):
            held = cache.rows[row]
            held.extend(np.asarray(row_ids).tolist())
            assert len(held) <= min(cache.capacity, self.config.n_ctx)
            assert count <= np.size(row_ids)
            out += [self.logits_after(held[: len(held) - i]) for i in reversed(range(count))]
        self.most = max(self.most, len(out))
        return np.array(out, np.float32).reshape(len(out), self.config.vocab_size)

    def choose(
        self,
        cache: ToyCache,
        rows: Sequence[int],
        ids: Sequence[npt.ArrayLike],
        wanted: Sequence[int] | None,
        draws: Any,
    ) -> list[Floats]:
        """As on a CPU."""
        return list(self.extend(cache, rows, ids, wanted))

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
