"""The forward pass of GPT-2: embeddings, blocks, final norm and head, over rows of a KVCache."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gpt2fast.kernels.kv_cache import KVCache
from gpt2fast.kernels.linear import Weight
from gpt2fast.kernels.plan import Plan

_Floats = npt.NDArray[np.float32]

@final
class Transformer:
    """GPT-2 (Radford et al. 2019) as the kernels run it."""

    n_layer: int
    n_head: int
    n_embd: int
    n_inner: int
    n_ctx: int
    vocab_size: int
    def __init__(
        self,
        *,
        n_head: int,
        activation: str,
        epsilon: float,
        wte: Weight,
        wpe: _Floats,
        blocks: Sequence[Mapping[str, Any]],
        ln_f: tuple[_Floats, _Floats],
        head: Weight,
    ) -> None: ...
    def forward(
        self,
        cache: KVCache,
        cache_rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int64],
        *,
        num_threads: int = 1,
    ) -> _Floats: ...
    def residual(
        self,
        cache: KVCache,
        cache_rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int64],
        stages: npt.NDArray[np.int64],
        *,
        num_threads: int = 1,
    ) -> _Floats: ...
    def logits(self, states: _Floats, *, num_threads: int = 1) -> _Floats: ...
    def measures(
        self, states: _Floats, targets: npt.NDArray[np.int64], n_vocab: int, *, num_threads: int = 1
    ) -> npt.NDArray[np.float64]: ...
    def plan(self, cache: KVCache, cache_rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Plan: ...
    def layers(self, plan: Plan, x: _Floats, first: int, last: int, *, num_threads: int = 1) -> _Floats: ...
