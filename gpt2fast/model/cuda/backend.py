"""The backend of a GPU: what `gpt2fast.model.gpt2` asks of it; `gpt2fast.model.backend.CpuBackend` is that of a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import DeviceError, InputError
from gpt2fast.model.cuda.device import Device, open_device, within_memory
from gpt2fast.model.cuda.kv_cache import CudaKVCache
from gpt2fast.model.cuda.operations import DTYPES, MAX_HEAD_DIM, Operations
from gpt2fast.model.cuda.transformer import CudaTransformer
from gpt2fast.model.cuda.weights import CudaWeight

__all__ = ["CudaBackend"]

T = TypeVar("T")
Floats = npt.NDArray[np.float32]


class CudaBackend:
    """A GPU that keeps matrices, and the cache, in one `dtype`: "float32", "float16" or "bfloat16".

    Raises InputError for another dtype, and DeviceError where the GPU does not multiply in it.
    """

    def __init__(self, device: Device, dtype: str) -> None:
        _check_dtype(dtype)
        if dtype == "bfloat16" and device.capability < (8, 0):
            major, minor = device.capability
            raise DeviceError(
                f"dtype is 'bfloat16', which takes compute capability 8.0; {device.description} has {major}.{minor}"
            )
        self.device = device.name
        self.dtype = dtype
        self.gemm = "cublas"
        self._device = device
        self._operations: dict[int, Operations] = {}  # by the width of a head

    @classmethod
    def open(cls, device: str, *, dtype: str, gemm: str) -> CudaBackend:
        """The backend of the GPU "cuda", the first one, or "cuda:1", the second.

        Raises as `open_device` and the class do, and InputError where `gemm` asks for a CPU's way to multiply.
        """
        _check_dtype(dtype)
        if gemm != "panel":
            raise InputError(f"gemm is {gemm!r}, which says how a CPU multiplies; on {device!r} cuBLAS does")
        return cls(open_device(device), dtype)

    @property
    def resolved_cache_dtype(self) -> str:
        return self.dtype

    def with_dtype(self, dtype: str) -> CudaBackend:
        """The backend of the same GPU for another dtype."""
        return CudaBackend(self._device, dtype)

    def load(self, build: Callable[[], T], *, shapes: Mapping[str, tuple[int, ...]], head_dim: int) -> T:
        """What `build` returns, which makes a model of tensors of those shapes with heads of that width.

        Raises InputError for heads that are too wide, DeviceError where the kernels cannot be compiled, and
        DeviceMemoryError where the weights do not fit; none are then left on the device.
        """
        if head_dim > MAX_HEAD_DIM:
            raise InputError(f"the heads are {head_dim} wide; on a GPU {MAX_HEAD_DIM} are the limit")
        self._operations[head_dim] = Operations(self._device, self.dtype, head_dim)
        counts = {name: math.prod(shape) for name, shape in shapes.items()}
        narrow = sum(n for name, n in counts.items() if len(shapes[name]) == 2 and name != "wpe.weight")
        size = 4 * (sum(counts.values()) - narrow) + np.dtype(DTYPES[self.dtype]).itemsize * narrow
        what = f"the weights, {sum(counts.values()):,} of them as {self.dtype},"
        return within_memory(self._device, what, size, build)

    def matrix(self, values: Floats, bias: Floats, *, by_output: bool) -> CudaWeight:
        """The matrix of `values` [k, n], or [n, k] where it is `by_output`, with its bias [n]."""
        return CudaWeight.moved(self._device, values, bias, dtype=self.dtype, by_output=by_output)

    def packed(self, data: Any, bias: Floats | None, *, k: int, n: int) -> CudaWeight:
        """Never; panels are made for a CPU.  Raises InputError."""
        raise InputError(f"the weights are packed for a CPU; {self.device} reads ordinary ones")

    def table(self, read: Callable[[int, int], Floats], n: int, k: int) -> CudaWeight:
        """The output head of n outputs, whose inputs `read(first, last)` gives, [last - first, k]."""
        return CudaWeight.table(self._device, read, n, k, dtype=self.dtype)

    def embeddings(self, values: Floats) -> CudaWeight:
        """The embeddings [n, k] of tokens, where they are not the output head too."""
        return CudaWeight.moved(self._device, values, None, dtype=self.dtype, by_output=True)

    def vector(self, values: Floats) -> Any:
        """What stays float32: biases, weights of norms, the embeddings of positions."""
        return self._device.upload(values)

    def transformer(self, **parts: Any) -> CudaTransformer:
        """The network of these parts, the keywords of `CudaTransformer`."""
        head_dim = parts["wpe"].shape[1] // parts["n_head"]
        return CudaTransformer(self._operations[head_dim], **parts)

    def new_cache(self, **sizes: int) -> CudaKVCache:
        """An empty cache; the keywords are those of `CudaKVCache`."""
        return CudaKVCache(self._device, DTYPES[self.dtype], **sizes)


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; on a GPU expected one of {', '.join(map(repr, DTYPES))}")
