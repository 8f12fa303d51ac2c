"""Scoring: how probable a text is under the model, token by token.

Each token's logits are looked at where they are made, a few rows at a time, so memory does not grow with the text.
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

__all__ = ["Score", "TokenScore", "score_texts"]

# Rows of logits that exist at the same time: with 50,257 columns, 64 are 13 MB.
_ROWS = 64

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenScore:
    """One token of a scored text."""

    id: int
    #: The token's part of the text; of bytes, and of a character that it shares with its neighbour, as `Score.text` is.
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
        return f"<Score of {len(self)} tokens: perplexity {self.perplexity:.4g}, {self.bits_per_byte:.4g} bits per byte>"

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
        return math.exp(min(-self.log_likelihood / len(self), 709.0)) if len(self) else math.nan

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
    begin = [_end_of_text(model, tokenizer), *tokenizer.encode_ordinary(_checked(context, "context"))]
    encoded = [tokenizer.encode_with_offsets(_checked(text, f"texts[{i}]")) for i, text in enumerate(texts)]
    sequences = [np.array(begin + ids, np.int64) for ids, _ in encoded]
    n_vocab = min(model.config.vocab_size, tokenizer.n_vocab)
    outside = max((int(sequence.max()) for sequence in sequences), default=0)
    if outside >= n_vocab:
        raise InputError(f"the text has token {outside}; the model's vocabulary has {n_vocab} tokens")
    # What each token is given, by text: log-probability, rank, entropy.
    results = [np.empty((len(sequence) - 1, 3)) for sequence in sequences]
    for rows, logits in _logits(model, sequences, len(begin) - 1, stride):
        for logit_rows, (text, place) in zip(logits, rows, strict=True):
            targets = sequences[text][place + 1 : place + 1 + len(logit_rows)]
            results[text][place : place + len(targets)] = _measures(logit_rows[:, :n_vocab], targets)
    return [
        Score(
            text=text,
            ids=np.array(ids, np.int64),
            spans=np.array(spans, np.int64).reshape(-1, 2),
            log_probabilities=result[len(begin) - 1 :, 0],
            ranks=result[len(begin) - 1 :, 1].astype(np.int64),
            entropies=result[len(begin) - 1 :, 2],
        )
        for text, (ids, spans), result in zip(texts, encoded, results, strict=True)
    ]


def _logits(
    model: Any, sequences: Sequence[Ids], first: int, stride: int
) -> Iterator[tuple[list[tuple[int, int]], npt.NDArray[np.float32]]]:
    """All rows of logits that are wanted, in batches (B, T, V), each with the text and the place of its B first rows.

    The rows after places `first` and later of each sequence are wanted, but that after the last one.
    """
    short, long = [], []
    for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i])):
        if len(sequences[i]) - 1 > first:
            (short if len(sequences[i]) - 1 <= _ROWS else long).append(i)
    # Short texts go together, the shortest first, so that little is padded; what pads on the right changes nothing on
    # the left.
    while short:
        count = next((n for n in range(len(short), 1, -1) if n * (len(sequences[short[n - 1]]) - 1) <= 4 * _ROWS), 1)
        group, short = short[:count], short[count:]
        batch = np.zeros((count, len(sequences[group[-1]]) - 1), np.int64)
        for row, i in zip(batch, group, strict=True):
            row[: len(sequences[i]) - 1] = sequences[i][:-1]
        yield [(i, first) for i in group], model(batch)[:, first:]
    for i in long:
        yield from _windows(model, sequences[i], i, first, stride)
