"""Scoring: how probable a text is under the model, token by token.

Each token's logits are looked at where they are made, a few rows at a time, so memory does not grow with the text.

Performance notes (30 November 2026, two cores of a busy AMD EPYC, medians):
- The measures of 64 rows of 50,257 logits take 20 ms (best 9) row by row in two buffers that stay in the cache, 31 ms
  (best 23) by operations on all rows at once.  With double precision for the values, too, these took twice as long.
- 64 texts of 9 tokens, demo model: 318 ms together, 797 ms one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.arguments import whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.pairing import end_of_text, shared_vocabulary

__all__ = ["Score", "TokenScore", "score_texts"]

# Rows of logits that exist at the same time: with 50,257 columns, 64 are 13 MB.
_ROWS = 64

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenScore:
    """One token of a scored text."""

    id: int
    #: Its part of the text; a character that it shares with the next token is in both.
    text: str | bytes
    #: Where it is in the text: from this character (of bytes: byte) to before that one.
    span: tuple[int, int]
    #: The natural logarithm of its probability after everything before it.
    log_probability: float
    #: How many tokens were more probable, plus one.
    rank: int
    #: The entropy of the distribution that it came from, in bits: how open the choice was.
    entropy: float

    @property
    def surprisal(self) -> float:
        """The surprisal in bits, -log2 of the probability."""
        return -self.log_probability / math.log(2)


@dataclass(frozen=True, eq=False)
class Score:
    """A scored text: arrays with a value for each of its T tokens, and what they amount to."""

    #: The text, as it was given.
    text: str | bytes
    #: The token ids, int64 (T,).
    ids: Ids
    #: From which character (of bytes: byte) to before which each token goes, int64 (T, 2).
    spans: Ids
    #: Natural logarithms of the tokens' probabilities, each after everything before it, float64 (T,).
    log_probabilities: Floats
    #: How many tokens were more probable, plus one, int64 (T,).
    ranks: Ids
    #: Entropies of the distributions that the tokens came from, in bits, float64 (T,).
    entropies: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return (
            f"<Score of {len(self)} tokens: perplexity {self.perplexity:.4g}, {self.bits_per_byte:.4g} bits per byte>"
        )

    @property
    def surprisal(self) -> Floats:
        """The surprisals in bits, float64 (T,): -log2 of the probabilities."""
        return self.log_probabilities / -math.log(2)

    @property
    def log_likelihood(self) -> float:
        """The natural logarithm of the whole text's probability."""
        return float(self.log_probabilities.sum())

    @property
    def perplexity(self) -> float:
        """e to the mean negative log-probability of a token; NaN for an empty text."""
        if not len(self):
            return math.nan
        with np.errstate(over="ignore"):
            return float(np.exp(-self.log_likelihood / len(self)))

    @property
    def bits_per_byte(self) -> float:
        """The surprisal of the text over its length in UTF-8, which compares models of different tokenizers; NaN for an
        empty text."""
        return -self.log_likelihood / math.log(2) / self.num_bytes if self.num_bytes else math.nan

    @cached_property
    def num_bytes(self) -> int:
        """The length of the text in bytes, of str in UTF-8."""
        return len(self.text.encode()) if isinstance(self.text, str) else len(self.text)

    @property
    def tokens(self) -> list[TokenScore]:
        """The same, token by token."""
        return [
            TokenScore(id, self.text[start:end], (start, end), log_probability, rank, entropy)
            for id, (start, end), log_probability, rank, entropy in zip(
                self.ids.tolist(),
                self.spans.tolist(),
                self.log_probabilities.tolist(),
                self.ranks.tolist(),
                self.entropies.tolist(),
                strict=True,
            )
        ]


