"""A run of texts with hooks: from ids or from the residual stream of any layer, to the logits or to any other layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, whole_number
from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.forward import checked_ids
from gpt2fast.model.hooks.functions import HookPoint, Reader
from gpt2fast.model.hooks.network import HookedNetwork
from gpt2fast.model.hooks.steps import Steps

__all__ = ["Recorder", "Run", "RunOutput", "Texts"]

Floats = npt.NDArray[np.float32]
#: One array for a text, or texts of the same length; a list of arrays for texts of different lengths.
RunOutput: TypeAlias = Any


@dataclass(frozen=True)
class Texts:
    """What a run begins with: ids, or rows of the residual stream, of each text."""

    texts: list[npt.NDArray[Any]]
    #: The dimensions of the texts that were given: (), for one text, (B,), or None for texts of different lengths.
    shape: tuple[int, ...] | None
    #: Whether they are a residual stream.
    resumes: bool

    @classmethod
    def of(cls, given: Any, config: Config, *, resumes: bool) -> Texts:
        """The texts of ids (T,), (B, T) or a list of (T,); where the run `resumes`, of a residual stream, which has
        n_embd for one more dimension.

        Raises InputError for other shapes, a text of nothing or over the context, and ids outside the vocabulary;
        InputTypeError where they are not integers, or the stream is not of floats.
        """
        dimensions = 2 if resumes else 1

        def checked(part: Any) -> npt.NDArray[Any]:
            return _checked_stream(part, config.n_embd) if resumes else checked_ids(part, config.vocab_size)

        shape: tuple[int, ...] | None = None
        if isinstance(given, (list, tuple)) and len({_length(text) for text in given}) > 1:
            texts = [checked(text) for text in given]
            if any(text.ndim != dimensions for text in texts):
                raise InputError("ids are lists of several depths; expected one list of ids for each text")
        else:
            array = checked(given)
            if array.ndim not in (dimensions, dimensions + 1):
                what = "the residual stream has shape" if resumes else "ids has shape"
                width = ", n_embd" if resumes else ","
                raise InputError(f"{what} {array.shape}; expected (T{width}) or (B, T{width.rstrip(',')})")
            shape = array.shape[: array.ndim - dimensions]
            texts = [array] if shape == () else list(array)
        if not texts or not all(len(text) for text in texts):
            raise InputError("ids has a text of no tokens; expected at least one")
        found = cls(texts, shape, resumes)
        if found.longest > config.n_ctx:
            raise InputError(f"the text would be {found.longest} tokens long; the limit is {config.n_ctx}")
        return found

    @property
    def longest(self) -> int:
        """The tokens of the longest text."""
        return max(map(len, self.texts))

    def joined(self, rows: Floats, counts: Sequence[int], *, last_only: bool) -> RunOutput:
        """`rows` [n, ...], of which each text has as many as `counts` says, in the shape that the texts came in."""
        if self.shape is None:
            parts = np.split(rows, np.cumsum(counts)[:-1])
            return [part[0] for part in parts] if last_only else parts
        tokens = () if last_only else (counts[0],)
        return rows.reshape(*self.shape, *tokens, *rows.shape[1:])


@dataclass(frozen=True)
class Run:
    """Which layers run, and what comes out."""

    first: int
    #: One after the last layer; None for all and the logits.
    last: int | None
    last_only: bool

    @classmethod
    def checked(
        cls, n_layer: int, start_at_layer: int | None, stop_at_layer: int | None, last_only: bool, cache: object
    ) -> Run:
        """The run from one layer to before another, both counted from the end where they are negative.

        Raises InputError for layers that are not there, and where a KV cache would miss some.
        """
        first = 0 if start_at_layer is None else _layer("start_at_layer", start_at_layer, n_layer)
        last = None if stop_at_layer is None else _layer("stop_at_layer", stop_at_layer, n_layer)
        if last is not None and last < first:
            raise InputError(f"stop_at_layer is layer {last}, which is before start_at_layer, {first}")
        if cache is not None and (first, last) != (0, None):
            raise InputError("a run with a KV cache takes all layers; leave start_at_layer and stop_at_layer out")
        return cls(first, last, flag("last_only", last_only))

    def run(self, network: HookedNetwork, cache: Any, texts: Texts, *, num_threads: int) -> RunOutput:
        """The logits of the texts, or the residual stream before layer `last`.

        Raises InputError where there are more or fewer texts than rows of the cache, and InputTypeError for what is no
        cache.
        """
        if not hasattr(cache, "batch"):
            raise InputTypeError(f"cache is of type {type(cache).__name__}; expected what new_cache gives")
        if cache.batch != len(texts.texts):
            raise InputError(f"the cache has {cache.batch} rows, ids {len(texts.texts)}")
        counts = [len(text) for text in texts.texts]
        rows = np.arange(len(counts))
        ends = np.cumsum(counts)
        outputs = ends - 1 if self.last_only else np.arange(ends[-1])
        start = np.concatenate(texts.texts)

        def walk(steps: Steps) -> Any:
            x = start if texts.resumes else steps.embed(start)
            x = steps.layers(x, self.first, network.n_layer if self.last is None else self.last)
            return x[outputs] if self.last is not None else steps.final_norm(x, outputs)

        found = network.run(cache, rows, np.array(counts, np.int64), walk, num_threads=num_threads)
        if self.last is None:
            with network.plain.within():
                found = network.plain.logits(found, num_threads)
        return texts.joined(found, [1] * len(counts) if self.last_only else counts, last_only=self.last_only)


class Recorder:
    """Keeps what it sees at some names, in the order of the run."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[tuple[int, ...], Floats]]] = {}

    def reader(self) -> Reader:
        """The function that sees."""

        def see(array: Floats, point: HookPoint) -> None:
            # Of an array that holds more, only this.
            whole = array.base is None or array.base.nbytes == array.nbytes
            kept = array if whole and array.flags.c_contiguous else np.array(array, order="C")
            self._seen.setdefault(point.name, []).append((point.rows, kept))

        return Reader(see)

    def values(self) -> dict[str, Floats | list[Floats]]:
        """By name an array [B, ...], or a list of arrays, one for each text, where the texts came one by one."""
        return {
            name: seen[0][1] if len(seen) == 1 else [array[0] for _, array in sorted(seen, key=lambda part: part[0])]
            for name, seen in self._seen.items()
        }


def _checked_stream(given: Any, n_embd: int) -> Floats:
    array = np.asarray(given)
    if array.dtype.kind != "f":
        raise InputTypeError(
            f"a run from start_at_layer begins with the residual stream, an array of floats, not of {array.dtype}"
        )
    if array.shape[-1:] != (n_embd,):
        raise InputError(f"the residual stream has shape {array.shape}; expected {n_embd} for its last dimension")
    return np.ascontiguousarray(array, np.float32)


def _length(text: Any) -> int:
    try:
        return len(text)
    except TypeError:
        return -1


def _layer(argument: str, layer: Any, n_layer: int) -> int:
    number = whole_number(argument, layer, least=-n_layer)
    if number > n_layer:
        raise InputError(f"{argument} is {number}; the model has {n_layer} layers, so expected {-n_layer} to {n_layer}")
    return number % n_layer if number < 0 else number
