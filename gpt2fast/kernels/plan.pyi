"""What a pass is to do: which new tokens continue which rows of a cache, where, and cut into which tiles."""

from typing import final

import numpy as np
import numpy.typing as npt

from gpt2fast.kernels.kv_cache import KVCache

@final
class Plan:
    """New tokens of some rows of a cache: row `cache_rows[s]` grows by `counts[s]` tokens, once `grow` says so."""

    cache: KVCache
    tokens: int
    def __init__(
        self, cache: KVCache, cache_rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], n_ctx: int
    ) -> None: ...
    def places(self) -> npt.NDArray[np.int64]: ...
    def grow(self) -> None: ...