def score_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str | bytes],
    *,
    context: str | bytes = "",
    stride: int | None = None,
) -> list[Score]:
    """The scores of `texts`, in their order, each after `context`, and that after end-of-text.

    A text beyond the model's context is read in windows, each `stride` tokens further on than the last one (default:
    half the context), so that every token sees at least the context less `stride` tokens before it.

    Raises InputTypeError for what is no text, and InputError where a text cannot be scored: a lone surrogate, no
    end-of-text to begin with, logits that are not finite.
    """
    n_ctx: int = model.config.n_ctx
    stride = max(n_ctx // 2, 1) if stride is None else whole_number("stride", stride, least=1)
    if stride > n_ctx:
        raise InputError(f"stride is {stride}; the model's context is {n_ctx} tokens")
    eos = end_of_text(model, tokenizer)
    if eos is None:
        raise InputError("neither configuration nor tokenizer has an end-of-text for a text to come after")
    begin = [eos, *tokenizer.encode_ordinary(_checked(context, "context"))]
    encoded = [tokenizer.encode_with_offsets(_checked(text, f"texts[{i}]")) for i, text in enumerate(texts)]
    n_vocab = shared_vocabulary(model, tokenizer)
    sequences = [np.array(begin + ids, np.int64) for ids, _ in encoded]
    for i, sequence in enumerate(sequences):
        if sequence.max() >= n_vocab:
            raise InputError(f"texts[{i}] has token {sequence.max()}; the model's vocabulary has {n_vocab} tokens")
    measures: dict[int, Floats] = {}
    short: list[int] = []
    long: list[int] = []
    for i, sequence in enumerate(sequences):
        (short if len(sequence) <= min(_ROWS, n_ctx) else long).append(i)
    for group in _groups(sorted(short, key=lambda i: len(sequences[i])), [len(sequence) for sequence in sequences]):
        measured = _measure_short(model, [sequences[i] for i in group], len(begin) - 1, n_vocab)
        measures.update(zip(group, measured, strict=True))
    for i in long:
        measures[i] = _measure_long(model, sequences[i], len(begin) - 1, stride, n_vocab)
    return [
        Score(
            text=text,
            ids=np.array(ids, np.int64),
            spans=np.array(spans, np.int64).reshape(-1, 2),
            log_probabilities=measures[i][:, 0],
            ranks=measures[i][:, 1].astype(np.int64),
            entropies=measures[i][:, 2],
        )
        for i, (text, (ids, spans)) in enumerate(zip(texts, encoded, strict=True))
    ]


def _groups(indices: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """The indices, which come by growing length, in groups that fill a pass of the model."""
    group: list[int] = []
    for i in indices:
        if group and (len(group) + 1) * lengths[i] > 4 * _ROWS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _measure_short(model: Any, sequences: Sequence[Ids], first: int, n_vocab: int) -> list[Floats]:
    """The measures of all tokens after place `first` of each sequence; all sequences go through the model together."""
    # Padded on the right, where it cannot change what is on the left; and little, as the lengths are nearly equal.
    batch = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    for row, sequence in zip(batch, sequences, strict=True):
        row[: len(sequence)] = sequence
    logits = model(batch[:, :-1])
    return [
        _measures(rows[first : len(sequence) - 1, :n_vocab], sequence[first + 1 :])
        for rows, sequence in zip(logits, sequences, strict=True)
    ]


def _measure_long(model: Any, sequence: Ids, first: int, stride: int, n_vocab: int) -> Floats:
    """The measures of all tokens after place `first`, window by window."""
    n_ctx, last = model.config.n_ctx, len(sequence) - 1
    cache = model.new_cache(1, min(n_ctx, last))
    parts = [np.empty((0, 3))]
    done = first
    while done < last:
        end = min(max(n_ctx, done + stride), last)
        start = max(end - n_ctx, 0)
        cache.truncate(0, 0)
        if start < done:
            model.extend(cache, [0], [sequence[start:done]])
        for place in range(done, end, _ROWS):
            ids = sequence[place : min(place + _ROWS, end)]
            parts.append(_measures(model(ids, cache)[:, :n_vocab], sequence[place + 1 : place + 1 + len(ids)]))
        done = end
    return np.concatenate(parts)


def _measures(logits: npt.NDArray[np.float32], targets: Ids) -> Floats:
    """The log-probability of each row's target, its rank, and the row's entropy in bits: float64 (T, 3)."""
    out = np.empty((len(targets), 3))
    below, weights = np.empty((2, logits.shape[1]), np.float32)
    for measured, row, target in zip(out, logits, targets, strict=True):
        top, chosen = row.max(), row[target]
        if not np.isfinite(top):
            raise InputError("the logits are not finite; the weights are damaged or too large for float32")
        # Single precision for the values, double for the sums.  The floor, far under what has a weight, keeps minus
        # infinity times 0 out of the entropy.
        np.subtract(row, top, out=below)
        np.maximum(below, np.float32(-200), out=below)
        np.exp(below, out=weights)
        total = float(weights.sum(dtype=np.float64))
        weights *= below
        mean = float(weights.sum(dtype=np.float64)) / total
        measured[0] = float(chosen - top) - math.log(total)
        measured[1] = np.count_nonzero(row > chosen) + 1
        measured[2] = (math.log(total) - mean) / math.log(2)
    return out


def _checked(text: Any, name: str) -> str | bytes:
    if not isinstance(text, (str, bytes)):
        raise InputTypeError(f"{name} is of type {type(text).__name__}; expected str or bytes")
    return text
