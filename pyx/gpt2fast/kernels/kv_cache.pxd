# The keys and values of the tokens seen so far, in blocks that rows can share.
from libc.stdint cimport int32_t, int64_t

cdef class KVCache:
    cdef readonly int64_t batch
    cdef readonly int64_t capacity
    cdef readonly int64_t n_layer
    cdef readonly int64_t n_head
    cdef readonly int64_t head_dim
    cdef int64_t ld_values      # head_dim rounded up to 16
    cdef int64_t head_size      # numbers of one head's keys and values in a block
    cdef int64_t block_bytes
    cdef int64_t blocks_per_row
    cdef int64_t used           # blocks ever taken; later ones have never been touched
    cdef readonly bint half     # numbers are bfloat16, not float32
    cdef char *data
    cdef size_t size
    cdef void **tables          # [batch][blocks_per_row]
    cdef int64_t *row_lengths   # [batch]
    cdef int32_t *references    # [blocks]: rows that hold the block
    cdef list free

    cdef void *_take_block(self) except NULL
    cdef int _drop_blocks(self, int64_t row, int64_t first) except -1
    cdef int _check_row(self, int64_t row) except -1
    cdef int reserve(self, int64_t row, int64_t length) except -1
