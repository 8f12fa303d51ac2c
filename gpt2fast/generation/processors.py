"""Functions of the caller's that take part in a generation: they change logits, name the ids that may follow, or say
that a text has ended.

Each is called with the ids of prompt and text so far, and has to be a function of these alone: a draft's tokens are
tried and taken back, and a text that slides or is searched for with beams is not asked about from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import Error, InputTypeError, ProcessorError

__all__ = ["AllowedTokens", "LogitsProcessor", "StoppingCriterion", "allow_only", "functions", "process", "says_stop"]

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]

#: `(ids, logits) -> logits`: int64 (T,), and float32 (n_vocab,) or, from a beam search or after penalties, float64.
LogitsProcessor = Callable[[Ids, Any], Any]
#: `(prompt, ids) -> ids`: the number of the prompt and int64 (T,), to the ids that may follow.
AllowedTokens = Callable[[int, Ids], Iterable[int]]
#: `(ids, logits) -> bool`: int64 (T,), the new id at its end, and the logits that it was chosen from, None for one that
#: a grammar left no choice about.
StoppingCriterion = Callable[[Ids, Any], Any]


def functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """`value`, a callable, a sequence of callables or None, as a tuple.  Raises InputTypeError where it is neither."""
    if value is None:
        return ()
    found = (value,) if callable(value) else value
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence):
        raise InputTypeError(f"{name} is of type {type(value).__name__}; expected a callable or a list of callables")
    for i, function in enumerate(found):
        if not callable(function):
            raise InputTypeError(f"{name}[{i}] is of type {type(function).__name__}; expected a callable")
    return tuple(found)


def process(processors: Sequence[LogitsProcessor], ids: Sequence[int], logits: Floats) -> Floats:
    """The logits after each of `processors`, which get copies.

    Raises ProcessorError, which names the processor, where one raises or returns something else than logits.

    >>> process([lambda ids, logits: logits + len(ids)], [7, 8], np.array([0.0, 1.0]))
    array([2., 3.])
    """
    seen = np.array(ids, np.int64)
    for processor in processors:
        found = _called("logits_processor", processor, seen.copy(), logits.copy())
        try:
            values = np.asarray(found)
        except Exception:
            values = np.empty(0, object)
        if values.dtype.kind not in "fiu" or values.shape != logits.shape:
            told = f"an array of {values.dtype}, {values.shape}" if values.dtype.kind != "O" else type(found).__name__
            raise _refused("logits_processor", processor, f"returned {told}; expected logits of shape {logits.shape}")
        values = values.astype(np.float64) if values.dtype.kind != "f" else values
        highest = values.max()  # NaN where there is one
        if np.isnan(highest) or highest == np.inf:
            raise _refused("logits_processor", processor, "returned logits with NaN or positive infinity")
        if highest == -np.inf:
            raise _refused("logits_processor", processor, "left no token to choose: every logit is -infinity")
        logits = values
    return logits


def allow_only(function: AllowedTokens, prompt: int, ids: Sequence[int], logits: Floats) -> Floats:
    """A copy of the logits in which only the ids that `function` names are above -infinity.

    Raises ProcessorError where it raises, names no id, or one outside the vocabulary.

    >>> allow_only(lambda prompt, ids: [2], 0, [7], np.array([0.0, 1.0, 2.0]))
    array([-inf, -inf,   2.])
    """
    found = _called("prefix_allowed_tokens_fn", function, prompt, np.array(ids, np.int64))
    try:
        allowed = np.array(found if isinstance(found, np.ndarray) else list(found))
    except Exception:
        allowed = np.empty(0, object)
    if allowed.size and (allowed.dtype.kind not in "iu" or allowed.ndim != 1):
        raise _refused("prefix_allowed_tokens_fn", function, f"returned {type(found).__name__}; expected a list of ids")
    if not allowed.size:
        told = "no id" if allowed.dtype.kind != "O" else type(found).__name__
        raise _refused("prefix_allowed_tokens_fn", function, f"returned {told}; expected a list with at least one id")
    if allowed.min() < 0 or allowed.max() >= len(logits):
        worst = int(allowed.min() if allowed.min() < 0 else allowed.max())
        raise _refused(
            "prefix_allowed_tokens_fn", function, f"named id {worst}; the vocabulary has ids 0 to {len(logits) - 1}"
        )
    out = np.full_like(logits, -np.inf)
    out[allowed] = logits[allowed]
    return out


def says_stop(criteria: Sequence[StoppingCriterion], ids: Sequence[int], logits: Floats | None) -> bool:
    """Whether one of `criteria` ends the text.  Raises ProcessorError where one raises or says neither yes nor no."""
    seen = np.array(ids, np.int64)
    for criterion in criteria:
        found = _called("stopping_criteria", criterion, seen.copy(), None if logits is None else logits.copy())
        try:
            stop = bool(found)
        except Exception:
            told = f"returned {type(found).__name__}; expected True or False"
            raise _refused("stopping_criteria", criterion, told) from None
        if stop:
            return True
    return False


def _called(kind: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        said = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        raise ProcessorError(f"{kind} {_name(function)} raised {said}") from error


def _refused(kind: str, function: Callable[..., Any], told: str) -> ProcessorError:
    return ProcessorError(f"{kind} {_name(function)} {told}")


def _name(function: Callable[..., Any]) -> str:
    """What the function is called, or of an object with `__call__` its class."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__
