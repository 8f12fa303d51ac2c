"""Scoring: how probable a text is under the model, token by token.

Each token's logits are looked at where they are made, a few rows at a time, so memory does not grow with the text.
What all texts of a call begin with, be it only end-of-text, is read once; each goes on from a copy of it, which is
exact, as the network's results are the same bit for bit however a text was cut.

Performance notes (30 November 2026, two cores of a busy AMD EPYC, medians):
- The measures of 64 rows of 50,257 logits take 20 ms (best 9) row by row in two buffers that stay in the cache, 31 ms
  (best 23) by operations on all rows at once.  With double precision for the values, too, these took twice as long.
- 64 texts of 9 tokens, demo model: 318 ms together, 797 ms one by one.
- Four continuations of a context of 397 tokens, demo model: 318 ms together, 759 ms one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError
from gpt2fast.model.nonfinite import located
from gpt2fast.model.pairing import end_of_text, shared_vocabulary
from gpt2fast.scoring.notebook import render_fragment
from gpt2fast.scoring.spans import Punctuation, Span, tokens_of_spans, words

__all__ = ["Score", "SpanScore", "TokenScore", "score_choices", "score_texts"]

# Rows of logits that exist at the same time: with 50,257 columns, 64 are 13 MB.
_ROWS = 64
# Tokens that a cache of many short texts has room for: its address space is reserved, though memory comes as needed.
_CACHED = 8192

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


@dataclass(frozen=True)
class SpanScore:
    """A word, or another part of a scored text."""

    text: str | bytes
    #: Where it is in the text: from this character (of bytes: byte) to before that one.
    span: tuple[int, int]
    #: The sum of its tokens' log-probabilities, natural logarithms.
    log_probability: float
    #: How many tokens count to it.
    num_tokens: int
    #: Whether these tokens and the span have the same borders, white space aside.  Where not, a token counts whole to
    #: the span that it begins in.
    exact: bool

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

    def _repr_html_(self) -> str:
        return render_fragment(((token.text, token.surprisal) for token in self.tokens), repr(self).strip("<>"))

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
    def num_characters(self) -> int:
        """The length of the text in characters; of bytes, how many bytes do not continue a character of UTF-8."""
        return len(self.text) if isinstance(self.text, str) else sum(byte & 0xC0 != 0x80 for byte in self.text)

    @property
    def is_greedy(self) -> bool:
        """Whether no token had a more probable one beside it: greedy generation could have written this text."""
        return bool((self.ranks == 1).all())

    def by_word(self, punctuation: Punctuation = "attached") -> list[SpanScore]:
        """The surprisals of words, which are what white space separates: a `SpanScore` for each.

        A word's surprisal includes that of the space before it, which is a part of its first token; white space after
        the last word counts to none.  Punctuation is "attached" to its word, or "separate": then it is an item of its
        own at a word's beginning or end, and stays inside a word as in "don't".

        >>> import gpt2fast
        >>> score = gpt2fast.load("demo").score("Once upon a time, there was a king.")
        >>> [(word.text, round(word.surprisal, 1)) for word in score.by_word()][3:]
        [('time,', 5.7), ('there', 4.3), ('was', 1.7), ('a', 1.1), ('king.', 11.6)]
        >>> [word.text for word in score.by_word("separate")][-2:]
        ['king', '.']
        """
        return self.by_spans(words(self.text, punctuation))

    def by_spans(self, spans: Sequence[Span]) -> list[SpanScore]:
        """The surprisals of parts of the text, given as (start, end) in characters, of bytes in bytes: a `SpanScore`
        for each, sentences, regions of interest or another tokenizer's words.

        A token counts, whole, to the span that holds its first character that is not white space; a token of white
        space alone goes with the one that follows.  Where a token crosses a span's border, `exact` is False.  Raises
        InputTypeError or InputError for what is no span of the text.

        >>> import gpt2fast
        >>> score = gpt2fast.load("demo").score("Once upon a time there was a king.")
        >>> [(part.text, part.num_tokens, part.exact) for part in score.by_spans([(0, 16), (17, 33)])]
        [('Once upon a time', 4, True), ('there was a king', 4, True)]
        """
        return [
            SpanScore(
                self.text[start:end], (start, end), float(self.log_probabilities[first:last].sum()), last - first, exact
            )
            for (start, end), (first, last, exact) in zip(
                spans, tokens_of_spans(self.text, self.spans, spans), strict=True
            )
        ]

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
    bos: bool = True,
) -> list[Score]:
    """The scores of `texts`, in their order, each after `context`, and that after end-of-text.

    Without `bos` the end-of-text before the context is left out, where the context is not empty.

    A text beyond the model's context is read in windows, each `stride` tokens further on than the last one (default:
    half the context), so that every token sees at least the context less `stride` tokens before it.

    Raises InputTypeError for what is no text, and InputError where a text cannot be scored: a lone surrogate, no
    end-of-text to begin with, logits that are not finite.
    """
    n_ctx: int = model.config.n_ctx
    stride = max(n_ctx // 2, 1) if stride is None else whole_number("stride", stride, least=1)
    if stride > n_ctx:
        raise InputError(f"stride is {stride}; the model's context is {n_ctx} tokens")
    begin = tokenizer.encode_ordinary(_checked(context, "context"))
    if bos or not begin:
        eos = end_of_text(model, tokenizer)
        if eos is None:
            raise InputError("neither configuration nor tokenizer has an end-of-text for a text to come after")
        begin = [eos, *begin]
    encoded = [tokenizer.encode_with_offsets(_checked(text, f"texts[{i}]")) for i, text in enumerate(texts)]
    n_vocab = shared_vocabulary(model, tokenizer)
    for i, (ids, _) in enumerate(encoded):
        if max(begin + ids) >= n_vocab:
            raise InputError(f"texts[{i}] has token {max(begin + ids)}; the model's vocabulary has {n_vocab} tokens")
    measured = _measured(model, begin, [np.array(ids, np.int64) for ids, _ in encoded], stride, n_vocab)
    return [
        Score(
            text=text,
            ids=np.array(ids, np.int64),
            spans=np.array(spans, np.int64).reshape(-1, 2),
            log_probabilities=measures[:, 0],
            ranks=measures[:, 1].astype(np.int64),
            entropies=measures[:, 2],
        )
        for text, (ids, spans), measures in zip(texts, encoded, measured, strict=True)
    ]


def score_choices(
    model: Any, tokenizer: Any, context: str | bytes, choices: Sequence[str | bytes], *, bos: bool = True
) -> list[Score]:
    """The scores of `choices` as continuations of `context`, in their order.

    White space at the context's end goes to the choices, as GPT-2's tokens have it.  Raises as `score_texts` does.
    """
    _checked(context, "context")
    for i, choice in enumerate(choices):
        if type(_checked(choice, f"choices[{i}]")) is not type(context):
            raise InputTypeError(
                f"choices[{i}] is of type {type(choice).__name__}, context of type {type(context).__name__}"
            )
        if not choice:
            raise InputError(f"choices[{i}] is empty")
    stem = context.rstrip()
    space: Any = context[len(stem) :]
    return score_texts(model, tokenizer, [space + choice for choice in choices], context=stem, bos=bos)


class _Beginning:
    """A cache whose row 0 holds what all texts begin with, less the last token, whose logits are wanted every time."""

    def __init__(self, model: Any, begin: Sequence[int], rows: int, capacity: int) -> None:
        self._model = model
        self.ids = np.array(begin[:-1], np.int64)
        #: Rows 1 to `rows` are for texts.
        self.cache = model.new_cache(1 + rows, capacity)

    def start(self, row: int) -> None:
        """Let `row` hold the beginning and nothing else."""
        if self.cache.lengths[0] < len(self.ids):
            self._model.extend(self.cache, [0], [self.ids], [0])
        self.cache.copy_row(0, row)


def _measured(model: Any, begin: Sequence[int], texts: Sequence[Ids], stride: int, n_vocab: int) -> list[Floats]:
    """The measures of the tokens of each of `texts`, which all come after `begin`."""
    measures: dict[int, Floats] = {}
    # The last token needs no place: nothing is computed from it.
    lengths = [len(begin) - 1 + len(ids) for ids in texts]
    limit = min(len(begin) - 1 + _ROWS, model.config.n_ctx)
    short = [i for i, length in enumerate(lengths) if length <= limit]
    if short:
        groups = list(_groups(short, [len(ids) for ids in texts], max(_CACHED // limit, 1)))
        beginning = _Beginning(model, begin, max(map(len, groups)), max(1, *(lengths[i] for i in short)))
        for group in groups:
            measured = _measure_short(model, beginning, begin[-1], [texts[i] for i in group], n_vocab)
            measures.update(zip(group, measured, strict=True))
    long = [i for i, length in enumerate(lengths) if length > limit]
    if long:
        beginning = _Beginning(model, begin, 1, min(model.config.n_ctx, max(lengths[i] for i in long)))
        for i in long:
            sequence = np.concatenate([np.array(begin, np.int64), texts[i]])
            measures[i] = _measure_long(model, beginning, sequence, len(begin) - 1, stride, n_vocab)
    return [measures[i] for i in range(len(texts))]


def _groups(indices: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The indices in groups of at most `most` that fill a pass of the model."""
    group: list[int] = []
    for i in indices:
        if group and (len(group) == most or sum(lengths[j] for j in group) + lengths[i] > 4 * _ROWS):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _measure_short(model: Any, beginning: _Beginning, before: int, texts: Sequence[Ids], n_vocab: int) -> list[Floats]:
    """The measures of all tokens of each text; all texts, each after the id `before`, go through the model together."""
    rows = [row for row, ids in enumerate(texts, 1) if len(ids)]
    if not rows:
        return [np.empty((0, 3)) for _ in texts]
    for row in rows:
        beginning.start(row)
    fed = [np.append(before, ids[:-1]) for ids in texts]
    logits = model.extend(beginning.cache, rows, [fed[row - 1] for row in rows], [len(texts[row - 1]) for row in rows])
    measured = []
    for read, ids in zip(fed, texts, strict=True):
        read = np.append(beginning.ids, read)
        measured.append(_located_measures(model, read, logits[: len(ids), :n_vocab], ids))
        logits = logits[len(ids) :]
    return measured


