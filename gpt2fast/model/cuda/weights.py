"""Weights on the device: matrices, moved there once and kept as the checkpoint has them, in one of three dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.model.cuda.device import Device
from gpt2fast.model.cuda.operations import DTYPES, Matrix

__all__ = ["CudaWeight", "narrow", "widen"]

Floats = npt.NDArray[np.float32]

# Rows of a table that are read, rounded and moved together.
_ROWS = 4096


class CudaWeight:
    """A weight matrix of k inputs and n outputs on a device, with its bias, in the layout that it came in."""

    def __init__(self, device: Device, matrix: Matrix, dtype: str, bias: Any = None) -> None:
        self.matrix = matrix
        self.bias = bias
        self._device = device
        self._dtype = dtype

    @classmethod
    def moved(cls, device: Device, values: Floats, bias: Floats | None, *, dtype: str, by_output: bool) -> CudaWeight:
        """The weight of `values` [k, n], or [n, k] where it is `by_output`.  Raises as `narrow` does."""
        k, n = reversed(values.shape) if by_output else values.shape
        matrix = Matrix(device.upload(narrow(values, dtype)), k, n, by_output)
        return cls(device, matrix, dtype, None if bias is None else device.upload(bias))

    @classmethod
    def table(cls, device: Device, read: Callable[[int, int], Floats], n: int, k: int, *, dtype: str) -> CudaWeight:
        """The weight of n outputs whose inputs `read(first, last)` gives, [last - first, k], part by part."""
        data = device.xp.empty((n, k), DTYPES[dtype])
        for first in range(0, n, _ROWS):
            last = min(first + _ROWS, n)
            data[first:last] = device.upload(narrow(read(first, last), dtype))
        return cls(device, Matrix(data, k, n, by_output=True), dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n)."""
        return self.matrix.k, self.matrix.n

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that the matrix occupies."""
        return int(self.matrix.data.nbytes)

    def outputs(self, first: int, last: int) -> Floats:
        """The float32 weights [last - first, k] of the outputs `first` to `last`, on the host."""
        data = self.matrix.data
        with self._device.current():
            # As one run of memory: CuPy copies nothing else.
            part = (
                data[first:last] if self.matrix.by_output else self._device.xp.ascontiguousarray(data[:, first:last].T)
            )
            return widen(self._device.download(part), self._dtype)

    def values(self) -> Floats:
        """The float32 weights [k, n], on the host."""
        with self._device.current():
            values = widen(self._device.download(self.matrix.data), self._dtype)
        return np.ascontiguousarray(values.T) if self.matrix.by_output else values


def narrow(values: Floats, dtype: str) -> npt.NDArray[Any]:
    """Float32 `values` rounded to the nearest of `dtype`, of two the even one; bfloat16 as the uint16 of its bits.

    Raises InputError where a number is too large for it.
    """
    if dtype == "float32":
        return values
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16) if dtype == "float16" else _bfloat16(values)
    if not np.isfinite(widen(rounded, dtype)).all() and np.isfinite(values).all():
        largest = float(np.abs(values).max())
        raise InputError(f"the weights go up to {largest:g}, too large for {dtype}; load with dtype 'float32'")
    return rounded


def widen(values: npt.NDArray[Any], dtype: str) -> Floats:
    """The float32 values of what `narrow` gave; a new array, except of float32."""
    if dtype == "bfloat16":
        wide: Floats = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        wide = values.astype(np.float32, copy=False)
    return wide


def _bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: npt.NDArray[np.uint16] = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded
