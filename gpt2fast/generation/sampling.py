"""Sampling: one token id chosen from one row of logits.

The filters come in the order that Hugging Face's `generate` has them: bias, repetition penalty (after which come
OpenAI's two), repeated n-grams, banned ids, temperature, top-k, top-p, min-p.  Each looks at what the ones before it
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import ids_of, listed, real_number, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.kernels import elementwise
from gpt2fast.model.draw import Draw, choose, highest, kept, sample_key
from gpt2fast.model.nonfinite import not_finite

__all__ = [
    "Sampling",
    "highest",
    "log_probabilities",
    "penalize_repetition",
    "repeated_ngrams",
    "sample_key",
]

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen from logits.  Every default but the temperature's and top-k's leaves the logits alone.

    Raises InputError or InputTypeError, naming the field, where a value makes no sense.

    >>> greedy = Sampling(temperature=0)
    >>> greedy.choose([0.5, 2.0, 1.0])
    1
    """

    #: Logits are divided by it: under 1 plays safe, over 1 is daring.  0 is greedy: the highest logit, and of equal
    #: ones the lowest id.
    temperature: float = 0.8
    #: Keep the `top_k` highest logits, of equal ones the lowest ids; 0 keeps all.
    top_k: int = 40
    #: Keep the fewest tokens whose probabilities together reach `top_p`, at least one (Holtzman et al. 2019,
    #: arXiv:1904.09751).
    top_p: float = 1.0
    #: Keep tokens at least `min_p` times as probable as the most probable one (Nguyen et al. 2024, arXiv:2407.01082).
    min_p: float = 0.0
    #: Tokens of the prompt and the text so far: positive logits are divided by it, negative ones multiplied, once
    #: however often the token was there (Keskar et al. 2019, arXiv:1909.05858).
    repetition_penalty: float = 1.0
    #: Taken from the logits of the new tokens so far, the prompt's not among them: `presence_penalty` once, and
    #: `frequency_penalty` for every time that the token was there.  OpenAI's own are from -2 to 2.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: No run of this many tokens comes twice, prompt included; 0 allows all.
    no_repeat_ngram_size: int = 0
    #: Added to the logits of these ids.
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    #: Ids that are never chosen.
    banned_ids: Sequence[int] = ()
    #: Runs of ids that never come: the last id of one is not chosen where the text, prompt included, ends with the
    #: others.  A word has several: at the beginning of a text, after a space, with a capital.
    banned_sequences: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        self._set("temperature", real_number("temperature", self.temperature, least=0))
        self._set("top_k", 0 if self.top_k is None else whole_number("top_k", self.top_k))
        self._set("top_p", real_number("top_p", self.top_p, least=0, most=1))
        self._set("min_p", real_number("min_p", self.min_p, least=0, most=1))
        self._set("repetition_penalty", _penalty(self.repetition_penalty))
        for name in ("presence_penalty", "frequency_penalty"):
            self._set(name, real_number(name, getattr(self, name), least=-1e30, most=1e30))
        self._set("no_repeat_ngram_size", whole_number("no_repeat_ngram_size", self.no_repeat_ngram_size))
        if not isinstance(self.logit_bias, Mapping):
            raise InputTypeError(f"logit_bias is {self.logit_bias!r}; expected a mapping from ids to numbers")
        self._set(
            "logit_bias",
            {
                whole_number("an id of logit_bias", i): real_number(f"logit_bias[{i}]", b, least=-1e30, most=1e30)
                for i, b in self.logit_bias.items()
            },
        )
        if isinstance(self.banned_ids, (str, bytes)) or not isinstance(self.banned_ids, (Sequence, np.ndarray)):
            raise InputTypeError(f"banned_ids is {self.banned_ids!r}; expected a sequence of ids")
        self._set("banned_ids", tuple(whole_number("an id of banned_ids", i) for i in self.banned_ids))
        self._set("banned_sequences", _sequences(self.banned_sequences))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def check_ids(self, n_vocab: int) -> None:
        """Raise InputError where a field names an id that is not under `n_vocab`."""
        n_vocab = whole_number("n_vocab", n_vocab)
        for name, ids in self._named_ids().items():
            for i in ids:
                if i >= n_vocab:
                    raise InputError(f"{name} names id {i}, which is outside the vocabulary of {n_vocab} tokens")

    def _named_ids(self) -> dict[str, Iterable[int]]:
        sequences = [i for sequence in self.banned_sequences for i in sequence]
        return {"logit_bias": self.logit_bias, "banned_ids": self.banned_ids, "banned_sequences": sequences}

    def choose(
        self,
        logits: npt.ArrayLike,
        seen: Sequence[int] = (),
        *,
        key: int | None = None,
        banned: Sequence[int] = (),
        prompt: int = 0,
        process: Callable[[Floats], Floats] | None = None,
    ) -> int:
        """The id of the chosen token; `logits` (n_vocab,) stay as they are.

        `seen` are the ids of prompt and text so far, the first `prompt` of them the prompt's, `banned` ids to ban
        besides `banned_ids`; `process` gets what penalties and bans made of the logits, and returns others.  `key`, 64
        random bits as `sample_key` makes them, is needed where the temperature is not 0; the same key makes the same
        choice.  Raises InputError where a logit is NaN or positive infinity, which means that the weights are damaged
        or overflow, and where no token is left to choose.

        >>> sampling, seen = Sampling(temperature=1.0), [7, 8]
        >>> sampling.choose([1.0, 2.0, 1.5], seen, key=sample_key(seed=5, position=len(seen)))
        1
        """
        values = self._processed(_checked(logits), seen, banned, prompt)
        key = None if key is None else whole_number("key", key, most=2**64 - 1)
        if process is not None:
            values = process(values)
        if self.temperature and key is None:
            raise InputError(f"temperature is {self.temperature:g}; a key is needed, such as sample_key(seed) makes")
        return choose(values, self.draw(len(values), key or 0))

    def draw(self, n_vocab: int, key: int) -> Draw:
        """The draw of `choose` from `n_vocab` logits, which leaves out what changes logits first."""
        n_vocab = whole_number("n_vocab", n_vocab)
        return Draw(n_vocab, key, self.temperature, min(self.top_k, n_vocab), self.top_p, self.min_p)

    def probabilities(
        self, logits: npt.ArrayLike, seen: Sequence[int] = (), *, banned: Sequence[int] = (), prompt: int = 0
    ) -> Floats:
        """The float64 probabilities (n_vocab,) with which `choose` takes each token.  Raises as `choose` does.

        >>> Sampling(temperature=1, top_k=2).probabilities([0.0, 0.0, -1.0])
        array([0.5, 0.5, 0. ])
        """
        values = self._processed(_checked(logits), seen, banned, prompt)
        out = np.zeros(len(values))
        if self.temperature == 0:
            out[values.argmax()] = 1
        else:
            ids, weights = kept(values, self.draw(len(values), 0))
            out[ids] = weights / elementwise.total(weights)
        return out

    @property
    def plain(self) -> bool:
        """Whether a choice depends on nothing of the text so far, and no logit is changed first."""
        return not (
            self.logit_bias
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram_size
            or self.banned_ids
            or self.banned_sequences
        )

    def _processed(self, logits: Floats, seen: Sequence[int], banned: Sequence[int], prompt: int) -> Floats:
        """The logits after everything that does not depend on the temperature; a copy only where something changes."""
        values = logits
        if not self.plain:
            self.check_ids(len(values))
            seen, prompt = ids_of("seen", seen, len(values)), whole_number("prompt", prompt)
        if self.logit_bias:
            values = values.copy()
            values[list(self.logit_bias)] += np.fromiter(self.logit_bias.values(), values.dtype)
        if self.repetition_penalty != 1 and len(seen):
            values = penalize_repetition(values, seen, self.repetition_penalty)
        if (self.presence_penalty or self.frequency_penalty) and len(seen) > prompt:
            ids, counts = np.unique(np.asarray(seen[prompt:], np.int64), return_counts=True)
            values = values.astype(np.float64)  # always a copy
            values[ids] -= self.presence_penalty + self.frequency_penalty * counts
        unwanted = self.unwanted(seen, ids_of("banned", banned, len(values)).tolist() if len(banned) else ())
        if unwanted:
            values = values.copy()
            values[unwanted] = -np.inf
            if values.max() == -np.inf:
                raise InputError("no token is left to choose: each one is banned or has a logit of -infinity")
        return values

    def unwanted(self, seen: Sequence[int], banned: Sequence[int] = ()) -> list[int]:
        """The ids that may not come after `seen`: `banned` ones, and those that repeated n-grams, `banned_ids` and
        `banned_sequences` exclude."""
        if self.no_repeat_ngram_size or self.banned_sequences:
            seen = ids_of("seen", seen)
        repeated = repeated_ngrams(seen, self.no_repeat_ngram_size) if self.no_repeat_ngram_size else []
        ended = [
            last
            for *others, last in self.banned_sequences
            if not others or [int(i) for i in seen[-len(others) :]] == others
        ]
        return [*repeated, *ended, *self.banned_ids, *listed("banned", banned, "token ids")]


