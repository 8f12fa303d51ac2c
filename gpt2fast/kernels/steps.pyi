"""The steps of a layer one at a time, as a pass with hooks takes them; `transformer` takes them in one stretch."""

import numpy as np
import numpy.typing as npt

from gpt2fast.kernels.plan import Plan

_Floats = npt.NDArray[np.float32]

def attend(plan: Plan, qkv: _Floats, *, layer: int, scale: float, num_threads: int = 1) -> _Floats:
    """Causal attention of the plan's tokens in one layer: float32 [T, n_embd] for their queries, keys and values
    [T, 3 n_embd], of which keys and values join the cache first."""

def keys_and_values(plan: Plan, segment: int, layer: int) -> tuple[_Floats, _Floats]:
    """The keys [n_head, head_dim, length] and the values [n_head, length, head_dim], both float32, that one layer has
    of the whole text of a segment, its new tokens, which have attended, included."""

def activate(x: _Floats, function: str, *, num_threads: int = 1) -> _Floats:
    """The activation function of each value of x [T, n], a new float32 array: what a product with it would store."""

def scale_and_shift(x: _Floats, weight: _Floats, bias: _Floats) -> _Floats:
    """x * weight + bias for each row of x [T, n], rounded once as LayerNorm rounds it: float32 [T, n]."""
