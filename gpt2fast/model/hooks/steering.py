"""Steering: a vector that is added to an activation of texts under way (Turner et al. 2023, arXiv:2308.10248)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import listed, real_number, whole_number
from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.hooks.functions import Hook, HookPoint
from gpt2fast.model.hooks.names import selected

__all__ = ["Positions", "Steer", "Steering", "checked_steer", "row_hooks"]

Floats = npt.NDArray[np.float32]
#: Places of tokens in their text, counted from 0: one, several, or a slice of numbers that are not negative.
Positions: TypeAlias = "int | Sequence[int] | slice | None"


class Steering:
    """A vector that is added to an activation: `strength * vector`, at the tokens that `positions` names.

    `name` is one of `GPT2.hook_names`, most often "blocks.3.hook_resid_post".  `vector` has the shape of the activation
    of one token, which is (n_embd,) in the residual stream and (n_head, head_dim) at "blocks.3.attn.hook_z".
    `positions` are places in the text that the model reads, prompt and new tokens together, counted from 0: a number, a
    list of numbers or a slice such as `slice(5, None)`; None is all.  Where a text has slid on, with overflow "slide",
    they are counted in what the model still sees.

    A `Steering` is the function of a hook, too: `model.run_with_hooks(ids, [(steering.name, steering)])` gives the bits
    that generation with it has.

    Raises InputError for a vector that is not finite, attention scores and patterns, which have no vector for a token,
    and negative positions; InputTypeError for what is no name, array or number.

    >>> import gpt2fast, numpy as np
    >>> from gpt2fast.interpretability import Steering
    >>> lm = gpt2fast.load("demo")
    >>> louder = Steering("blocks.2.hook_resid_post", np.ones(lm.model.config.n_embd), strength=8)
    >>> lm.generate("Once upon a time", steer=louder, temperature=0, max_new_tokens=6).text
    ', and the old man was'
    """

    def __init__(self, name: str, vector: npt.ArrayLike, strength: float = 1.0, positions: Positions = None) -> None:
        if not isinstance(name, str):
            raise InputTypeError(f"name is of type {type(name).__name__}; expected the name of a hook")
        if name.endswith(("attn_scores", "hook_pattern")):
            raise InputError(f"name is {name!r}, where there is no vector for a token; expected another name")
        #: The name of the activation.
        self.name = name
        #: What is added at a strength of 1, float32.
        self.vector = _vector(vector)
        #: The vector's factor.
        self.strength = real_number("strength", strength)
        #: The places of the tokens that it is added at, None for all.
        self.positions = _positions(positions)
        with np.errstate(over="ignore"):
            self._added = self.vector * np.float32(self.strength)
        if not np.isfinite(self._added).all():
            raise InputError(f"strength is {self.strength:g}, which makes the vector infinite; expected a smaller one")

    def __call__(self, activation: Floats, hook: HookPoint) -> None:
        """Add the vector to `activation` [texts, tokens, ...] in place.  Raises InputError where its shape is not that
        of the activation of one token, and InputTypeError for what is no array of a hook."""
        if not isinstance(activation, np.ndarray) or activation.dtype != np.float32 or activation.ndim < 2:
            raise InputTypeError(f"activation is {activation!r:.80}; expected an array float32 [texts, tokens, ...]")
        if not isinstance(hook, HookPoint):
            raise InputTypeError(f"hook is of type {type(hook).__name__}; expected a HookPoint")
        if activation.shape[2:] != self._added.shape:
            raise InputError(
                f"the steering vector at {hook.name} has shape {self._added.shape}; expected {activation.shape[2:]}"
            )
        with np.errstate(over="ignore"):  # what becomes infinite is refused, as of every hook
            activation[:, self._chosen(hook.start, activation.shape[1])] += self._added

    def _chosen(self, first: int, count: int) -> Any:
        """Which of the `count` tokens from place `first` on the vector is added to."""
        places = first + np.arange(count)
        if self.positions is None:
            return slice(None)
        if not isinstance(self.positions, slice):
            return np.isin(places, self.positions)
        start, stop, step = self.positions.start or 0, self.positions.stop, self.positions.step or 1
        return (places >= start) & (places < (_MOST if stop is None else stop)) & ((places - start) % step == 0)

    def scaled(self, factor: float) -> Steering:
        """The same with its strength times `factor`.

        >>> Steering("hook_embed", [1.0, 2.0], strength=3).scaled(-2).strength
        -6.0
        """
        return Steering(self.name, self.vector, self.strength * real_number("factor", factor), self.positions)

    def __repr__(self) -> str:
        norm = float(np.linalg.norm(self.vector.astype(np.float64)))
        where = "" if self.positions is None else f", positions={self.positions!r}"
        vector = f"a vector {self.vector.shape} of norm {norm:.4g}"
        return f"<Steering {self.name!r}: {vector}, strength={self.strength:g}{where}>"


#: What one text is steered with.
Steer: TypeAlias = "Steering | Sequence[Steering] | None"


def checked_steer(name: str, steer: Any, config: Config) -> tuple[Steering, ...]:
    """What one text is steered with, as a tuple.

    Raises InputTypeError for what is no Steering or list of them, and InputError for a name that the model does not
    have, or a vector of another shape than its activations.
    """
    if steer is None:
        return ()
    found = (steer,) if isinstance(steer, Steering) else tuple(listed(name, steer, "a Steering or a list of them"))
    for one in found:
        if not isinstance(one, Steering):
            raise InputTypeError(f"{name} has {one!r:.80}; expected a Steering")
        selected(name, one.name, config.n_layer)
        expected = _token_shape(one.name, config)
        if one.vector.shape != expected:
            raise InputError(f"{name} has a vector of shape {one.vector.shape} at {one.name}; expected {expected}")
    return found


def row_hooks(steer: Mapping[int, Iterable[Steering]]) -> list[Hook]:
    """The hooks of a pass in which each row of the cache is steered by what `steer` has for it, and others are not."""
    by_name: dict[str, dict[int, list[Steering]]] = {}
    for row, vectors in steer.items():
        for one in vectors:
            by_name.setdefault(one.name, {}).setdefault(row, []).append(one)

    def function(rows: Mapping[int, Sequence[Steering]]) -> Any:
        def add(activation: Floats, hook: HookPoint) -> None:
            for i, row in enumerate(hook.rows):
                for one in rows.get(row, ()):
                    one(activation[i : i + 1], hook)

        return add

    return [(name, function(rows)) for name, rows in by_name.items()]


def _token_shape(name: str, config: Config) -> tuple[int, ...]:
    """The shape of the activation `name` of one token."""
    last = name.rpartition("hook_")[2]
    if last in ("q", "k", "v", "z"):
        return (config.n_head, config.head_dim)
    if last == "result":
        return (config.n_head, config.n_embd)
    if last == "scale":
        return (1,)
    return (config.n_inner if last in ("pre", "post") else config.n_embd,)


def _vector(vector: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(vector)
    except (ValueError, OverflowError):
        raise InputError("vector is no array: its rows are of different lengths") from None
    if array.dtype.kind not in "fiu":
        raise InputTypeError(f"vector is of {array.dtype}; expected floats")
    with np.errstate(over="ignore"):
        found = np.array(array, np.float32, order="C")
    if not found.ndim or not found.size:
        raise InputError(f"vector has shape {found.shape}; expected the shape of the activation of a token")
    if not np.isfinite(found).all():
        raise InputError("vector has numbers that are not finite in float32")
    found.flags.writeable = False
    return found


def _positions(positions: Any) -> Any:
    """None, a slice of numbers that are not negative, or a list of such numbers."""
    if positions is None:
        return None
    if isinstance(positions, slice):
        start, stop, step = (
            None if value is None else whole_number(f"positions.{part}", value, least=part == "step", most=_MOST)
            for part, value in (("start", positions.start), ("stop", positions.stop), ("step", positions.step))
        )
        return slice(start, stop, step)
    if isinstance(positions, (int, np.integer)):
        return [whole_number("positions", positions, most=_MOST)]
    places = listed("positions", positions, "a number, a list of numbers or a slice")
    return sorted({whole_number("positions", place, most=_MOST) for place in places})


#: Far beyond every context, and within every integer.
_MOST = (1 << 31) - 1
