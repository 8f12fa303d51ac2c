"""Which tokens of many texts a neuron, or a feature of a sparse autoencoder, is strongest at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import each, flag, listed, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.interpretability.sae import SparseAutoencoder
from gpt2fast.model.hooks.names import layer_of, selected
from gpt2fast.model.pairing import beginning
from gpt2fast.scoring.lens import Pair

__all__ = ["ActivatingToken", "MaxActivating", "Search", "max_activating"]

#: Texts and characters of a group, and tokens of a pass; a longer text is a group, a longer window a pass.
_TEXTS, _CHARACTERS, _TOKENS = 64, 1 << 14, 512
#: Tokens of all examples together, 1 GiB.
_MOST = 1 << 28


@dataclass(frozen=True)
class ActivatingToken:
    """A token at which a unit is strong, and the text around it."""

    #: The number of the neuron or feature.
    unit: int
    #: How strong it is there.
    activation: float
    #: The number of the text, and the token's place in it, both counted from 0.
    text: int
    position: int
    before: str
    token: str
    after: str

    def marked(self, left: str = "«", right: str = "»") -> str:
        """The text around the token, with the token between marks.

        >>> ActivatingToken(3, 1.5, 0, 2, "the old", " king", " was").marked("[", "]")
        'the old[ king] was'
        """
        return f"{self.before}{left}{self.token}{right}{self.after}"


class MaxActivating(Mapping[int, "list[ActivatingToken]"]):
    """For each unit, by its number, the tokens that it is strongest at, the strongest first.

    A unit that was not looked for raises an error that is an InputError and a KeyError.
    """

    def __init__(self, found: Mapping[int, list[ActivatingToken]], name: str, texts: int) -> None:
        self._found = dict(found)
        #: The name of the activation.
        self.name = name
        #: How many texts were read.
        self.texts = texts

    def __getitem__(self, unit: int) -> list[ActivatingToken]:
        if unit not in self._found:
            raise _MissingUnit(f"unit {unit!r:.40} was not looked for; there are {len(self)} others")
        return self._found[unit]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<MaxActivating of {len(self):,} units at {self.name!r} over {self.texts:,} texts>"


class _MissingUnit(InputError, KeyError):
    __str__ = Exception.__str__  # KeyError would quote the sentence


def max_activating(
    lm: Pair,
    texts: Iterable[str],
    name: str | SparseAutoencoder,
    k: int = 10,
    *,
    units: Sequence[int] | None = None,
    before: int = 24,
    after: int = 8,
    bos: bool = True,
) -> MaxActivating:
    """The `k` tokens of `texts` at which each neuron of the activation `name` is strongest; of a `SparseAutoencoder` in
    its place, each feature.

    Neurons are those of "blocks.3.mlp.hook_post"; other names with a vector for each token will do, and those by head
    count head by head.  `units` are the numbers of those that are wanted, all by default.  Of each text only the
    strongest token counts, so examples come from different texts; of equal ones the first.  Features are listed where
    they are above 0.  Each example has `before` tokens before it and `after` behind it.

    Texts are taken one by one and forgotten, so there may be any number of them: memory is that of the examples.  Each
    comes after the token that texts begin with, unless `bos` is False; that token does not count.  A text beyond the
    model's context is read in windows, each half a context on, so every token sees at least half a context before it.
    For files, with a job that goes on where it was stopped, see `gpt2fast.corpus.max_activating_files`.

    Raises InputError for a name that does not exist, or has no vector for a token, for units that are not there, and
    an autoencoder of another width than the model; InputTypeError for what is no text.

    >>> import gpt2fast
    >>> texts = ["The old king was tired.", "A little girl sang.", "There was a king who was a giant."]
    >>> found = max_activating(gpt2fast.load("demo"), texts, "blocks.3.mlp.hook_post", k=2, units=[791])
    >>> for example in found[791]:
    ...     print(f"{example.activation:.2f} in text {example.text}: {example.marked()}")
    3.97 in text 2: There was a« king» who was a giant.
    3.88 in text 0: The old« king» was tired.
    """
    search = Search(lm, name, k, units=units, before=before, after=after, bos=bos)
    if isinstance(texts, (str, bytes)):
        raise InputTypeError(f"texts is one {type(texts).__name__}; expected texts")
    group: list[str] = []
    characters = count = 0
    for text in each("texts", texts, "texts"):
        if not isinstance(text, str):
            raise InputTypeError(f"text {count + len(group)} is of type {type(text).__name__}; expected str")
        group.append(text)
        characters += len(text)
        if len(group) == _TEXTS or characters >= _CHARACTERS:
            search.add(group, range(count, count + len(group)))
            count += len(group)
            group, characters = [], 0
    search.add(group, range(count, count + len(group)))
    return search.found(count + len(group))


class Search:
    """The strongest tokens so far.  Arguments and errors are those of `max_activating`."""

    def __init__(
        self,
        lm: Pair,
        name: str | SparseAutoencoder,
        k: int,
        *,
        units: Sequence[int] | None = None,
        before: int = 24,
        after: int = 8,
        bos: bool = True,
    ) -> None:
        self._model, self._tokenizer = lm.model, lm.tokenizer
        config = lm.model.config
        #: The sparse autoencoder whose features are looked for, None where neurons are.
        self.sae = name if isinstance(name, SparseAutoencoder) else None
        if self.sae is None and not isinstance(name, str):
            raise InputTypeError(f"name is of type {type(name).__name__}; expected a name or a SparseAutoencoder")
        #: The name of the activation.
        self.name = name.hook_name if isinstance(name, SparseAutoencoder) else name
        selected("name", self.name, config.n_layer)
        if self.name.endswith(("attn_scores", "hook_pattern")):
            raise InputError(f"name is {self.name!r}, where there is no vector for a token; expected another name")
        width = int(np.prod(self._read([[0]])[0].shape[1:]))
        if self.sae is not None and self.sae.d_in != width:
            raise InputError(f"the autoencoder's d_in is {self.sae.d_in}; {self.name} has {width} numbers a token")
        count = width if self.sae is None else self.sae.d_sae
        chosen = range(count) if units is None else listed("units", units, "a list of whole numbers")
        #: The numbers of the units, in the order in which they were asked for.
        self.units = [whole_number("units", unit, most=count - 1) for unit in dict.fromkeys(chosen)]
        k = whole_number("k", k, least=1)
        self._before, after = whole_number("before", before), whole_number("after", after)
        self._width = self._before + 1 + after
        size = len(self.units) * k * self._width
        if size > _MOST:
            raise InputError(
                f"{len(self.units):,} units with {k:,} examples of {self._width:,} tokens each are more than {_MOST:,} "
                "tokens; name fewer units"
            )
        self._first = beginning(lm.model, lm.tokenizer) if flag("bos", bos) else None
        shape = (len(self.units), k)
        self._columns = None if units is None else np.array(self.units, np.int64)
        least = -np.inf if self.sae is None else 0
        self._values = np.full(shape, least, np.float32)
        self._texts = np.full(shape, -1, np.int64)
        self._places = np.zeros(shape, np.int64)
        self._ids = np.full((*shape, self._width), -1, np.int32)

    def add(self, texts: Sequence[str], numbers: Sequence[int]) -> int:
        """Read the texts, which have these numbers; how many tokens there are."""
        ids = [self._tokenizer.encode_ordinary(text) for text in texts]
        windows = [(i, *window) for i, one in enumerate(ids) for window in self._windows(len(one))]
        first = [] if self._first is None else [self._first]
        best: dict[int, tuple[Any, Any]] = {}
        for group in _passes(windows):
            arrays = self._read([first + ids[i][start:stop] for i, start, stop, _ in group])
            for (i, start, _, known), array in zip(group, arrays, strict=True):
                values = self._of_units(array[len(first) + known - start :])
                places = values.argmax(axis=0)
                top = np.take_along_axis(values, places[None], axis=0)[0]
                places = places + known
                if i in best:
                    old, before = best[i]
                    places, top = np.where(top > old, places, before), np.where(top > old, top, old)
                best[i] = top, places
        for i in sorted(best):
            self._take(numbers[i], ids[i], *best[i])
        return sum(map(len, ids))

    def found(self, texts: int) -> MaxActivating:
        """The strongest tokens of the texts, of which there were so many."""
        return MaxActivating({unit: list(self.examples(unit)) for unit in self.units}, self.name, texts)

    def examples(self, unit: int) -> Iterator[ActivatingToken]:
        """The strongest tokens of a unit, the strongest first."""
        row = self.units.index(unit)
        decode = self._tokenizer.decode
        for rank in np.flatnonzero(self._texts[row] >= 0).tolist():
            ids = self._ids[row, rank]
            around = [ids[: self._before], ids[self._before : self._before + 1], ids[self._before + 1 :]]
            yield ActivatingToken(
                unit,
                float(self._values[row, rank]),
                int(self._texts[row, rank]),
                int(self._places[row, rank]),
                *(decode(part[part >= 0].tolist()) for part in around),
            )

    @property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that was found, in arrays."""
        return {"values": self._values, "texts": self._texts, "places": self._places, "ids": self._ids}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what an equal search had found.  Raises InputError where its arrays are others."""
        for name, own in self.state.items():
            other = state.get(name)
            if other is None or other.shape != own.shape or other.dtype != own.dtype:
                raise InputError(f"{name!r} is not an array {own.dtype} {own.shape}, as this search has it")
        for name, own in self.state.items():
            own[...] = state[name]

    def _windows(self, length: int) -> Iterator[tuple[int, int, int]]:
        """The windows of a text: where each starts and stops, and from which token on it is new."""
        room = self._model.config.n_ctx - (self._first is not None)
        start = known = 0
        while known < length:
            stop = min(start + room, length)
            yield start, stop, known
            start, known = start + max(room // 2, 1), stop

    def _read(self, windows: list[list[int]]) -> Any:
        """The activation of each window, [T, ...]."""
        layer = layer_of(self.name)
        # Nothing above the layer is needed; the final norm comes after all layers.
        stop = None if self.name.startswith("ln_final") else 0 if layer is None else layer + 1
        return self._model.run_with_cache(windows, self.name, stop_at_layer=stop, last_only=True)[1][self.name]

    def _of_units(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The units [T, units] of an activation [T, ...]."""
        values = array.reshape(len(array), -1) if self.sae is None else self.sae.encode(array)
        return values if self._columns is None else values[:, self._columns]

    def _take(self, number: int, ids: list[int], values: Any, places: Any) -> None:
        """Let in what is stronger than the weakest that there is."""
        better = np.flatnonzero(values > self._values[:, -1])
        if not better.size:
            return
        padded = np.full(len(ids) + self._width - 1, -1, np.int32)
        padded[self._before : self._before + len(ids)] = ids
        self._values[better, -1] = values[better]
        self._texts[better, -1] = number
        self._places[better, -1] = places[better]
        self._ids[better, -1] = padded[places[better, None] + np.arange(self._width)]
        order = np.argsort(-self._values[better], axis=1, kind="stable")
        for array in (self._values, self._texts, self._places, self._ids):
            array[better] = array[better[:, None], order]


def _passes(windows: list[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """The windows, those of a pass together."""
    group: list[tuple[int, int, int, int]] = []
    tokens = 0
    for window in windows:
        length = window[2] - window[1]
        if group and tokens + length > _TOKENS:
            yield group
            group, tokens = [], 0
        group.append(window)
        tokens += length
    if group:
        yield group
