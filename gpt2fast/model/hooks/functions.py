"""The functions of hooks: who is called where, with what, and what is accepted back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import listed
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.hooks.names import NameFilter, layer_of, selected

__all__ = ["Functions", "Hook", "HookFunction", "HookPoint", "Reader", "by_name", "visit"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HookPoint:
    """Where a function is called: what its array is, and of which tokens."""

    #: The full name, such as "blocks.0.attn.hook_pattern".
    name: str
    #: The rows of the KV cache that the array's texts have, in the order of its first dimension.  In a run of its own
    #: these are the numbers of the texts.
    rows: tuple[int, ...] = (0,)
    #: The position in their texts of the array's first tokens: how many were in the KV cache before.
    start: int = 0

    def layer(self) -> int:
        """The number of the layer.  Raises InputError where the name is that of none.

        >>> HookPoint("blocks.3.hook_mlp_out").layer()
        3
        """
        layer = layer_of(self.name)
        if layer is None:
            raise InputError(f"{self.name} is in no layer")
        return layer


#: Takes an activation and, by the keyword `hook`, a `HookPoint`; returns what comes in the activation's place, or None.
HookFunction: TypeAlias = Callable[..., Any]
#: A function, and what it is called for.
Hook: TypeAlias = tuple[NameFilter, HookFunction]


@dataclass(frozen=True)
class Reader:
    """A function of the package's own that changes nothing, and that gets arrays which nothing changes later."""

    function: Callable[[Floats, HookPoint], object]

    def __call__(self, activation: Floats, *, hook: HookPoint) -> None:
        self.function(activation, hook)


#: Who is called at a name, in this order.
Functions: TypeAlias = dict[str, list[HookFunction]]


def by_name(hooks: Iterable[Hook], n_layer: int) -> Functions:
    """The functions of `hooks` for each name that one of them is called for.

    Raises InputError and InputTypeError for names as `selected` does, and for what is no pair with a function.
    """
    found: Functions = {}
    for i, hook in enumerate(listed("fwd_hooks", hooks, "pairs of a name and a function")):
        try:
            names, function = hook
        except (TypeError, ValueError):
            raise InputTypeError(f"fwd_hooks[{i}] is {hook!r:.80}; expected a pair of a name and a function") from None
        if not callable(function):
            raise InputTypeError(f"fwd_hooks[{i}] has {function!r:.80} for a function")
        for name in selected(f"fwd_hooks[{i}]", names, n_layer):
            found.setdefault(name, []).append(function)
    return found


def visit(functions: Iterable[HookFunction], array: Floats, point: HookPoint) -> Floats:
    """What the functions make of the array: `array` itself, untouched, where they leave all its bits as they were."""
    for function in functions:
        if isinstance(function, Reader):
            function(array, hook=point)
        else:
            array = _changed(function, array, point)
    return array


def _changed(function: HookFunction, array: Floats, point: HookPoint) -> Floats:
    given = array.copy()
    returned = function(given, hook=point)
    new: npt.NDArray[Any]
    if returned is None:
        new = given
    else:
        try:
            new = np.asarray(returned)
        except ValueError:
            new = np.empty(0, object)
        if new.dtype.kind not in "fiu":
            raise InputTypeError(
                f"the function at {point.name} returned {type(returned).__name__} of {new.dtype}; expected an array of "
                "floats, or None"
            )
        with np.errstate(over="ignore"):  # what is infinite then is refused below
            new = np.array(new, np.float32, order="C")
    if new.shape != array.shape:
        raise InputError(
            f"the function at {point.name} gave an array of shape {new.shape}; expected that of the activation, "
            f"{array.shape}"
        )
    if np.array_equal(new.view(np.uint32), array.view(np.uint32)):
        return array
    refused = ~np.isfinite(new)
    if point.name.endswith("attn_scores"):
        refused &= new != -np.inf  # masked
    if refused.any():
        place = tuple(int(i) for i in np.argwhere(refused)[0])
        raise InputError(
            f"the function at {point.name} gave {new[place]} at {place}; expected finite numbers"
            + (", or -inf where a key is masked" if point.name.endswith("attn_scores") else "")
        )
    changed: Floats = new
    return changed
