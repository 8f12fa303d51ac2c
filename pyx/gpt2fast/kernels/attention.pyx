"""Causal self-attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762) of new tokens over the cache."""
from libc.stdint cimport int64_t

from gpt2fast.kernels.cpu cimport GF_BLOCK, parallel_for, rows


cdef struct Job:
    const Heads *heads
    const Segment *segments
    int64_t n_segments
    const Tile *tiles
    int64_t n_tiles
    const float *qkv
    int64_t ld_qkv
    float *out
    int64_t ldo
    float *scratch
    int64_t scratch_stride


cdef void _store(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    # The new keys and values of heads begin..end-1 into the cache: split by heads, so that no two threads share lines.
    cdef Job *job = <Job *> context
    cdef const Heads *heads = job.heads
    cdef int64_t width = heads.n_head * heads.head_dim
    cdef int64_t h, s, i, at, count, keys
    cdef const Segment *segment
    cdef const float *key
    for h in range(begin, end):
        keys = heads.layer_offset + h * heads.head_size
        for s in range(job.n_segments):
            segment = &job.segments[s]
            i = 0
            while i < segment.count:
                at = (segment.position + i) % GF_BLOCK
                count = min(GF_BLOCK - at, segment.count - i)
                key = job.qkv + (segment.first + i) * job.ld_qkv + width + h * heads.head_dim
                rows.store_block(heads.half, key, key + width, job.ld_qkv, count, at,
                                 segment.blocks[(segment.position + i) // GF_BLOCK], keys,
                                 keys + GF_BLOCK * heads.head_dim, heads.head_dim, heads.ld_values)
                i += count


cdef void _attend(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef const Heads *heads = job.heads
    cdef int64_t index, h, first, keys
    cdef const Tile *tile
    cdef const Segment *segment
    for index in range(begin, end):
        # One head's tiles follow each other, while its keys and values are in the cache; the longest come first,
        # so that no thread is left with one at the end.
        h = index // job.n_tiles
        tile = &job.tiles[job.n_tiles - 1 - index % job.n_tiles]
        segment = &job.segments[tile.segment]
        first = segment.first + tile.start
        keys = heads.layer_offset + h * heads.head_size
        rows.attend(heads.half, job.qkv + first * job.ld_qkv + h * heads.head_dim, job.ld_qkv, tile.count,
                    segment.position + tile.start, <const void *const *> segment.blocks, keys,
                    keys + GF_BLOCK * heads.head_dim, heads.head_dim, heads.ld_values, heads.scale,
                    job.scratch + thread * job.scratch_stride, job.out + first * job.ldo + h * heads.head_dim, job.ldo)


cdef void attention(const Heads *heads, const Segment *segments, int64_t n_segments, const Tile *tiles,
                    int64_t n_tiles, const float *qkv, int64_t ld_qkv, float *out, int64_t ldo, float *scratch,
                    int64_t scratch_stride, int num_threads) noexcept nogil:
    """out [m, n_embd] = attention of the rows of qkv [m, 3 n_embd], whose keys and values join the cache first."""
    cdef Job job
    job.heads, job.segments, job.n_segments, job.tiles, job.n_tiles = heads, segments, n_segments, tiles, n_tiles
    job.qkv, job.ld_qkv, job.out, job.ldo = qkv, ld_qkv, out, ldo
    job.scratch, job.scratch_stride = scratch, scratch_stride
    cdef const Segment *last = &segments[n_segments - 1]
    parallel_for(_store, &job, heads.n_head, 1, num_threads if last.first + last.count > 8 else 1)
    parallel_for(_attend, &job, heads.n_head * n_tiles, 1, num_threads)
