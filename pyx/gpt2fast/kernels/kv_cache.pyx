"""The cache of keys and values: one row per sequence, each with its own length, in blocks of 16 positions."""
# Layout.  A block holds 16 positions of one row for all layers and heads: [layer][head] of keys [head_dim][16] and
# values [16][head_dim rounded up to 16].  So a cache grows with its tokens in one direction of memory, on huge pages,
# without ever being copied; a head reads runs of 4 KiB (head_dim 64); and rows with a common prefix share its blocks
# (as in vLLM's PagedAttention, Kwon et al. 2023, https://arxiv.org/abs/2309.06180), copied only when one row writes on.
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from gpt2fast.kernels.cpu cimport GF_BLOCK, allocate, checked_size, release

import numpy as np

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputError, OutOfMemoryError

_MOST = 2**63 - 1  # of the numbers below

cdef enum:
    # Of successive blocks one head's keys and values are read together.  Were they multiples of this apart, they would
    # share a few sets of a second cache, and a context of 300 positions would not stay in it: such blocks are one head
    # longer.
    CACHE_STRIDE = 65536


cdef class KVCache:
    """Keys and values of up to `capacity` tokens for each of `batch` rows, as "float32" or, in half the memory and less
    exactly, "bfloat16".  Memory is taken as tokens come."""

    def __init__(self, *, n_layer, n_head, head_dim, batch, capacity, str dtype="float32"):
        n_layer, n_head, head_dim, batch, capacity = [
            whole_number(name, value, least=1) for name, value in (
                ("n_layer", n_layer), ("n_head", n_head), ("head_dim", head_dim), ("batch", batch),
                ("capacity", capacity),
            )
        ]
        if dtype not in ("float32", "bfloat16"):
            raise InputError(f"the cache's dtype is {dtype!r}; expected 'float32' or 'bfloat16'")
        if self.data != NULL:
            raise TypeError("a KVCache cannot be initialised twice")
        # In Python's integers, which never wrap around; what fits as a whole fits in its parts.
        ld_values = (head_dim + 15) // 16 * 16
        head_size = GF_BLOCK * (head_dim + ld_values)
        half = dtype == "bfloat16"
        block_bytes = n_layer * n_head * head_size * (2 if half else 4)
        if block_bytes % CACHE_STRIDE == 0:
            block_bytes += head_size * (2 if half else 4)
        blocks_per_row = (capacity + GF_BLOCK - 1) // GF_BLOCK
        cdef size_t size = checked_size(batch * blocks_per_row * block_bytes)
        self.n_layer, self.n_head, self.head_dim, self.batch, self.capacity = n_layer, n_head, head_dim, batch, capacity
        self.ld_values, self.head_size, self.half = ld_values, head_size, half
        self.block_bytes, self.blocks_per_row = block_bytes, blocks_per_row
        self.free = []
        self.tables = <void **> calloc(batch * blocks_per_row, sizeof(void *))
        self.row_lengths = <int64_t *> calloc(batch, sizeof(int64_t))
        self.references = <int32_t *> calloc(batch * blocks_per_row, sizeof(int32_t))
        if self.tables == NULL or self.row_lengths == NULL or self.references == NULL:
            raise OutOfMemoryError(f"no memory for the tables of a cache of {batch} rows of {capacity} tokens")
        self.data = <char *> allocate(size)
        self.size = size

    def __dealloc__(self):
        if self.data != NULL:
            release(self.data, self.size)
        free(self.tables)
        free(self.row_lengths)
        free(self.references)

    @property
    def lengths(self):
        """The number of tokens in each row, an int64 array (batch,); a copy."""
        return np.array([self.row_lengths[row] for row in range(self.batch)], np.int64)

    @property
    def nbytes(self):
        """Bytes of memory that the tokens in the cache occupy now."""
        return (self.used - len(self.free)) * self.block_bytes

    def truncate(self, row, length):
        """Forget the tokens of `row` from position `length` on."""
        cdef int64_t place = whole_number("row", row, most=_MOST)
        cdef int64_t kept = whole_number("length", length, most=_MOST)
        self._check_row(place)
        if kept > self.row_lengths[place]:
            raise InputError(f"cannot truncate row {place} of {self.row_lengths[place]} tokens to {kept}")
        self._drop_blocks(place, (kept + GF_BLOCK - 1) // GF_BLOCK)
        self.row_lengths[place] = kept

    def copy_row(self, source, target):
        """Make row `target` equal to row `source`.  Nothing is copied until one of them grows."""
        cdef int64_t old = whole_number("source", source, most=_MOST)
        cdef int64_t new = whole_number("target", target, most=_MOST)
        cdef int64_t block
        cdef void *shared
        self._check_row(old)
        self._check_row(new)
        if old == new:
            return
        self._drop_blocks(new, 0)
        for block in range((self.row_lengths[old] + GF_BLOCK - 1) // GF_BLOCK):
            shared = self.tables[old * self.blocks_per_row + block]
            self.tables[new * self.blocks_per_row + block] = shared
            self.references[(<char *> shared - self.data) // self.block_bytes] += 1
        self.row_lengths[new] = self.row_lengths[old]

    cdef int _check_row(self, int64_t row) except -1:
        if not 0 <= row < self.batch:
            raise InputError(f"row {row} is not in the cache, which has rows 0 to {self.batch - 1}")
        return 0

    cdef void *_take_block(self) except NULL:
        cdef int64_t index
        if self.free:
            index = self.free.pop()
        elif self.used < self.batch * self.blocks_per_row:
            index = self.used
            self.used += 1
        else:
            raise RuntimeError("the cache has lost count of its blocks")
        self.references[index] = 1
        return self.data + index * self.block_bytes

    cdef int _drop_blocks(self, int64_t row, int64_t first) except -1:
        """Give up the blocks of `row` from number `first` on."""
        cdef void **table = self.tables + row * self.blocks_per_row
        cdef int64_t block, index
        for block in range(first, self.blocks_per_row):
            if table[block] == NULL:
                break
            index = (<char *> table[block] - self.data) // self.block_bytes
            table[block] = NULL
            self.references[index] -= 1
            if self.references[index] == 0:
                self.free.append(index)
        return 0

    cdef int reserve(self, int64_t row, int64_t length) except -1:
        """Have blocks of the row's own for its tokens to come, up to `length` in all.  Its length is unchanged."""
        cdef void **table = self.tables + row * self.blocks_per_row
        cdef void *fresh
        cdef int64_t index, block = self.row_lengths[row] // GF_BLOCK
        self._check_row(row)
        if length > self.capacity:
            raise InputError(
                f"row {row} of the cache holds {self.row_lengths[row]} tokens and would hold {length}; "
                f"the limit is {self.capacity}"
            )
        if self.row_lengths[row] % GF_BLOCK and table[block] != NULL:
            index = (<char *> table[block] - self.data) // self.block_bytes
            if self.references[index] > 1:  # another row's too: write into a copy
                fresh = self._take_block()
                memcpy(fresh, table[block], <size_t> self.block_bytes)
                self.references[index] -= 1
                table[block] = fresh
        for block in range(block, (length + GF_BLOCK - 1) // GF_BLOCK):
            if table[block] == NULL:
                table[block] = self._take_block()
        return 0
