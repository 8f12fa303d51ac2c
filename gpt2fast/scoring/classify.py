"""Labels of texts and tokens, by the heads that fine-tuned classifiers have."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import listed
from gpt2fast.checkpoint.heads import LabelHead
from gpt2fast.errors import InputError, NonFiniteError
from gpt2fast.kernels import elementwise
from gpt2fast.model.pairing import shared_vocabulary
from gpt2fast.scheduler import STATES, Model, Need, Sequence
from gpt2fast.scoring.score import measured
from gpt2fast.scoring.spans import Span
from gpt2fast.scoring.texts import Scorable, as_scorable, text_of_ids
from gpt2fast.tokenizer.encoding import Tokenizer
from gpt2fast.tokenizer.special import allowed_by

__all__ = ["Classification", "TokenLabel", "classify"]


@dataclass(frozen=True)
class Classification:
    """What a text, or a token, is, and how sure that is."""

    #: The likeliest label.
    label: str
    #: Its probability; NaN of a regression.
    probability: float
    #: The probability of each label, by label; of a model for several labels at once each on its own.
    probabilities: dict[str, float]
    #: What the head gives, float32 (labels,); of a regression these are the values.
    logits: npt.NDArray[np.float32] = field(compare=False, repr=False)


@dataclass(frozen=True)
class TokenLabel(Classification):
    """A token's label."""

    #: The token's id, its part of the text, and where that is, in characters (of bytes: bytes).
    id: int = 0
    text: str | bytes = ""
    span: Span = (0, 0)


def classify(
    model: Model,
    tokenizer: Tokenizer,
    head: LabelHead,
    texts: List[Scorable],
    *,
    truncate: bool = False,
    allow_special: bool = False,
) -> list[Classification] | list[list[TokenLabel]]:
    """The labels of texts, or of their tokens; see `LanguageModel.classify`, which explains the arguments."""
    n_vocab, n_ctx = shared_vocabulary(model, tokenizer), model.config.n_ctx
    allowed = allowed_by(allow_special)
    read = []
    for i, given in enumerate(listed("texts", texts, "a list of texts")):
        text = as_scorable(given, f"texts[{i}]")
        if isinstance(text, list):
            ids = text
            text, spans = text_of_ids(tokenizer, ids)
        else:
            ids, spans = tokenizer.encode_with_offsets(text, allowed_special=allowed)
        if not ids:
            raise InputError(f"texts[{i}] is empty; there is no token to label it by")
        if len(ids) > n_ctx and not truncate:
            raise InputError(
                f"texts[{i}] has {len(ids)} tokens; the model's context is {n_ctx} (truncate=True takes the first)"
            )
        ids = ids[:n_ctx]
        if max(ids) >= n_vocab:
            raise InputError(f"texts[{i}] has token {max(ids)}; the model's vocabulary has {n_vocab} tokens")
        first = 0
        if head.of == "text":
            first = next((place for place in reversed(range(len(ids))) if ids[place] != head.pad_token_id), 0)
            ids = ids[: first + 1]
        read.append((text, spans, _LabelledSequence(ids, first)))
    for _ in measured(model, n_vocab, [[sequence] for _, _, sequence in read]):
        pass
    if head.of == "text":
        return [Classification(*_labelled(head, sequence.states[0])) for _, _, sequence in read]
    return [
        [
            TokenLabel(*_labelled(head, state), id=id, text=text[slice(*span)], span=span)
            for state, id, span in zip(sequence.states, sequence.ids, spans, strict=False)
        ]
        for text, spans, sequence in read
    ]


class _LabelledSequence(Sequence):
    """A text whose final hidden states are wanted after its tokens from place `first` on."""

    background = True

    def __init__(self, ids: list[int], first: int) -> None:
        super().__init__(ids)
        self._next = first
        self._parts: list[npt.NDArray[np.float32]] = []

    @property
    def next_output(self) -> int:
        return self._next

    @property
    def complete(self) -> bool:
        return self._next == len(self.ids)

    @property
    def states(self) -> npt.NDArray[np.float32]:
        """The hidden states so far, float32 (n, n_embd)."""
        return np.concatenate(self._parts)

    def need(self, start: int, stop: int) -> Need:
        return STATES

    def take(self, values: Any) -> None:
        if not np.isfinite(values).all():
            raise NonFiniteError("the hidden states are not finite")
        self._parts.append(np.array(values))
        self._next += len(values)


def _labelled(
    head: LabelHead, state: npt.NDArray[np.float32]
) -> tuple[str, float, dict[str, float], npt.NDArray[np.float32]]:
    """The fields of a `Classification` for a final hidden state (n_embd,)."""
    # Sums of the same bits on every machine, which a matrix product of NumPy's is not.
    products = head.weight.astype(np.float64) * state.astype(np.float64)
    sums = np.array([elementwise.total(np.ascontiguousarray(row)) for row in products]) + head.bias
    if head.problem_type == "regression":
        values = np.full(len(sums), np.nan)
    elif head.problem_type == "multi_label_classification":
        values = 1 / (1 + elementwise.exp(-sums))
    else:
        parts = elementwise.exp(sums - sums.max())
        values = parts / elementwise.total(parts)
    best = int(sums.argmax())
    probabilities = dict(zip(head.labels, values.tolist(), strict=True))
    return head.labels[best], float(values[best]), probabilities, sums.astype(np.float32)
