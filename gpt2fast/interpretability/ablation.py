"""Ablation: heads, neurons or dimensions that say nothing, or what they say on average."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, listed, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.interpretability.activations import head_axis, is_attention
from gpt2fast.interpretability.prompts import prompt_ids
from gpt2fast.model.hooks.names import selected
from gpt2fast.model.pairing import beginning

if TYPE_CHECKING:
    from gpt2fast.model.hooks import Hook, HookPoint
    from gpt2fast.scoring.lens import Pair

__all__ = ["ablated", "ablation"]

Floats = npt.NDArray[np.float32]


def ablation(
    lm: Pair,
    name: str,
    units: int | Sequence[int] | None = None,
    *,
    mean_over: Iterable[str | bytes | npt.ArrayLike] | None = None,
    bos: bool = True,
) -> Hook:
    """A hook that knocks out some heads or neurons at `name`, for `GPT2.run_with_hooks` and `GPT2.hooks`.

    `units` are numbers: of heads, where the activation has them (q, k, v, z, result), else of its last dimension, as
    the neurons at "blocks.3.mlp.hook_post"; None means all.  They become zero, or with `mean_over`, texts or the ids of
    texts, the mean of what they are over all tokens of these.  A text comes after the token that texts begin with,
    which does not count, unless `bos` is False.

    Raises InputError for a name that does not exist, attention scores and patterns, units that are not there and no
    tokens to take a mean over; InputTypeError for what is no number or text.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> without = ablation(lm, "blocks.3.attn.hook_z", [4, 5])
    >>> lm.model.run_with_hooks([1, 2, 3], [without]).shape
    (3, 4096)
    >>> with lm.model.hooks([ablation(lm, "blocks.2.mlp.hook_post", mean_over=["A tale", "A king"])]):
    ...     print(lm.generate("Once upon a time", temperature=0, max_new_tokens=4).text)
    , and he was
    """
    if not isinstance(name, str):
        raise InputTypeError(f"name is of type {type(name).__name__}; expected one name")
    selected("name", name, lm.model.config.n_layer)
    value = ablated(lm, [name], mean_over, bos=flag("bos", bos))[name]
    axis, config = head_axis(name), lm.model.config
    if axis is not None:
        size = config.n_head
    elif ".mlp." in name:
        size = config.n_inner
    else:
        size = 1 if name.endswith("hook_scale") else config.n_embd
    numbers = [units] if isinstance(units, (int, np.integer)) else units
    if numbers is not None:
        numbers = [
            whole_number("units", unit, most=size - 1) for unit in listed("units", numbers, "a number or numbers")
        ]

    def knock_out(activation: Floats, hook: HookPoint) -> None:
        place: Any = (..., slice(None) if numbers is None else numbers)
        if axis is not None:
            place = (*place, slice(None))
        activation[place] = np.broadcast_to(value, activation.shape)[place]

    return name, knock_out


def ablated(lm: Pair, names: list[str], mean_over: Iterable[Any] | None, *, bos: bool) -> dict[str, Floats]:
    """What each activation becomes that is knocked out: zero, or its mean over the tokens of the texts, in the shape
    that it has of one text of one token."""
    for name in names:
        if is_attention(name):
            raise InputError(f"{name} cannot be knocked out; expected hook_z, what attention makes of the pattern")
    if mean_over is None:
        return dict.fromkeys(names, np.zeros(1, np.float32))
    if isinstance(mean_over, (str, bytes)):
        raise InputTypeError(f"mean_over is one {type(mean_over).__name__}; expected a list of texts")
    totals: dict[str, Any] = dict.fromkeys(names, 0)
    count = 0
    for i, text in enumerate(listed("mean_over", mean_over, "a list of texts")):
        ids = prompt_ids(lm, f"mean_over[{i}]", text, bos=bos)
        # The token that was put before a text is none of the text's.
        first = int(isinstance(text, (str, bytes)) and bos and beginning(lm.model, lm.tokenizer) is not None)
        _, kept = lm.model.run_with_cache(ids, names, last_only=True)
        for name in names:
            totals[name] = totals[name] + np.asarray(kept[name])[:, first:].sum(axis=1, keepdims=True, dtype=np.float64)
        count += len(ids) - first
    if not count:
        raise InputError("mean_over has no tokens; expected texts to take the mean over")
    return {name: (total / count).astype(np.float32) for name, total in totals.items()}
