"""The names of what hooks see, those of TransformerLens 3, and the ways to ask for some of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeAlias

from gpt2fast._internal.arguments import listed
from gpt2fast.errors import InputError, InputTypeError

__all__ = ["NameFilter", "act_name", "hook_names", "layer_of", "selected"]

#: A name, several, or a function of a name that is true of those that are meant.
NameFilter: TypeAlias = str | Iterable[str] | Callable[[str], Any]

_EMBEDDINGS = ("hook_embed", "hook_pos_embed")
# In the order in which a layer computes them.
_LAYER = (
    *("hook_resid_pre", "ln1.hook_scale", "ln1.hook_normalized"),
    *("attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_z"),
    *("attn.hook_result", "hook_attn_out", "hook_resid_mid", "ln2.hook_scale", "ln2.hook_normalized"),
    *("mlp.hook_pre", "mlp.hook_post", "hook_mlp_out", "hook_resid_post"),
)
_FINAL = ("ln_final.hook_scale", "ln_final.hook_normalized")
#: Only there when it is asked for: n_head times the residual stream.
_ON_REQUEST = "attn.hook_result"


def hook_names(n_layer: int) -> list[str]:
    """The names of everything that hooks see in a network of `n_layer` layers, in the order of computation.

    >>> names = hook_names(12)
    >>> len(names), names[:3], names[-1]
    (220, ['hook_embed', 'hook_pos_embed', 'blocks.0.hook_resid_pre'], 'ln_final.hook_normalized')
    """
    layers = [f"blocks.{layer}.{name}" for layer in range(n_layer) for name in _LAYER]
    return [*_EMBEDDINGS, *layers, *_FINAL]


def layer_of(name: str) -> int | None:
    """The layer of "blocks.3.hook_mlp_out", 3; None for what is in no layer."""
    found = re.match(r"blocks\.(\d+)\.", name)
    return int(found[1]) if found else None


def act_name(name: str, layer: int | None = None, layer_type: str | None = None) -> str:
    """The full name of what is called `name` for short in a layer, as `get_act_name` of TransformerLens has it.

    `layer_type` tells the two norms of a layer apart, "ln1" and "ln2".  What is a full name already stays as it is.
    Raises InputError where nothing is called so.

    >>> act_name("pattern", 3), act_name("normalized", 0, "ln2"), act_name("scale")
    ('blocks.3.attn.hook_pattern', 'blocks.0.ln2.hook_normalized', 'ln_final.hook_scale')
    """
    if "hook_" in name:
        return name
    within: tuple[str, ...]
    if layer is None:
        within, prefix = (*_EMBEDDINGS, *_FINAL), ""
    else:
        within, prefix = _LAYER, f"blocks.{layer}."
    parts = {"a": "attn", "m": "mlp"}
    wanted = None if layer_type is None else parts.get(layer_type, layer_type)
    for full in within:
        part, _, last = full.rpartition(".")
        if last == f"hook_{name}" and wanted in (None, part):
            return prefix + full
    where = "outside the layers" if layer is None else "in a layer"
    short = dict.fromkeys(full.rpartition("hook_")[2] for full in within)
    raise InputError(f"there is no activation {name!r} {where}; expected one of {', '.join(short)}")


def selected(argument: str, asked: NameFilter | None, n_layer: int) -> list[str]:
    """The names that are asked for, in the order of computation; None asks for all but `attn.hook_result`.

    Raises InputError for a name that does not exist, with those that are spelt alike, and InputTypeError for what is
    no name, list of names or function; both name the argument.
    """
    known = hook_names(n_layer)
    if asked is None:
        return [name for name in known if not name.endswith(_ON_REQUEST)]
    if callable(asked):
        return [name for name in known if asked(name)]
    expected = "a name, a list of names or a function of a name"
    wanted = [asked] if isinstance(asked, str) else listed(argument, asked, expected)
    for name in wanted:
        if not isinstance(name, str):
            raise InputTypeError(f"{argument} has {name!r}; expected names")
        if name not in known:
            raise InputError(f"{argument} has {name!r}, which does not exist{_hint(name, known, n_layer)}")
    return [name for name in known if name in wanted]


def _hint(name: str, known: list[str], n_layer: int) -> str:
    layer = layer_of(name)
    if layer is not None and layer >= n_layer:
        return f"; the model's layers are 0 to {n_layer - 1}"
    near = get_close_matches(name, known, 3, 0.75) or [full for full in known if full.endswith(f"hook_{name}")][:3]
    return (
        f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; the first names are {', '.join(known[:4])}"
    )
