"""Where a model computes: the parts of a network and its caches, made for one device.

`gpt2fast.model.gpt2` is written against `Backend`.  `CpuBackend` is here, made of `gpt2fast.kernels`; that of a GPU is
in `gpt2fast.model.cuda`, which is imported when one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.checkpoint.weights import DTYPES
from gpt2fast.errors import InputError
from gpt2fast.kernels.kv_cache import KVCache
from gpt2fast.kernels.linear import Weight
from gpt2fast.kernels.transformer import Transformer
from gpt2fast.model.draw import Draw

__all__ = ["Backend", "Cache", "CacheDType", "CpuBackend", "DType", "Gemm", "Network", "StoredWeight", "open_backend"]

#: How matrices are kept; float16 on a GPU only, which has neither int8 nor int4.
DType = Literal["float32", "float16", "bfloat16", "int8", "int4"]
#: How keys and values are kept.
CacheDType = Literal["float32", "bfloat16"]
#: What multiplies on a CPU.
Gemm = Literal["panel", "blas"]

T = TypeVar("T")
Floats = npt.NDArray[np.float32]


class Cache(Protocol):
    """Keys and values of up to `capacity` tokens for each of `batch` rows, on the device of its model."""

    batch: int
    capacity: int

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens in each row, an int64 array (batch,); a copy."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tokens in the cache occupy now."""
        ...

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of `row` from position `length` on."""
        ...

    def copy_row(self, source: int, target: int) -> None:
        """Make row `target` equal to row `source`.  Nothing is copied until one of them grows."""
        ...


class StoredWeight(Protocol):
    """A matrix of k inputs and n outputs as a device keeps it."""

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n)."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes; 0 where it points into another's."""
        ...

    def outputs(self, first: int, last: int) -> Floats:
        """The float32 weights [last - first, k] of the outputs `first` to `last`."""
        ...

    def values(self) -> Floats:
        """The float32 weights [k, n]."""
        ...


class Network(Protocol):
    """A network, ready to run."""

    def forward(
        self,
        cache: Any,
        cache_rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        wanted: npt.NDArray[np.int64],
        *,
        logits: bool = True,
        stages: Sequence[int] | None = None,
        num_threads: int = 1,
    ) -> Any:
        """As `gpt2fast.kernels.transformer.Transformer.forward`; the logits are what `np.asarray` makes an array of,
        and may stay on the device until then."""
        ...


class Backend(Protocol):
    """What makes the parts of a network for one device, with matrices kept in one dtype."""

    #: "cpu", or "cuda:" and a number.
    device: str
    dtype: str
    #: What multiplies: "panel", "blas" or "cublas".
    gemm: str

    def with_dtype(self, dtype: str) -> Backend:
        """The backend of the same device for another dtype."""
        ...

    def load(self, build: Callable[[], T], *, shapes: Mapping[str, tuple[int, ...]], head_dim: int) -> T:
        """What `build` returns, which makes a model out of the parts below: tensors of those shapes, by their published
        names, and heads of that width."""
        ...

    def matrix(self, values: Floats, bias: Floats, *, by_output: bool) -> StoredWeight:
        """The matrix of `values` [k, n], or [n, k] where it is `by_output`, with its bias [n]."""
        ...

    def packed(self, data: npt.NDArray[np.uint8], bias: Floats | None, *, k: int, n: int) -> StoredWeight:
        """The matrix of k inputs and n outputs whose panels are in `data`; only where `gemm` is "panel"."""
        ...

    def table(self, read: Callable[[int, int], Floats], n: int, k: int) -> StoredWeight:
        """The output head of n outputs, whose inputs `read(first, last)` gives, [last - first, k]."""
        ...

    def embeddings(self, values: Floats) -> StoredWeight:
        """The embeddings [n, k] of tokens, where they are not the output head too."""
        ...

    def vector(self, values: Floats) -> Any:
        """What stays float32: biases, weights of norms, the embeddings of positions."""
        ...

    def transformer(self, **parts: Any) -> Network:
        """The network of these parts, the keywords of `gpt2fast.kernels.transformer.Transformer`."""
        ...

    def choose(self, logits: Any, draws: Sequence[Draw | None]) -> list[int | Floats]:
        """For each row of a network's logits the id that its draw chooses; where the host is to choose, as for None
        instead of a draw and always on a CPU, the logits."""
        ...

    def new_cache(self, *, n_layer: int, n_head: int, head_dim: int, batch: int, capacity: int) -> Cache:
        """An empty cache of `batch` rows of up to `capacity` tokens."""
        ...


