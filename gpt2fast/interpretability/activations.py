"""Which dimension of an activation is what, and short names for all layers' activations of a kind."""

from __future__ import annotations

from gpt2fast.errors import InputError
from gpt2fast.model.hooks.names import NameFilter, hook_names, selected

__all__ = ["head_axis", "is_attention", "named", "position_axis"]

_BY_HEAD = ("hook_q", "hook_k", "hook_v", "hook_z", "hook_result")


def is_attention(name: str) -> bool:
    """Whether the activation is [texts, heads, queries, keys]: scores and patterns."""
    return name.endswith(("hook_attn_scores", "hook_pattern"))


def head_axis(name: str) -> int | None:
    """The dimension of the heads, None where there is none.

    >>> head_axis("blocks.0.attn.hook_z"), head_axis("blocks.0.attn.hook_pattern"), head_axis("hook_embed")
    (2, 1, None)
    """
    return 1 if is_attention(name) else 2 if name.rpartition(".")[2] in _BY_HEAD else None


def position_axis(name: str) -> int | None:
    """The dimension of the positions; of scores and patterns that of the queries."""
    return 2 if is_attention(name) else 1


def named(names: NameFilter, n_layer: int) -> list[str]:
    """The hooks that are meant, in the order of computation: as `selected` has them, or by a short name, such as "z",
    those of all layers.

    Raises as `selected` does, and InputError where no name is meant.

    >>> named("mlp_out", 2)
    ['blocks.0.hook_mlp_out', 'blocks.1.hook_mlp_out']
    """
    if isinstance(names, str):
        short = [name for name in hook_names(n_layer) if name.endswith(f".hook_{names}")]
        if short:
            return short
    found = selected("names", names, n_layer)
    if not found:
        raise InputError("names has none of the model's; expected at least one")
    return found
