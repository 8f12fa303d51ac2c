"""Binoculars: how surprising a text is to one model, measured by how surprising that model is to another.

Two models of one vocabulary read the text, the performer M and the observer O.  The log-perplexity is the mean
surprisal of the text's tokens x_t under the performer, the log-cross-perplexity the mean cross-entropy of both:

    log PPL   = -1/T sum_t log M(x_t | x_<t)
    log X-PPL = -1/T sum_t sum_v O(v | x_<t) log M(v | x_<t)

The ratio of both is low where a text surprises no more than what a model would write in its place.  Hans et al. 2024,
"Spotting LLMs With Binoculars", arXiv:2401.12070; which of the two models is where follows their published program, in
which the observer is a base model and the performer one that was tuned from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.pairing import shared_vocabulary
from gpt2fast.scheduler import Model
from gpt2fast.scoring.observed import ObservedModel
from gpt2fast.scoring.score import measured, score_sequences
from gpt2fast.scoring.texts import Scorable
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Binoculars", "binoculars", "check_observer"]

_LN2 = 0.6931471805599453


class Pair(Protocol):
    """A network and its tokenizer: `gpt2fast.LanguageModel`."""

    @property
    def model(self) -> Model: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True)
class Binoculars:
    """What two models make of a text; all NaN of a text without tokens."""

    #: How many tokens of the text were measured.
    num_tokens: int
    #: The mean surprisal of a token under the performer, in bits: log2 of the perplexity.
    surprisal: float
    #: The mean cross-entropy of the performer's distributions under the observer's, in bits: log2 of the
    #: cross-perplexity.
    cross_entropy: float

    @property
    def ratio(self) -> float:
        """The Binoculars score: `surprisal` / `cross_entropy`.  Low where the text is likely to be a model's; where the
        border is depends on the models, and has to be measured on texts whose authors are known."""
        return self.surprisal / self.cross_entropy if self.cross_entropy else math.nan


def binoculars(
    performer: Pair,
    observer: Pair,
    texts: List[Scorable],
    *,
    context: Scorable = "",
    stride: int | None = None,
    bos: bool = True,
    allow_special: bool = False,
) -> list[Binoculars]:
    """The Binoculars score of each of `texts`, in their order, by two models of one vocabulary.

    With p the observer's distribution and q the performer's before each token x_t of T: surprisal = -1/T sum log2
    q(x_t), cross_entropy = -1/T sum_t sum_v p(v) log2 q(v), ratio = surprisal / cross_entropy (Hans et al. 2024,
    arXiv:2401.12070).  The first token comes after `context` and the token that texts begin with, as in
    `LanguageModel.score`; `bos=False` leaves that out, and the first token's numbers with it, as the paper's program
    does.  Texts beyond the context, the shorter one of both, are read in windows that go on by `stride` tokens.  Both
    models read the text at the same time, and only a few rows of their logits are in memory.

    Raises InputError where the tokenizers are not the same, and as `LanguageModel.score_batch` does.

    >>> import gpt2fast
    >>> from gpt2fast.scoring import binoculars
    >>> lm = gpt2fast.load("demo")
    >>> observer = gpt2fast.load("demo", dtype="int8")  # for real work: a base model, and one tuned from it
    >>> texts = ["Once upon a time there was a king", "He bought a second-hand laptop online"]
    >>> [round(found.ratio, 2) for found in binoculars(lm, observer, texts)]
    [0.79, 1.54]
    """
    if isinstance(texts, (str, bytes)):
        raise InputTypeError(f"texts is one {type(texts).__name__}; expected a list of texts")
    check_observer(performer, observer)
    tokenizer = performer.tokenizer
    model = ObservedModel(performer.model, observer.model)
    found = score_sequences(
        model, tokenizer, texts, context=context, stride=stride, bos=bos, allow_special=allow_special
    )
    for _ in measured(model, shared_vocabulary(model, tokenizer), [[text.sequence for text in found]]):
        pass
    return [_of(text.sequence.measures) for text in found]


def check_observer(performer: Pair, observer: Pair) -> None:
    """Raises InputTypeError for what is no language model, InputError where the tokenizers are not the same."""
    for name, lm in (("performer", performer), ("observer", observer)):
        if not (hasattr(lm, "model") and hasattr(lm, "tokenizer")):
            raise InputTypeError(f"{name} is of type {type(lm).__name__}; expected a LanguageModel")
    own, other = performer.tokenizer, observer.tokenizer
    if own is not other and own.token_byte_values() != other.token_byte_values():
        raise InputError(
            f"the observer's tokenizer has {other.n_vocab:,} tokens, the performer's {own.n_vocab:,}, and they are not "
            "the same: their distributions cannot be compared"
        )


def _of(measures: npt.NDArray[np.float64]) -> Binoculars:
    count = len(measures)
    if not count:
        return Binoculars(0, math.nan, math.nan)
    return Binoculars(count, -math.fsum(measures[:, 0]) / _LN2 / count, math.fsum(measures[:, 3]) / count)
