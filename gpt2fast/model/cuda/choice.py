"""Logits that are still on the device, and the ids chosen from them there: four bytes come back instead of a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import DeviceMemoryError
from gpt2fast.model.cuda.device import within_memory
from gpt2fast.model.cuda.operations import Operations
from gpt2fast.model.draw import Draw

__all__ = ["DRAW", "CudaLogits"]

Floats = npt.NDArray[np.float32]

#: A draw as the kernel has it: which row of logits it chooses from, and the fields of `Draw`.
DRAW = np.dtype({"names": ["row", *Draw._fields], "formats": ["i8", "i8", "u8", "f8", "i8", "f8", "f8"]})


class CudaLogits:
    """Rows of logits, float32 [rows, vocab_size], on the device; `np.asarray` brings them to the host."""

    def __init__(self, operations: Operations, values: Any) -> None:
        self._operations = operations
        self._device = operations.device
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        with self._device.current():
            return self._device.download(self._values).astype(dtype or np.float32, copy=False)

    def choose(self, draws: Sequence[Draw | None]) -> list[int | Floats]:
        """For each row the id that its draw chooses; where the host is to choose, the logits.

        That is so where there is None instead of a draw, and in the kernel's rare cases: a logit that is no finite
        number, of which the host tells more, and more logits to keep than the kernel has room for.  Raises
        DeviceMemoryError.
        """
        what, size = f"the choices from {len(self)} rows of logits", (DRAW.itemsize + 4) * len(self)
        try:
            return within_memory(self._device, what, size, partial(self._choose, draws))
        except DeviceMemoryError:
            self._values = None  # the error's traceback leads to this object
            raise

    def _choose(self, draws: Sequence[Draw | None]) -> list[int | Floats]:
        told = np.array([(row, *draw) for row, draw in enumerate(draws) if draw is not None], DRAW)
        if not len(told):
            return list(self._device.download(self._values))
        chosen = self._operations.choose(self._values, self._device.upload(told.view(np.int64)), len(told))
        ids = np.full(len(draws), -1)
        ids[told["row"]] = self._device.download(chosen)
        return [self._device.download(self._values[row]) if i < 0 else i for row, i in enumerate(ids.tolist())]