@dataclass
class CpuBackend:
    """The kernels of this package, on `num_threads` threads where a matrix is repacked.

    Raises InputError for an unknown dtype or way to multiply.
    """

    dtype: str = "float32"
    gemm: str = "panel"
    num_threads: int = 1
    cache_dtype: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is {self.dtype!r}; expected one of {', '.join(map(repr, DTYPES))}")
        if self.gemm not in ("panel", "blas"):
            raise InputError(f"gemm is {self.gemm!r}; expected 'panel' or 'blas'")
        if self.gemm == "blas" and self.dtype != "float32":
            raise InputError(f"gemm is 'blas' and dtype {self.dtype!r}; BLAS multiplies float32 only")
        if self.cache_dtype not in (None, "float32", "bfloat16"):
            raise InputError(f"cache_dtype is {self.cache_dtype!r}; expected 'float32' or 'bfloat16'")

    def with_dtype(self, dtype: str) -> CpuBackend:
        """The backend for another dtype; its matrices are panels, the only layout that has them all."""
        return replace(self, dtype=dtype, gemm="panel")

    def load(self, build: Callable[[], T], *, shapes: Mapping[str, tuple[int, ...]], head_dim: int) -> T:
        return build()

    def matrix(self, values: Floats, bias: Floats, *, by_output: bool) -> Weight:
        if self.gemm == "blas":
            return Weight.blas(values, bias, by_output=by_output)
        return Weight.panels(values, bias, dtype=self.dtype, by_output=by_output, num_threads=self.num_threads)

    def packed(self, data: npt.NDArray[np.uint8], bias: Floats | None, *, k: int, n: int) -> Weight:
        return Weight.packed(data, bias, k=k, n=n, dtype=self.dtype)

    def table(self, read: Callable[[int, int], Floats], n: int, k: int) -> Weight:
        if self.gemm == "blas":
            return Weight.blas(read(0, n), by_output=True)
        return Weight.panels_of(read, n, k, dtype=self.dtype, num_threads=self.num_threads)

    def embeddings(self, values: Floats) -> Weight:
        return Weight.table(values)

    def vector(self, values: Floats) -> Floats:
        return values

    def transformer(self, **parts: Any) -> Transformer:
        return Transformer(**parts)

    def choose(self, logits: Floats, draws: Sequence[Draw | None]) -> list[int | Floats]:
        return list(logits)

    def new_cache(self, **sizes: int) -> KVCache:
        # Beside weights of 8 bits the cache would be most of what a token late in a text reads, and its rounding is
        # lost in theirs.
        default = "bfloat16" if self.dtype in ("int8", "int4") else "float32"
        return KVCache(**sizes, dtype=self.cache_dtype or default)


def open_backend(device: str, *, dtype: str, gemm: str, num_threads: int, cache_dtype: str | None = None) -> Backend:
    """The backend of "cpu", "cuda" or "cuda:1".

    Raises InputError for what is none of these and for options that the device does not have; of a GPU also
    MissingDependencyError, which names the extra that brings CuPy, and DeviceError, which says what was found.
    """
    if device == "cpu":
        return CpuBackend(dtype, gemm, num_threads, cache_dtype)
    if not isinstance(device, str) or device.partition(":")[0] != "cuda":
        raise InputError(f"device is {device!r}; expected 'cpu', 'cuda' or 'cuda:' and a number")
    if cache_dtype not in (None, dtype):
        raise InputError(f"cache_dtype is {cache_dtype!r}; on a GPU the cache is kept as the weights are, {dtype!r}")
    from gpt2fast.model.cuda.backend import CudaBackend

    return CudaBackend.open(device, dtype=dtype, gemm=gemm)
