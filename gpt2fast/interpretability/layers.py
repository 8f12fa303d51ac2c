"""What each layer of a model adds to the residual stream of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt2fast.model.gpt2 import GPT2

__all__ = ["Layer", "layer_norm", "layers"]

Floats = npt.NDArray[np.float32]


class Layer(NamedTuple):
    """One layer, for T positions; heads' values of H heads."""

    #: The stream before it, float32 (T, E).
    before: Floats
    #: Attention, float32 (H, T, T) as [head, query, key].
    pattern: Floats
    #: What each head reads, before the output matrix, float32 (T, H, E / H).
    z: Floats
    #: What the MLP adds, float32 (T, E).
    mlp_out: Floats
    #: The stream after it, float32 (T, E).
    after: Floats


def layers(model: GPT2, ids: npt.NDArray[np.int64]) -> Iterator[Layer]:
    """The layers of the model for ids (T,), from the first to the last."""
    config, tensor = model.config, model._parameters.tensor
    states = model.hidden_states(ids, layers="all")
    # The last of them are after the last LayerNorm.
    stream = [*states[:-1], model.residual(ids, 2 * config.n_layer)]
    mask = np.triu(np.full((len(ids), len(ids)), -np.inf, np.float32), 1)
    for i in range(config.n_layer):
        block = f"h.{i}"
        normed = layer_norm(stream[i], tensor(f"{block}.ln_1.weight"), tensor(f"{block}.ln_1.bias"), config.layer_norm_epsilon)
        qkv = normed @ tensor(f"{block}.attn.c_attn.weight").T + tensor(f"{block}.attn.c_attn.bias")  # (T, 3E)
        q, k, v = qkv.reshape(len(ids), 3, config.n_head, -1).transpose(1, 2, 0, 3)  # each (H, T, E / H)
        scores = q @ k.swapaxes(1, 2) * np.float32(config.attention_scale(i)) + mask
        pattern = np.exp(scores - scores.max(axis=2, keepdims=True))
        pattern /= pattern.sum(axis=2, keepdims=True)
        z = (pattern @ v).swapaxes(0, 1)
        added = z.reshape(len(ids), -1) @ tensor(f"{block}.attn.c_proj.weight").T + tensor(f"{block}.attn.c_proj.bias")
        yield Layer(stream[i], pattern, z, stream[i + 1] - stream[i] - added, stream[i + 1])


def layer_norm(x: Floats, weight: Floats, bias: Floats, epsilon: float) -> Floats:
    """LayerNorm of the rows of x (T, E)."""
    centred = x - x.mean(axis=1, keepdims=True)
    normed: Floats = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon) * weight + bias
    return normed
