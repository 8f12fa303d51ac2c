"""What the network does besides writing texts: log-probabilities of prompts, and embeddings.

Both take an `engine.Network` and go in small passes, between which the running texts have their turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.generation.sampling import highest, log_probabilities

__all__ = ["Measure", "embeddings", "prompt_measures"]

# Tokens a pass.  Logits are large, 64 rows of 50,257 are 13 MB, and hidden states small.
_LOGITS, _STATES = 64, 256

#: The log-probability of a token, and the likeliest ids in its place with theirs, best first.
Measure = tuple[float, list[tuple[int, float]]]


def prompt_measures(network: Any, prompts: Sequence[Sequence[int]], top: int, n_vocab: int) -> list[list[Measure]]:
    """For each prompt the measures of all its tokens but the first, which comes after nothing."""
    found: list[list[Measure]] = [[] for _ in prompts]
    for group in _groups([len(prompt) for prompt in prompts], _LOGITS):
        cache = network.new_cache(len(group), max(len(prompts[group[-1]]), 1))
        for start in range(0, len(prompts[group[-1]]) - 1, _LOGITS):
            # The last token is followed by nothing: no logits are made of it.
            rows = [
                (row, i, prompts[i][start : min(start + _LOGITS, len(prompts[i]) - 1)]) for row, i in enumerate(group)
            ]
            rows = [(row, i, ids) for row, i, ids in rows if ids]
            counts = [len(ids) for _, _, ids in rows]
            logits = iter(
                network.extend(cache, [row for row, _, _ in rows], [np.array(ids) for _, _, ids in rows], counts)
            )
            for (_, i, _), count in zip(rows, counts, strict=True):
                for target in prompts[i][start + 1 : start + 1 + count]:
                    found[i].append(_measure(next(logits)[:n_vocab], target, top))
    return found


def _measure(logits: npt.NDArray[np.floating[Any]], target: int, top: int) -> Measure:
    logarithms = log_probabilities(logits)
    best = highest(logarithms, top) if top else ()
    # A padded table may know ids that the tokenizer does not; they have no probability.
    chosen = float(logarithms[target]) if target < len(logarithms) else -np.inf
    return chosen, [(int(i), float(logarithms[i])) for i in best]


def embeddings(network: Any, texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
    """For each text, lists of at least one id, the mean of its tokens' final hidden states: float32 (n_embd,)."""
    found: list[npt.NDArray[np.float32]] = [np.empty(0, np.float32)] * len(texts)
    for group in _groups([len(text) for text in texts], _STATES):
        longest = len(texts[group[-1]])
        # Padded on the right, where it cannot change what is on the left; and little, as the lengths are nearly equal.
        batch = np.zeros((len(group), longest), np.int64)
        for row, i in enumerate(group):
            batch[row, : len(texts[i])] = texts[i]
        cache = network.new_cache(len(group), longest)
        sums = np.zeros((len(group), network.config.n_embd))
        width = _STATES // len(group)
        for start in range(0, longest, width):
            states = network.hidden_states(batch[:, start : start + width], cache)
            for row, i in enumerate(group):
                sums[row] += states[row, : max(len(texts[i]) - start, 0)].sum(axis=0, dtype=np.float64)
        for row, i in enumerate(group):
            found[i] = (sums[row] / len(texts[i])).astype(np.float32)
    return found


def _groups(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Places in growing order of their lengths, in groups that fill a pass of `size` tokens; a longer one is alone."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[i] > size:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
