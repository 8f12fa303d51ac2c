"""The affine maps of a tuned lens, read from a file.

A tuned lens (Belrose et al. 2023, arXiv:2303.08112) maps the residual stream after each layer to what the last layer
would make of it, on average, before the final LayerNorm and the head read it.  Two layouts of a safetensors file are
known, by the names of the tensors, each for the stream after i layers, i from 0 to n_layer - 1:

- `i.weight` (n_embd, n_embd) and `i.bias` (n_embd,), which the package tuned-lens keeps in params.pt: the stream
  becomes `x + weight @ x + bias`;
- `map.i.weight` and `map.i.bias` of the same shapes: it becomes `weight @ x + bias`.

A bias may be missing; the other tensors may not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import path_name
from gpt2fast.errors import InputError
from gpt2fast.model.hooks.steps import product
from gpt2fast.safetensors import as_float32, read_file

if TYPE_CHECKING:
    from gpt2fast.checkpoint.config import Config

__all__ = ["TunedLens"]

Floats = npt.NDArray[np.float32]


class TunedLens:
    """A map for the residual stream after i layers, i from 0 to n_layer - 1."""

    def __init__(self, maps: list[tuple[Floats, Floats]]) -> None:
        self._maps = maps

    @classmethod
    def load(cls, path: str | bytes | os.PathLike[str], config: Config) -> TunedLens:
        """The maps in a safetensors file.

        Raises MissingFileError where there is no file, and InputError where it is none of safetensors, or its tensors
        are not those of the model's layers, named in full.
        """
        name = path_name(path)
        if name.endswith((".pt", ".pth", ".bin")):
            raise InputError(f"{name} is a pickle of PyTorch; expected a safetensors file with the same tensors")
        content = read_file(name)
        tensors = {key: as_float32(array, content.dtypes[key]) for key, array in content.tensors.items()}
        prefix = "map." if any(key.startswith("map.") for key in tensors) else ""
        maps = []
        for layer in range(config.n_layer):
            weight = tensors.pop(f"{prefix}{layer}.weight", None)
            bias = tensors.pop(f"{prefix}{layer}.bias", np.zeros(config.n_embd, np.float32))
            if weight is None:
                raise InputError(f"{name} has no tensor '{prefix}{layer}.weight'; expected one for each layer's stream")
            for part, array, shape in (("weight", weight, (config.n_embd,) * 2), ("bias", bias, (config.n_embd,))):
                if array.shape != shape:
                    found = f"'{prefix}{layer}.{part}' of shape {array.shape}"
                    raise InputError(f"{name} has {found}; expected {shape}, as the model's n_embd is {config.n_embd}")
                if not np.isfinite(array).all():
                    raise InputError(f"{name}: '{prefix}{layer}.{part}' has values that are not finite")
            maps.append((weight if prefix else weight + np.eye(config.n_embd, dtype=np.float32), bias))
        if tensors:
            raise InputError(f"{name} has {min(tensors)!r}, which is of no layer: the model has {config.n_layer}")
        return cls(maps)

    def __call__(self, stream: Floats, layer: int) -> Floats:
        """The stream [..., n_embd] after `layer` layers as the last one would leave it; after all of them as it is."""
        if layer == len(self._maps):
            return stream
        weight, bias = self._maps[layer]
        mapped: Floats = product(stream.reshape(-1, len(bias)), weight.T).reshape(stream.shape) + bias
        return mapped
