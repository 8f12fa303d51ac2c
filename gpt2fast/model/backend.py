"""Where a model computes: the parts of a network and its caches, made for one device.

`gpt2fast.model.gpt2` is written against `Backend`.  `CpuBackend` is here, made of `gpt2fast.kernels`; that of a GPU is
in `gpt2fast.model.cuda`, which is imported when one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import ids_of
from gpt2fast.checkpoint.weights import DTYPES
from gpt2fast.errors import InputError
from gpt2fast.kernels.kv_cache import KVCache
from gpt2fast.kernels.linear import Weight
from gpt2fast.kernels.transformer import Transformer
from gpt2fast.model.blas import one_blas_thread
from gpt2fast.model.outputs import Outputs

__all__ = ["Backend", "Cache", "CacheDType", "CpuBackend", "DType", "Gemm", "Network", "Outputs", "StoredWeight"]
__all__ += ["open_backend"]

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
    """A network, ready to run: `gpt2fast.kernels.transformer.Transformer`, or what a device has in its place."""

    def forward(
        self,
        cache: Any,
        cache_rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int64],
        *,
        num_threads: int = 1,
    ) -> Outputs:
        """What is there after some of the new tokens, whose keys and values are now in the cache.

        Row `cache_rows[s]` of the cache grows by `counts[s]` tokens; `ids` holds all of them, one row after another;
        outputs are wanted for the tokens at the indices `outputs` of `ids`.  The caller has checked the ids and that no
        cache row appears twice.  Raises InputError where a row would outgrow the cache, before anything is changed.
        """
        ...

    def residual(
        self,
        cache: Any,
        cache_rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int64],
        stages: npt.NDArray[np.int64],
        *,
        num_threads: int = 1,
    ) -> Floats:
        """The residual stream at `stages`, at least one, in growing order: float32 [len(stages), len(outputs), n_embd].

        Stage 0 is the embeddings, 2 i + 1 and 2 i + 2 what attention and MLP of layer i have made of it, 2 n_layer + 1
        the final hidden states.  Layers beyond the last stage are not run, so the cache gets no keys and values
        for them.
        """
        ...


class Backend(Protocol):
    """What makes the parts of a network for one device, with matrices kept in one dtype."""

    #: "cpu", or "cuda:" and a number.
    device: str
    dtype: str
    #: What multiplies: "panel", "blas" or "cublas".
    gemm: str

    @property
    def resolved_cache_dtype(self) -> str:
        """How a new cache keeps keys and values."""
        ...

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
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise InputError(f"dtype is {self.dtype!r}; expected one of {', '.join(map(repr, DTYPES))}")
        if not isinstance(self.gemm, str) or self.gemm not in ("panel", "blas"):
            raise InputError(f"gemm is {self.gemm!r}; expected 'panel' or 'blas'")
        if self.gemm == "blas" and self.dtype != "float32":
            raise InputError(f"gemm is 'blas' and dtype {self.dtype!r}; BLAS multiplies float32 only")
        if self.cache_dtype is not None and str(self.cache_dtype) not in ("float32", "bfloat16"):
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

    def transformer(self, **parts: Any) -> CpuNetwork:
        return CpuNetwork(parts, blas=self.gemm == "blas")

    @property
    def resolved_cache_dtype(self) -> str:
        # Beside weights of 8 bits the cache would be most of what a token late in a text reads, and its rounding is
        # lost in theirs.
        return self.cache_dtype or ("bfloat16" if self.dtype in ("int8", "int4") else "float32")

    def new_cache(self, **sizes: int) -> KVCache:
        return KVCache(**sizes, dtype=self.resolved_cache_dtype)


class CpuNetwork:
    """A network of the kernels of this package, made of `parts`, the keywords of `Transformer`."""

    def __init__(self, parts: Mapping[str, Any], *, blas: bool) -> None:
        self.parts = parts
        self.transformer = Transformer(**parts)
        # The BLAS setting costs microseconds, but belongs to the whole process: only where BLAS is used.
        self.within = one_blas_thread if blas else nullcontext

    def forward(self, *arguments: Any, num_threads: int = 1) -> CpuOutputs:
        with self.within():
            states = self.transformer.forward(*arguments, num_threads=num_threads)
        return CpuOutputs(states, self, num_threads)

    def residual(self, *arguments: Any, num_threads: int = 1) -> Floats:
        with self.within():
            return self.transformer.residual(*arguments, num_threads=num_threads)

    def logits(self, states: Floats, num_threads: int) -> Floats:
        """What the head makes of final hidden states."""
        with self.within():
            return self.transformer.logits(states, num_threads=num_threads)

    def measures(
        self, states: Floats, targets: npt.NDArray[np.int64], n_vocab: int, num_threads: int
    ) -> npt.NDArray[np.float64]:
        """What these logits, of which only a few rows are there at a time, say about the targets."""
        with self.within():
            return self.transformer.measures(states, targets, n_vocab, num_threads=num_threads)


class CpuOutputs(Outputs):
    """The outputs of a pass on a CPU: final hidden states, float32 [n, n_embd], whose logits are made on demand."""

    def __init__(self, states: Floats, network: CpuNetwork, num_threads: int) -> None:
        self._states = states
        self._network = network
        self._num_threads = num_threads

    def __len__(self) -> int:
        return len(self._states)

    def states(self, start: int, stop: int) -> Floats:
        return self._states[start:stop]

    def logits(self, start: int, stop: int) -> Floats:
        return self._network.logits(self._states[start:stop], self._num_threads)

    def _measures(self, start: int, targets: npt.NDArray[np.int64], n_vocab: int) -> npt.NDArray[np.float64]:
        n_vocab = min(n_vocab, self._network.transformer.vocab_size)
        ids_of("targets", targets, n_vocab)
        return self._network.measures(self._states[start : start + len(targets)], targets, n_vocab, self._num_threads)


def open_backend(device: str, *, dtype: str, gemm: str, num_threads: int, cache_dtype: str | None = None) -> Backend:
    """The backend of "cpu", "cuda" or "cuda:1".

    Raises InputError for what is none of these and for options that the device does not have; of a GPU also
    MissingDependencyError, which names the extra that brings CuPy, and DeviceError, which says what was found.
    """
    if isinstance(device, str) and device == "cpu":
        return CpuBackend(dtype, gemm, num_threads, cache_dtype)
    if not isinstance(device, str) or device.partition(":")[0] != "cuda":
        raise InputError(f"device is {device!r}; expected 'cpu', 'cuda' or 'cuda:' and a number")
    if cache_dtype is not None and str(cache_dtype) != str(dtype):
        raise InputError(f"cache_dtype is {cache_dtype!r}; on a GPU the cache is kept as the weights are, {dtype!r}")
    from gpt2fast.model.cuda.backend import CudaBackend

    return CudaBackend.open(device, dtype=dtype, gemm=gemm)
