"""Products of activations with weights: y = activation(x w + b), or y += x w + b."""

from collections.abc import Callable
from typing import final

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]

ACTIVATIONS: dict[str, int]

def packed_size(k: int, n: int, dtype: str) -> int: ...

@final
class Weight:
    """A weight matrix of k inputs and n outputs with its bias, in the layout that the kernels multiply with."""

    @staticmethod
    def panels(
        values: _Floats,
        bias: _Floats | None = None,
        *,
        dtype: str = "float32",
        by_output: bool = False,
        num_threads: int = 1,
    ) -> Weight: ...
    @staticmethod
    def panels_of(
        read: Callable[[int, int], _Floats], n: int, k: int, *, dtype: str = "float32", num_threads: int = 1
    ) -> Weight: ...
    @staticmethod
    def packed(data: npt.NDArray[np.uint8], bias: _Floats | None = None, *, k: int, n: int, dtype: str) -> Weight: ...
    @staticmethod
    def blas(values: _Floats, bias: _Floats | None = None, *, by_output: bool = False) -> Weight: ...
    @staticmethod
    def table(values: _Floats) -> Weight: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...
    def panels_data(self) -> npt.NDArray[np.uint8]: ...
    def outputs(self, first: int, last: int) -> _Floats: ...
    def values(self) -> _Floats: ...
    def multiply(
        self, x: _Floats, *, activation: str = "linear", add_to: _Floats | None = None, num_threads: int = 1
    ) -> _Floats: ...