def penalize_repetition(logits: Floats, seen: Sequence[int] | Ids, penalty: float) -> Floats:
    """A float64 copy of the logits with those of `seen` ids divided by `penalty` where positive, multiplied where not.

    Raises InputError where the penalty is not a positive number.

    >>> penalize_repetition(np.array([4.0, -4.0, 1.0]), [0, 1, 1], 2.0)
    array([ 2., -8.,  1.])
    """
    penalty = _penalty(penalty)
    values = _real(logits).astype(np.float64)
    ids = np.unique(ids_of("seen", seen, len(values)))
    values[ids] = np.where(values[ids] > 0, values[ids] / penalty, values[ids] * penalty)
    return values


def repeated_ngrams(seen: Sequence[int] | Ids, size: int) -> list[int]:
    """The ids that would complete a run of `size` ids that `seen` has already.

    >>> repeated_ngrams([1, 2, 3, 1, 2], 3)
    [3]
    """
    ids, size = ids_of("seen", seen), whole_number("size", size, least=1)
    if len(ids) < size:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    begun = ids[len(ids) - size + 1 :]
    return [int(i) for i in np.unique(windows[(windows[:, :-1] == begun).all(axis=1), -1])]


def log_probabilities(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The float64 natural logarithms of the softmax of `logits` (n_vocab,), before any filter and temperature.

    Raises InputError where a logit is NaN or positive infinity.
    """
    values = _checked(logits).astype(np.float64)
    values -= values.max()
    result: npt.NDArray[np.float64] = values - elementwise.log(np.array(elementwise.total(elementwise.exp(values))))
    return result


def _sequences(values: Any) -> tuple[tuple[int, ...], ...]:
    name = "banned_sequences"
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
        raise InputTypeError(f"{name} is {values!r}; expected a sequence of sequences of ids")
    for value in values:
        if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
            raise InputTypeError(f"{name} holds {value!r}; expected a sequence of ids")
        if not len(value):
            raise InputError(f"{name} holds an empty sequence; it would ban nothing or everything")
    return tuple(tuple(whole_number(f"an id of {name}", i) for i in value) for value in values)


def _penalty(value: Any) -> float:
    return real_number("repetition_penalty", value, least=1e-6, most=1e6)


def _checked(logits: npt.ArrayLike) -> Floats:
    values = _real(logits)
    # One pass decides: the maximum of anything with a NaN is NaN.
    if not np.isfinite(values.max()):
        raise not_finite(values)
    return values


def _real(logits: npt.ArrayLike) -> Floats:
    try:
        values = np.asarray(logits)
    except (ValueError, OverflowError):  # rows of different lengths
        raise InputError("logits are no row of numbers") from None
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.dtype.kind != "f":
        raise InputTypeError(f"logits are of type {values.dtype}; expected real numbers")
    if values.ndim != 1 or not values.size:
        raise InputError(f"logits have shape {values.shape}; expected one dimension with at least one logit")
    return values
