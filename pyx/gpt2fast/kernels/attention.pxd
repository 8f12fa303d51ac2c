# Causal attention of new tokens over the cache.
from libc.stdint cimport int64_t

from gpt2fast.kernels.cpu cimport GF_ATTEND_ROWS, GF_BLOCK

# Successive new tokens of one cache row.
cdef struct Segment:
    void **blocks        # of the cache row
    int64_t position     # of the first new token
    int64_t first        # its row among the activations
    int64_t count

# A few successive rows of a segment: what one thread attends for at once.
cdef struct Tile:
    int64_t segment
    int64_t start
    int64_t count

cdef enum:
    TILE_ROWS = 16

cdef struct Heads:
    int64_t n_head
    int64_t head_dim
    int64_t ld_values
    int64_t head_size      # numbers, from one head to the next in a block
    int64_t layer_offset   # of the layer's first head in a block
    float scale
    bint half              # the cache's numbers are bfloat16

cdef inline int64_t scores_stride(int64_t capacity) noexcept nogil:
    # Floats of scratch that each thread needs for the scores of texts of up to `capacity` tokens, a cache line between.
    return GF_ATTEND_ROWS * ((capacity + GF_BLOCK - 1) // GF_BLOCK * GF_BLOCK) + 16

# `scratch` has `scratch_stride` floats for each thread.
cdef void attention(const Heads *heads, const Segment *segments, int64_t n_segments, const Tile *tiles,
                    int64_t n_tiles, const float *qkv, int64_t ld_qkv, float *out, int64_t ldo, float *scratch,
                    int64_t scratch_stride, int num_threads) noexcept nogil
