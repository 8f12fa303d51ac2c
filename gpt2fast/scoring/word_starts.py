"""Where words begin: the correction of words' probabilities in a model whose tokens carry the space before a word.

The tokens of a word say that it begins, by the space of the first one, but not that it ends: that is said by the space
of the word after it.  The probability of a word, as opposed to that of its tokens, moves that share from the next word
to where it belongs: log p(word) = the sum of its tokens' log-probabilities + log P(a word begins after it) - log P(a
word begins where it does).  Pimentel & Meister 2024, "How to Compute the Probability of a Word", arXiv:2406.14561; Oh &
Schuler 2024, "Leading Whitespaces of Language Models' Subword Vocabulary Pose a Confound for Calculating Word
Probabilities", arXiv:2406.10851.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError, UnknownTokenError
from gpt2fast.kernels import elementwise
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["BowCorrection", "Starts", "bow_kind", "corrections", "log_shares", "word_starting_ids"]

Floats = npt.NDArray[np.float64]

#: True is Pimentel and Meister's definition, "minicons" that of the package minicons.
BowCorrection = bool | Literal["minicons"]


@lru_cache(maxsize=4)
def word_starting_ids(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """The ids of the tokens that begin with a space and are no special tokens."""
    found = []
    for id in range(tokenizer.n_vocab):
        with suppress(UnknownTokenError):  # there may be ids without a token
            if tokenizer.decode_single_token_bytes(id)[:1] == b" " and not tokenizer.is_special_token(id):
                found.append(id)
    return np.array(found, np.int64)


def log_shares(logits: npt.NDArray[np.float32], groups: List[npt.NDArray[np.int64]]) -> Floats:
    """The natural logarithm of the probability that each of `groups` of ids has together, in each row of `logits` (T,
    n_vocab): float64 (T, groups).  A group without ids has -inf; a row that is not finite has NaN.

    >>> log_shares(np.zeros((1, 4), np.float32), [np.array([0, 1]), np.array([2])])
    array([[-0.69314718, -1.38629436]])
    """
    found = np.empty((len(logits), len(groups)))
    for row, out in zip(np.asarray(logits, np.float64), found, strict=True):
        highest = row.max()
        if not np.isfinite(highest):
            out[:] = np.nan
            continue
        parts = elementwise.exp(row - highest)
        sums = np.array([elementwise.total(parts[group]) for group in groups])
        out[:] = -np.inf
        out[sums > 0] = elementwise.log(sums[sums > 0])
        out -= elementwise.log(np.array([elementwise.total(parts)]))
    return found


@dataclass(frozen=True, eq=False)
class Starts:
    """How probable it is that a word begins before each of a text's T tokens and after the last one."""

    #: Natural logarithms of the probabilities that a token comes that begins a word, and that end-of-text comes:
    #: float64 (T + 1, 2).
    shares: Floats
    #: Which tokens begin with a space, bool (T,).
    begins: npt.NDArray[np.bool_]
    #: Which tokens are end-of-text, bool (T,).
    ends: npt.NDArray[np.bool_]
    #: Whether the first token begins a text, and is not the continuation of one.
    of_text: bool


def bow_kind(value: Any) -> BowCorrection:
    """The kind of correction that was asked for.  Raises InputError where it is none."""
    if isinstance(value, str) and value == "minicons":
        return "minicons"
    if not isinstance(value, (bool, np.bool_, int)) or value not in (0, 1):
        raise InputError(f"bow_correction is {value!r}; expected True, False or 'minicons'")
    return bool(value)


def corrections(starts: Starts, kind: BowCorrection) -> Floats:
    """What is to be added to the log-probabilities of a text's tokens so that their sums over words are those of words:
    float64 (T,), natural logarithms.

    A token before a border of words, or at the end, gets the logarithm of the probability that a word or the end of the
    text follows; one after a border loses it.  With `kind` True that is as in Pimentel and Meister's package
    wordsprobability: the text's end counts as a beginning, and the text's first word, which has no space, loses the
    logarithm of the probability that no space comes.  "minicons" is as in minicons: neither.  A border is where a token
    begins with a space: other white space, as between lines, is none.

    """
    count = len(starts.begins)
    found = np.zeros(count)
    if not count:
        return found
    shares = elementwise.exp(starts.shares)
    starting = shares[:, 0] + (shares[:, 1] if kind is True else 0.0)
    with np.errstate(divide="ignore"):
        borders = np.where(starting > 0, elementwise.log(np.maximum(starting, np.finfo(float).tiny)), -np.inf)
    before = starts.begins if kind == "minicons" else starts.begins | starts.ends
    after = np.append(before[1:], True)
    if kind == "minicons":
        before = np.append(False, before[1:])
    elif starts.of_text and not before[0]:
        found[0] -= float(elementwise.log(np.array([1.0 - shares[0, 0]]))[0])
    found[after] += borders[1:][after]
    found[before] -= borders[:-1][before]
    return found
