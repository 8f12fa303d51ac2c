/* Causal attention of a few successive positions of one head over the blocked cache.
 *
 * A block holds the keys of GF_BLOCK positions as [head_dim][GF_BLOCK], so that a vector register holds successive
 * positions and scores need no horizontal sums, and their values as [GF_BLOCK][ld_values].  Two passes over a row of
 * scores (the context is short enough to keep them) instead of an online softmax: nothing is rescaled, and a row's sums
 * have one order, whatever rows are computed beside it.
 *
 * Performance notes (30 November 2026, Zen 4, one thread, 900 positions of 124M, 66 MB of keys and values):
 * - One row, block after block: 13 ms a token.  The sums of one block wait for each other, and a block is too short for
 *   the processor to see a stream.  Four blocks at a time: 8 ms; the next ones fetched into the first cache meanwhile:
 *   4.6 ms; into the second, as they would push out what is being read: 3.4 ms, 20 GB/s.
 *   A cache of bfloat16: 2.0 ms.
 * - Thrown away: two blocks at a time (3.6 ms), values fetched two blocks ahead (no difference).
 *
 * Prompts (1 December 2026, Xeon of the fifth generation, AVX-512), tiles of eight rows by two blocks, which have 16 sums
 * where four rows by one block had four, half of what two units of latency 4 need; and blocks of the cache that are no
 * multiples of 64 KiB apart (kv_cache.pyx).  124M in int8 with one thread, tokens per second, medians of 11 by turns, of
 * prompts of 512 / 1024: 1156 / 1097 before both, 1484 / 1176 with both; not measured apart.
 * Not tried: tiles of six rows with AVX2, which keeps four rows by one block.
 *
 * The same day and machine, one thread, 10^9 products a second, best of three by turns: over a cache of bfloat16 38 became
 * 48.5 of 512 positions and of 1024, as one instruction widens its numbers (compilers made five). Over one of float32 it is
 * 55 for 512 as for 1024, of 85.5 that products reach: longer prompts are slower for their arithmetic, not for the caches.
 * The whole 124M in int8, tokens per second of prompts of 512 / 1024, medians of 11 by turns, with keys and values rounded
 * by vectors as they are stored (6 % of a prompt before, 3 % after) and with quicker sums in quantising (6 %, 5 %): one
 * thread 1634 / 1275 before, 1851 / 1511 after; two threads, best of 11, 3070 / 2561 and 3510 / 2934.
 * Thrown away: twelve rows by two blocks (float32 46 instead of 57, bfloat16 the same); rows of scores that are a cache line
 * longer, against rows in the same sets (no difference). */

/* GF_LANES numbers of the cache from `index` on: float32, or bfloat16, which is the upper half of one. */
GF_INLINE vf load_cached(const int half, const void *block, int64_t index) {
    if (!half) return load((const float *)block + index);
    return (vf)(widen(*(const vh_unaligned *)((const uint16_t *)block + index)) << 16);
}

/* The cache line of such numbers, on its way into the second cache. */
GF_INLINE void fetch_cached(const int half, const void *block, int64_t index) {
    __builtin_prefetch((const char *)block + index * (half ? 2 : 4), 0, 2);
}

/* scores[r][t] = scale * q[r] . key[t] for the GF_BLOCK positions of each of `count` blocks; the blocks of `next` are on
 * their way into the cache meanwhile. */
GF_INLINE void score_blocks(const int half, const int rows, const int count, const float *q, int64_t ldq,
                            const void *const *blocks, const void *const *next, int64_t offset, int64_t head_dim, float scale, float *scores,
                            int64_t ld_scores) {
    enum { WIDTH = GF_BLOCK / GF_LANES };
    vf sum[2 * GF_ATTEND_ROWS][WIDTH];
    GF_UNROLL for (int r = 0; r < rows * count; r++) {
        GF_UNROLL for (int v = 0; v < WIDTH; v++) sum[r][v] = splat(0.0f);
    }
    for (int64_t d = 0; d < head_dim; d++) {
        GF_UNROLL for (int b = 0; b < count; b++) {
            const int64_t at = offset + d * GF_BLOCK;
            vf key[WIDTH];
            GF_UNROLL for (int v = 0; v < WIDTH; v++) key[v] = load_cached(half, blocks[b], at + v * GF_LANES);
            fetch_cached(half, next[b], at);
            GF_UNROLL for (int r = 0; r < rows; r++) {
                const vf value = splat(q[r * ldq + d]);
                GF_UNROLL for (int v = 0; v < WIDTH; v++) sum[r * count + b][v] = vfma(value, key[v], sum[r * count + b][v]);
            }
        }
    }
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int b = 0; b < count; b++) {
            GF_UNROLL for (int v = 0; v < WIDTH; v++)
                store(scores + r * ld_scores + b * GF_BLOCK + v * GF_LANES, sum[r * count + b][v] * scale);
        }
    }
}

