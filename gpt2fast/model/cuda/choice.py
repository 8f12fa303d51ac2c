"""Outputs of a pass that are still on the device, and the ids chosen there: four bytes come back instead of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import DeviceMemoryError
from gpt2fast.model.cuda.device import within_memory
from gpt2fast.model.cuda.operations import Norm, Operations
from gpt2fast.model.cuda.weights import CudaWeight
from gpt2fast.model.draw import Draw
from gpt2fast.model.outputs import Outputs

__all__ = ["DRAW", "CudaOutputs", "Head"]

T = TypeVar("T")
Floats = npt.NDArray[np.float32]

#: A draw as the kernel has it: which row of logits it chooses from, and the fields of `Draw`.
DRAW = np.dtype({"names": ["row", *Draw._fields], "formats": ["i8", "i8", "u8", "f8", "i8", "f8", "f8"]})


class Head(NamedTuple):
    """The final norm, and the head that makes logits of what it puts out."""

    norm: Norm
    weight: CudaWeight


class CudaOutputs(Outputs):
    """The outputs of a pass on a device: the residual stream x [T, n_embd], a `bias` still to be added to it, or None,
    and at which of its rows the outputs are.  All methods raise DeviceMemoryError."""

    def __init__(self, operations: Operations, x: Any, bias: Any, rows: Any, head: Head) -> None:
        self._operations = operations
        self._device = operations.device
        self._x, self._bias, self._rows, self._head = x, bias, rows, head

    def __len__(self) -> int:
        return len(self._rows)

    def states(self, start: int, stop: int) -> Floats:
        if start == stop:  # no kernel runs over nothing
            return np.empty((0, self._x.shape[1]), np.float32)
        what, size = f"the hidden states of {stop - start} tokens", 4 * (stop - start) * self._x.shape[1]
        return self._within(what, size, lambda: self._device.download(self._normed(start, stop, exact=True)))

    def logits(self, start: int, stop: int) -> Floats:
        if start == stop:
            return np.empty((0, self._head.weight.shape[1]), np.float32)
        return self._with_logits(start, stop, self._device.download)

    def choose(self, start: int, draws: Sequence[Draw]) -> list[int]:
        """As `Outputs.choose`; a choice that keeps more logits than the kernel has room for is made on the host."""
        ids = self._with_logits(start, start + len(draws), partial(self._choose, draws)) if draws else []
        for i, chosen in enumerate(ids):
            if chosen < 0:
                ids[i] = super().choose(start + i, draws[i : i + 1])[0]
        return ids

    def _choose(self, draws: Sequence[Draw], logits: Any) -> list[int]:
        told = np.array([(row, *draw) for row, draw in enumerate(draws)], DRAW)
        chosen = self._operations.choose(logits, self._device.upload(told.view(np.int64)), len(told))
        ids: list[int] = self._device.download(chosen).tolist()
        return ids

    def _normed(self, start: int, stop: int, *, exact: bool) -> Any:
        rows, norm = self._rows[start:stop], self._head.norm
        return self._operations.layer_norm_of(self._x, rows, self._bias, norm, exact=exact)

    def _with_logits(self, start: int, stop: int, use: Callable[[Any], T]) -> T:
        """What `use` makes of the logits [stop - start, vocab_size], which are given back then."""
        n, (width, vocab_size) = stop - start, self._head.weight.shape

        def call() -> T:
            return use(self._operations.product(self._normed(start, stop, exact=False), self._head.weight.matrix))

        return self._within(f"the logits of {n} tokens", n * (4 * width + 4 * vocab_size + DRAW.itemsize + 4), call)

    def _within(self, what: str, size: int, call: Callable[[], T]) -> T:
        try:
            return within_memory(self._device, what, size, call)
        except DeviceMemoryError:
            self._x = None  # the error's traceback leads to this object
            raise