def _measure_long(model: Any, beginning: _Beginning, sequence: Ids, first: int, stride: int, n_vocab: int) -> Floats:
    """The measures of all tokens after place `first`, window by window."""
    n_ctx, last = model.config.n_ctx, len(sequence) - 1
    cache = beginning.cache
    parts = [np.empty((0, 3))]
    done = first
    while done < last:
        end = min(max(n_ctx, done + stride), last)
        start = max(end - n_ctx, 0)
        if start == 0:  # only the first window begins where the text does
            beginning.start(1)
        else:
            cache.truncate(1, 0)
            if start < done:
                model.extend(cache, [1], [sequence[start:done]], [0])
        for place in range(done, end, _ROWS):
            ids = sequence[place : min(place + _ROWS, end)]
            logits = model.extend(cache, [1], [ids], [len(ids)])
            after = place + len(ids)
            read, targets = sequence[start:after], sequence[place + 1 : after + 1]
            parts.append(_located_measures(model, read, logits[:, :n_vocab], targets, start))
        done = end
    return np.concatenate(parts)


def _located_measures(model: Any, read: Ids, logits: npt.NDArray[np.float32], targets: Ids, first: int = 0) -> Floats:
    """The measures of `targets`, from logits after the last of the ids `read`, whose first one is number `first` of its
    text: only an error needs these."""
    try:
        return _measures(logits, targets)
    except NonFiniteError as error:
        raise located(error, model, read, first) from None


def _measures(logits: npt.NDArray[np.float32], targets: Ids) -> Floats:
    """The log-probability of each row's target, its rank, and the row's entropy in bits: float64 (T, 3)."""
    out = np.empty((len(targets), 3))
    below, weights = np.empty((2, logits.shape[1]), np.float32)
    for measured, row, target in zip(out, logits, targets, strict=True):
        top, chosen = row.max(), row[target]
        if not np.isfinite(top):
            raise NonFiniteError("the logits are not finite; the weights are damaged or too large for float32")
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