/* Scores of the positions 0..last become e^(score - largest), later ones 0; returns one over their sum, which has
 * GF_BLOCK lanes: lane j adds the positions j, j + 16, j + 32 … in this order. */
GF_INLINE float softmax_row(float *scores, int64_t last, int64_t length) {
    enum { WIDTH = GF_BLOCK / GF_LANES };
    const int64_t whole = (last + 1) / GF_BLOCK * GF_BLOCK; /* in the blocks before, no position is beyond `last` */
    const vf minus_infinity = splat(-INFINITY);
    vi lane;
    for (int i = 0; i < GF_LANES; i++) lane[i] = i;
    vf largest = minus_infinity;
    for (int64_t t = 0; t < whole; t += GF_LANES) largest = vmax(load(scores + t), largest);
    for (int64_t t = whole; t <= last; t += GF_LANES) {
        const vi outside = lane > (int32_t)(last - t);
        largest = vmax(choose(outside, minus_infinity, load(scores + t)), largest);
    }
    const float top = max_lanes(largest);
    vf sum[WIDTH];
    GF_UNROLL for (int v = 0; v < WIDTH; v++) sum[v] = splat(0.0f);
    for (int64_t t = 0; t < whole; t += GF_BLOCK) {
        GF_UNROLL for (int v = 0; v < WIDTH; v++) {
            const vf e = vexp(load(scores + t + v * GF_LANES) - top);
            store(scores + t + v * GF_LANES, e);
            sum[v] += e;
        }
    }
    for (int64_t t = whole; t < length; t += GF_BLOCK) {
        GF_UNROLL for (int v = 0; v < WIDTH; v++) {
            /* Beyond `last` lie scores of other rows' positions or of old cache contents: replaced, not multiplied. */
            const int64_t at = t + v * GF_LANES;
            const vi outside = lane > (int32_t)(last - at);
            const vf e = (vf)(~outside & (vi)vexp(load(scores + at) - top));
            store(scores + at, e);
            sum[v] += e;
        }
    }
    return 1.0f / sum_registers(WIDTH, sum);
}

/* out[r] = inverse[r] * sum over t of weights[r][t] * values[t], for `width` registers of columns; t goes to `last` in row
 * 0 and one further in each row after it. */
GF_INLINE void mix_values(const int half, const int rows, const int width, const float *weights, int64_t ld_weights,
                          int64_t last, const void *const *blocks, int64_t offset, int64_t ld_values, const float *inverse,
                          float *out, int64_t ldo, int64_t columns) {
    vf sum[GF_ATTEND_ROWS][4];
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = splat(0.0f);
    }
    for (int64_t start = 0; start <= last; start += GF_BLOCK) {
        const void *values = blocks[start / GF_BLOCK];
        const void *next = start + GF_BLOCK <= last ? blocks[start / GF_BLOCK + 1] : values;
        const int64_t end = last - start < GF_BLOCK - 1 ? last - start + 1 : GF_BLOCK;
        for (int64_t t = 0; t < end; t++) {
            vf value[4];
            GF_UNROLL for (int v = 0; v < width; v++) {
                value[v] = load_cached(half, values, offset + t * ld_values + v * GF_LANES);
                fetch_cached(half, next, offset + t * ld_values + v * GF_LANES);
            }
            GF_UNROLL for (int r = 0; r < rows; r++) {
                const vf weight = splat(weights[r * ld_weights + start + t]);
                GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = vfma(weight, value[v], sum[r][v]);
            }
        }
    }
    /* What an earlier row does not see must not be multiplied by 0 instead: 0 times infinity is NaN. */
    GF_UNROLL for (int first = 1; first < rows; first++) {
        const int64_t t = last + first, at = offset + t % GF_BLOCK * ld_values;
        GF_UNROLL for (int v = 0; v < width; v++) {
            const vf value = load_cached(half, blocks[t / GF_BLOCK], at + v * GF_LANES);
            GF_UNROLL for (int r = first; r < rows; r++)
                sum[r][v] = vfma(splat(weights[r * ld_weights + t]), value, sum[r][v]);
        }
    }
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++) {
            const vf result = sum[r][v] * inverse[r];
            const int64_t rest = columns - v * GF_LANES;
            if (rest >= GF_LANES) {
                store(out + r * ldo + v * GF_LANES, result);
            } else if (rest > 0) {
                float lanes[GF_LANES];
                store(lanes, result);
                memcpy(out + r * ldo + v * GF_LANES, lanes, (size_t)rest * sizeof(float));
            }
        }
    }
}

