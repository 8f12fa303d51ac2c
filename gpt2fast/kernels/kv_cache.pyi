"""The cache of keys and values: one row per sequence, each with its own length, in blocks of 16 positions."""

from typing import final

import numpy as np
import numpy.typing as npt

@final
class KVCache:
    """Keys and values of up to `capacity` tokens for each of `batch` rows, as "float32" or, in half the memory and less
    exactly, "bfloat16".  Memory is taken as tokens come."""

    batch: int
    capacity: int
    n_layer: int
    n_head: int
    head_dim: int
    half: bool
    def __init__(
        self, *, n_layer: int, n_head: int, head_dim: int, batch: int, capacity: int, dtype: str = "float32"
    ) -> None: ...
    @property
    def lengths(self) -> npt.NDArray[np.int64]: ...
    @property
    def nbytes(self) -> int: ...
    def truncate(self, row: int, length: int) -> None: ...
    def copy_row(self, source: int, target: int) -> None: ...
