# What a pass over new tokens of a cache reads and where it writes.
from libc.stdint cimport int64_t

from gpt2fast.kernels.attention cimport Heads, Segment, Tile
from gpt2fast.kernels.kv_cache cimport KVCache

cdef class Plan:
    cdef readonly KVCache cache
    cdef readonly int64_t tokens        # new ones, of all rows
    cdef const int64_t[::1] cache_rows
    cdef const int64_t[::1] counts
    cdef int64_t[::1] positions         # [tokens]
    cdef Segment *segments              # one for each of cache_rows
    cdef Tile *tiles
    cdef int64_t n_segments
    cdef int64_t n_tiles

    cdef Heads heads(self, int64_t layer, float scale) noexcept nogil