GF_INLINE void attend_tile(const int half, const int rows, const float *q, int64_t ldq, int64_t position,
                           const void *const *blocks, int64_t keys, int64_t values, int64_t head_dim,
                           int64_t ld_values, float scale, float *scores, float *out, int64_t ldo) {
    const int64_t count = position + rows;
    const int64_t length = (count + GF_BLOCK - 1) / GF_BLOCK * GF_BLOCK;
    /* Each sum waits for the one before it: of few rows several blocks are summed at a time, as registers allow. */
    const int many = rows == 1 ? (GF_LANES == 4 ? 2 : 4) : GF_LANES == 16 ? 2 : 1;
    const int64_t n_blocks = length / GF_BLOCK;
    int64_t b = 0;
    for (; b + many <= n_blocks; b += many)
        score_blocks(half, rows, many, q, ldq, blocks + b, blocks + (b + 2 * many <= n_blocks ? b + many : b), keys,
                     head_dim, scale, scores + b * GF_BLOCK, length);
    for (; b < n_blocks; b++)
        score_blocks(half, rows, 1, q, ldq, blocks + b, blocks + (b + 1 < n_blocks ? b + 1 : b), keys, head_dim, scale,
                     scores + b * GF_BLOCK, length);
    float inverse[GF_ATTEND_ROWS];
    for (int r = 0; r < rows; r++) inverse[r] = softmax_row(scores + r * length, position + r, length);
    const int wide = GF_LANES == 16 && rows <= 4 ? 4 : 2;
    int64_t d = 0;
    for (; d + wide * GF_LANES <= ld_values; d += wide * GF_LANES)
        mix_values(half, rows, wide, scores, length, position, blocks, values + d, ld_values, inverse, out + d, ldo,
                   head_dim - d);
    for (; d < head_dim; d += GF_LANES)
        mix_values(half, rows, 1, scores, length, position, blocks, values + d, ld_values, inverse, out + d, ldo,
                   head_dim - d);
}

/* Positions at..at+count-1 of a block take over the keys and values of `count` rows. */
static void store_block(int half, const float *key, const float *value, int64_t ld, int64_t count, int64_t at, void *block,
                        int64_t keys, int64_t values, int64_t head_dim, int64_t ld_values) {
    float *floats = block;
    uint16_t *halves = block;
    values += at * ld_values;
    keys += at;
    if (!half) {
        for (int64_t d = 0; d < head_dim; d++)
            for (int64_t i = 0; i < count; i++) floats[keys + d * GF_BLOCK + i] = key[i * ld + d];
        for (int64_t i = 0; i < count; i++)
            memcpy(floats + values + i * ld_values, value + i * ld, (size_t)head_dim * sizeof(float));
        return;
    }
    for (int64_t d = 0; d < head_dim; d += GF_LANES) {
        const int64_t columns = head_dim - d < GF_LANES ? head_dim - d : GF_LANES;
        uint16_t rounded[GF_BLOCK][GF_LANES];
        for (int64_t i = 0; i < count; i++) {
            round_halves(key + i * ld + d, columns, rounded[i]);
            uint16_t last[GF_LANES];
            round_halves(value + i * ld + d, columns, last);
            memcpy(halves + values + i * ld_values + d, last, (size_t)columns * sizeof(uint16_t));
        }
        for (int64_t c = 0; c < columns; c++)
            for (int64_t i = 0; i < count; i++) halves[keys + (d + c) * GF_BLOCK + i] = rounded[i][c];
    }
}

/* Tiles of that many rows, while there are so many. */
#define GF_ATTEND_TILES(ROWS)                                                                                            \
    for (; rows >= (ROWS); rows -= (ROWS), position += (ROWS), q += (ROWS) * ldq, out += (ROWS) * ldo)                   \
        attend_tile(half, ROWS, q, ldq, position, blocks, keys, values, head_dim, ld_values, scale, scores, out, ldo);

GF_INLINE void attend_rows(const int half, const float *q, int64_t ldq, int64_t rows, int64_t position,
                           const void *const *blocks, int64_t keys, int64_t values, int64_t head_dim, int64_t ld_values,
                           float scale, float *scores, float *out, int64_t ldo) {
#if GF_LANES == 16
    GF_ATTEND_TILES(GF_ATTEND_ROWS)
#endif
    GF_ATTEND_TILES(GF_LANES == 4 ? 2 : 4)
    for (; rows > 0; rows--, position++, q += ldq, out += ldo)
        attend_tile(half, 1, q, ldq, position, blocks, keys, values, head_dim, ld_values, scale, scores, out, ldo);
}

static void attend(int half, const float *q, int64_t ldq, int64_t rows, int64_t position, const void *const *blocks,
                   int64_t keys, int64_t values, int64_t head_dim, int64_t ld_values, float scale, float *scores,
                   float *out, int64_t ldo) {
    if (half)
        attend_rows(1, q, ldq, rows, position, blocks, keys, values, head_dim, ld_values, scale, scores, out, ldo);
    else
        attend_rows(0, q, ldq, rows, position, blocks, keys, values, head_dim, ld_values, scale, scores, out, ldo);
}
