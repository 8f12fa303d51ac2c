"""What a pass is to do: which new tokens continue which rows of a cache, where, and cut into which tiles."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from gpt2fast.kernels.attention cimport TILE_ROWS, Heads, Segment, Tile
from gpt2fast.kernels.kv_cache cimport KVCache

import numpy as np

from gpt2fast.errors import InputError, OutOfMemoryError


cdef class Plan:
    """New tokens of some rows of a cache: row `cache_rows[s]` grows by `counts[s]` tokens, once `grow` says so.

    The cache has room for their keys and values from then on, and must not change otherwise while the plan is in use.
    The caller has checked that no row appears twice.  Raises InputError where a row would go past the cache's capacity
    or `n_ctx`, before anything is changed.
    """

    def __init__(self, KVCache cache not None, const int64_t[::1] cache_rows, const int64_t[::1] counts, int64_t n_ctx):
        cdef int64_t s, i, row, held, limit = min(cache.capacity, n_ctx), n_segments = cache_rows.shape[0]
        cdef int64_t n_tiles = 0, tokens = 0
        for s in range(n_segments):
            row = cache_rows[s]
            cache._check_row(row)
            held = cache.row_lengths[row]
            if held + counts[s] > limit:
                raise InputError(
                    f"row {row} of the cache holds {held} tokens and would hold {held + counts[s]}; "
                    f"the limit is {limit}"
                )
            n_tiles += (counts[s] + TILE_ROWS - 1) // TILE_ROWS
            tokens += counts[s]
        for s in range(n_segments):
            cache.reserve(cache_rows[s], cache.row_lengths[cache_rows[s]] + counts[s])
        self.cache, self.cache_rows, self.counts = cache, cache_rows, counts
        self.tokens, self.n_segments, self.n_tiles = tokens, n_segments, n_tiles
        self.segments = <Segment *> malloc((n_segments + 1) * sizeof(Segment))  # never 0 bytes
        self.tiles = <Tile *> malloc((n_tiles + 1) * sizeof(Tile))
        if self.segments == NULL or self.tiles == NULL:
            raise OutOfMemoryError(f"no memory for a pass over {tokens} tokens")
        self.positions = np.empty(tokens, np.int64)
        n_tiles = tokens = 0
        for s in range(n_segments):
            self.segments[s].blocks = cache.tables + cache_rows[s] * cache.blocks_per_row
            self.segments[s].position = cache.row_lengths[cache_rows[s]]
            self.segments[s].first = tokens
            self.segments[s].count = counts[s]
            for i in range((counts[s] + TILE_ROWS - 1) // TILE_ROWS):
                self.tiles[n_tiles].segment, self.tiles[n_tiles].start = s, i * TILE_ROWS
                self.tiles[n_tiles].count = min(counts[s] - i * TILE_ROWS, TILE_ROWS)
                n_tiles += 1
            for i in range(counts[s]):
                self.positions[tokens] = self.segments[s].position + i
                tokens += 1

    def __dealloc__(self):
        free(self.segments)
        free(self.tiles)

    cdef Heads heads(self, int64_t layer, float scale) noexcept nogil:
        """The keys and values of a layer as attention reads them."""
        cdef Heads heads
        heads.n_head, heads.head_dim, heads.ld_values = self.cache.n_head, self.cache.head_dim, self.cache.ld_values
        heads.head_size, heads.half, heads.scale = self.cache.head_size, self.cache.half, scale
        heads.layer_offset = layer * self.cache.n_head * self.cache.head_size
        return heads

    def places(self):
        """The position of each new token in its text, int64 (tokens,)."""
        return np.asarray(self.positions)

    def grow(self):
        """Count the new tokens to their rows: their keys and values are there."""
        cdef int64_t s
        for s in range(self.n_segments):
            self.cache.row_lengths[self.cache_rows[s]] += self.counts[s]
