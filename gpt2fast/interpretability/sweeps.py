"""A run for each head or each position, with one activation replaced: activation patching and ablation.

Activation patching (Vig et al. 2020, arXiv:2004.12265; Meng et al. 2022, arXiv:2202.05262) takes two texts that differ
in one thing.  The model reads the corrupted one, and one activation comes from its run on the clean one: where that
brings the clean text's answer back, the activation carries what the texts differ in.

Runs that differ from some layer on share what is below it, the residual stream of one ordinary run, and those that
start at the same layer are rows of one batch.  Neither changes a bit of what a run of its own with hooks gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, one_of
from gpt2fast._internal.bar import Bar
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.interpretability.ablation import ablated
from gpt2fast.interpretability.activations import head_axis, named, position_axis
from gpt2fast.interpretability.prompts import prompt_ids
from gpt2fast.model.hooks.names import NameFilter, layer_of

if TYPE_CHECKING:
    from gpt2fast.model.gpt2 import GPT2
    from gpt2fast.model.hooks import HookPoint
    from gpt2fast.scoring.lens import Pair

__all__ = ["Metric", "ablation_sweep", "patch_sweep"]

Floats = npt.NDArray[np.float32]
#: A text, or the ids of its tokens.
Prompt: TypeAlias = "str | bytes | npt.ArrayLike"
#: Takes the logits of a run, and gives a number.
Metric: TypeAlias = Callable[[Floats], Any]
By: TypeAlias = Literal["head", "position"] | None

#: Tokens of the runs that are read together: the logits of so many take 50 MB with GPT-2's vocabulary.
_TOKENS = 256


def patch_sweep(
    lm: Pair,
    clean: Prompt,
    corrupted: Prompt,
    metric: Metric,
    names: NameFilter,
    *,
    by: By = None,
    last_only: bool = False,
    bos: bool = True,
    progress: bool | None = None,
) -> npt.NDArray[np.float64]:
    """What `metric` says of each run on `corrupted` in which one activation is that of `clean`: float64 [names, heads]
    or [names, positions].

    `names` are those of `GPT2.hook_names`, a list or a function of a name, or a short one that stands for all layers,
    such as "z" or "resid_pre"; they are the rows, in the order of computation.  `by` says what is replaced at a time:
    "head", the default of names that have heads (q, k, v, z, result, attn_scores, pattern), all positions of one head;
    "position", the default of the others, all of one position; of scores and patterns a position is a query.

    A text comes after the token that texts begin with, unless `bos` is False; token ids are taken as they are.
    `metric` gets the logits float32 (T, vocab_size) of a run, with `last_only` those after the last token,
    (vocab_size,), which is less work, and gives a number.  `metric(lm.model(ids))` is that of a run without a patch.
    `progress` shows a bar; None where standard error is a terminal.

    Every value is what `GPT2.run_with_hooks` would give, bit for bit, several times sooner: runs share the layers below
    the patch, and those of a layer are one batch.  Raises InputError where the texts have not the same number of
    tokens, for names that do not exist or have no heads, and as a run does; InputTypeError for what is no text, ids,
    function or number.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> king, queen = (lm.tokenizer.encode_single_token(word) for word in (" king", " queen"))
    >>> def difference(logits):
    ...     return logits[king] - logits[queen]
    >>> texts = "The king went home. The", "The queen went home. The"
    >>> found = patch_sweep(lm, *texts, difference, "z", last_only=True)
    >>> found.shape  # layers, heads
    (6, 8)
    >>> patch_sweep(lm, *texts, difference, "resid_pre", last_only=True)[0].round(2).tolist()  # before layer 0
    [0.23, 0.23, 2.22, 0.23, 0.23, 0.23, 0.23]
    """
    model, asked = lm.model, named(names, lm.model.config.n_layer)
    with_bos = flag("bos", bos)
    ids = prompt_ids(lm, "corrupted", corrupted, bos=with_bos)
    other = prompt_ids(lm, "clean", clean, bos=with_bos)
    if len(ids) != len(other):
        raise InputError(f"clean has {len(other)} tokens, corrupted {len(ids)}; expected as many")
    sweep = _Sweep(model, ids, asked, by, metric, flag("last_only", last_only))
    _, kept = model.run_with_cache(other, asked, stop_at_layer=_stop(asked, model.config.n_layer))
    return sweep.run({name: np.asarray(kept[name]) for name in asked}, progress)


def ablation_sweep(
    lm: Pair,
    text: Prompt,
    metric: Metric,
    names: NameFilter,
    *,
    by: By = None,
    mean_over: Iterable[Prompt] | None = None,
    last_only: bool = False,
    bos: bool = True,
    progress: bool | None = None,
) -> npt.NDArray[np.float64]:
    """What `metric` says of each run on `text` in which one head or one position is knocked out: float64 [names, heads]
    or [names, positions].

    What is knocked out becomes zero, or with `mean_over`, texts, its mean over their tokens, as `ablation` says.  All
    else is as in `patch_sweep`: `names`, `by`, what `metric` gets, the bits and the errors.  Attention scores and
    patterns are refused, as 0 means something else there; "z" is what a head gives.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> time = lm.tokenizer.encode_single_token(" time")
    >>> found = ablation_sweep(lm, "Once upon a", lambda logits: logits[time], "z", last_only=True)
    >>> found.shape, divmod(int(found.argmin()), 8)  # the head without which " time" is least likely
    ((6, 8), (0, 0))
    """
    model, asked = lm.model, named(names, lm.model.config.n_layer)
    ids = prompt_ids(lm, "text", text, bos=flag("bos", bos))
    sweep = _Sweep(model, ids, asked, by, metric, flag("last_only", last_only))
    return sweep.run(ablated(lm, asked, mean_over, bos=flag("bos", bos)), progress)


class _Sweep:
    """Runs of one text, in each of which a head or a position of one activation is another one's."""

    def __init__(
        self, model: GPT2, ids: npt.NDArray[np.int64], names: list[str], by: By, metric: Metric, last_only: bool
    ) -> None:
        if not callable(metric):
            raise InputTypeError(f"metric is of type {type(metric).__name__}; expected a function of logits")
        if by is None:
            by = "head" if all(head_axis(name) is not None for name in names) else "position"
        axis_of = {"head": head_axis, "position": position_axis}[one_of("by", by, ("head", "position"))]
        self._axes: dict[str, int] = {}
        for name in names:
            axis = axis_of(name)
            if axis is None:
                raise InputError(f"{name} has no heads; expected by='position', or names of q, k, v, z and the like")
            self._axes[name] = axis - 1  # of one text's activation
        self._units = model.config.n_head if by == "head" else len(ids)
        self._model, self._ids, self._names = model, ids, names
        self._metric, self._last_only = metric, last_only

    def run(self, sources: dict[str, Floats], progress: bool | None) -> npt.NDArray[np.float64]:
        """The metrics [names, units], for what comes in the place of the activations: by name an array of the shape
        that the activation of one text has, or one that NumPy spreads over it."""
        shown = None if progress is None else flag("progress", progress)
        found = np.empty((len(self._names), self._units))
        size = max(1, _TOKENS // len(self._ids))
        streams = self._streams()
        with Bar(found.size, "runs", shown) as bar:
            for row, name in enumerate(self._names):
                for first in range(0, self._units, size):
                    units = range(first, min(first + size, self._units))
                    for unit, logits in zip(units, self._patched(name, units, sources[name], streams), strict=True):
                        found[row, unit] = self._measured(logits)
                    bar.update(len(units))
        return found

    def _streams(self) -> dict[int, Floats]:
        """The residual stream [T, E] before each layer that a run starts at."""
        n_layer = self._model.config.n_layer
        # A function that the model has at the layer's start would be called a second time.
        firsts = set() if self._model.has_hooks else {_first(name, n_layer) for name in self._names} - {0}
        streams = {f"blocks.{first}.hook_resid_pre": first for first in sorted(firsts - {n_layer})}
        found = {}
        if firsts:
            last, kept = self._model.run_with_cache(self._ids, list(streams), stop_at_layer=max(firsts))
            found = {first: np.asarray(kept[name])[0] for name, first in streams.items() if name in kept}
            found[max(firsts)] = last
        return found

    def _patched(self, name: str, units: Sequence[int], source: Floats, streams: dict[int, Floats]) -> Floats:
        """The logits [units, ...] of the runs in which one of the units is the source's."""
        axis = self._axes[name]

        def patch(activation: Floats, hook: HookPoint) -> None:
            wanted = np.broadcast_to(source, (1, *activation.shape[1:]))[0]
            for row, unit in enumerate(units):
                np.moveaxis(activation[row], axis, 0)[unit] = np.moveaxis(wanted, axis, 0)[unit]

        first = _first(name, self._model.config.n_layer)
        start = streams.get(first)
        given = self._ids if start is None else start
        logits: Floats = self._model.run_with_hooks(
            np.broadcast_to(given, (len(units), *given.shape)),
            [(name, patch)],
            start_at_layer=None if start is None else first,
            last_only=self._last_only,
        )
        return logits

    def _measured(self, logits: Floats) -> float:
        value = self._metric(logits)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise InputTypeError(f"metric gave {value!r:.80}; expected a number") from None


def _first(name: str, n_layer: int) -> int:
    """The layer from which on a run with another activation at `name` differs."""
    layer = layer_of(name)
    if layer is not None:
        return layer
    return n_layer if name.startswith("ln_final") else 0


def _stop(names: list[str], n_layer: int) -> int | None:
    """Where a run can stop that is only wanted for what it has at `names`."""
    last = max((_first(name, n_layer) for name in names), default=0)
    return None if last == n_layer else last + 1
