"""The cache of keys and values on a device: one row per text, in blocks of 32 positions that rows can share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.model.cuda.device import Device
from gpt2fast.model.cuda.operations import BLOCK

__all__ = ["CudaKVCache"]


class _Block:
    """Memory for 32 positions of one text, all layers and heads; `rows` counts those that it belongs to.

    What a row has written to its blocks is known from its length; the rest of a block is anything.
    """

    def __init__(self, device: Device, size: int, storage: type[np.generic]) -> None:
        self.data = device.xp.empty(size, storage)
        self.address = device.address(self.data)
        self.rows = 1


class CudaKVCache:
    """Keys and values of up to `capacity` tokens for each of `batch` rows.  Memory is taken as tokens come.

    What `gpt2fast.kernels.kv_cache.KVCache` is on a CPU.  `storage` is what the arrays are made of.
    """

    def __init__(
        self,
        device: Device,
        storage: type[np.generic],
        *,
        n_layer: int,
        n_head: int,
        head_dim: int,
        batch: int,
        capacity: int,
    ) -> None:
        if batch < 1:
            raise InputError(f"batch is {batch}; a cache needs at least one row")
        if capacity < 1:
            raise InputError(f"capacity is {capacity}; a cache needs room for at least one token")
        self.device = device
        self.n_layer, self.n_head, self.head_dim, self.batch, self.capacity = n_layer, n_head, head_dim, batch, capacity
        self.storage = storage
        self._block_size = n_layer * n_head * 2 * head_dim * BLOCK
        self._lengths = np.zeros(batch, np.int64)
        self._rows: list[list[_Block]] = [[] for _ in range(batch)]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens in each row, an int64 array (batch,); a copy."""
        return np.array(self._lengths)

    @property
    def block_nbytes(self) -> int:
        """Bytes of the device's memory that a block occupies."""
        return self._block_size * np.dtype(self.storage).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that the tokens in the cache occupy now."""
        return len({block.address for row in self._rows for block in row}) * self.block_nbytes

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of `row` from position `length` on."""
        self.check_row(row)
        if not 0 <= length <= self._lengths[row]:
            raise InputError(f"cannot truncate row {row} of {self._lengths[row]} tokens to {length}")
        self._lengths[row] = length
        self._drop_unused(row)

    def copy_row(self, source: int, target: int) -> None:
        """Make row `target` equal to row `source`.  Nothing is copied until one of them grows."""
        self.check_row(source)
        self.check_row(target)
        if source == target:
            return
        self.truncate(target, 0)
        for block in self._rows[source]:
            block.rows += 1
            self._rows[target].append(block)
        self._lengths[target] = self._lengths[source]

    def check_row(self, row: int) -> None:
        """Raise InputError where there is no such row."""
        if not 0 <= row < self.batch:
            raise InputError(f"row {row} is not in the cache, which has rows 0 to {self.batch - 1}")

    def blocks_for(self, rows: Sequence[int], counts: Sequence[int]) -> int:
        """How many blocks `rows` take that they do not have if they grow by `counts` tokens each."""
        missing = sum(-(-(int(self._lengths[row]) + count) // BLOCK) for row, count in zip(rows, counts, strict=True))
        return missing - sum(len(self._rows[row]) - self._shares_last(row) for row in rows)

    def reserve(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Have blocks of the rows' own for `counts` tokens to come; lengths are unchanged.

        Where memory runs out the rows are as they were before.
        """
        try:
            for row, count in zip(rows, counts, strict=True):
                blocks = self._rows[row]
                if self._shares_last(row):  # write into a copy
                    own = self._new_block()
                    own.data[...] = blocks[-1].data
                    blocks[-1].rows -= 1
                    blocks[-1] = own
                while len(blocks) * BLOCK < self._lengths[row] + count:
                    blocks.append(self._new_block())
        except BaseException:
            self.give_up(rows)
            raise

    def give_up(self, rows: Sequence[int]) -> None:
        """Give back the blocks that were reserved for `rows` and not used."""
        for row in rows:
            self._drop_unused(row)

    def grow(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Note that `rows` hold `counts` more tokens each, which have been written."""
        for row, count in zip(rows, counts, strict=True):
            self._lengths[row] += count

    def tables(self, rows: Sequence[int]) -> npt.NDArray[np.int64]:
        """The addresses of the blocks of `rows`: int64 (len(rows), the most that one has), filled up with 0."""
        table = np.zeros((len(rows), max(len(self._rows[row]) for row in rows)), np.int64)
        for addresses, row in zip(table, rows, strict=True):
            addresses[: len(self._rows[row])] = [block.address for block in self._rows[row]]
        return table

    def _shares_last(self, row: int) -> bool:
        """Whether the next token of the row would be written into another row's block too."""
        return bool(self._lengths[row] % BLOCK) and self._rows[row][-1].rows > 1

    def _new_block(self) -> _Block:
        return _Block(self.device, self._block_size, self.storage)

    def _drop_unused(self, row: int) -> None:
        blocks = self._rows[row]
        while (len(blocks) - 1) * BLOCK >= self._lengths[row] and blocks:
            blocks.pop().rows -= 1
