/* Causal attention of a few successive positions of one head over the blocked cache.
 *
 * A block holds the keys of GF_BLOCK positions as [head_dim][GF_BLOCK], so that a vector register holds successive
 * positions and scores need no horizontal sums, and their values as [GF_BLOCK][ld_values].  Two passes over a row of scores (the context is short enough to keep them) instead
 * of an online softmax: nothing is rescaled, and a row's sums have one order, whatever rows are computed beside it. */

/* scores[r][t] = scale * q[r] . key[t] for the GF_BLOCK positions of one block. */
GF_INLINE void score_block(const int rows, const float *q, int64_t ldq, const float *keys, int64_t head_dim, float scale,
                           float *scores, int64_t ld_scores) {
    enum { WIDTH = GF_BLOCK / GF_LANES };
    vf sum[8][WIDTH];
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < WIDTH; v++) sum[r][v] = splat(0.0f);
    }
    for (int64_t d = 0; d < head_dim; d++) {
        vf key[WIDTH];
        GF_UNROLL for (int v = 0; v < WIDTH; v++) key[v] = load(keys + d * GF_BLOCK + v * GF_LANES);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vf value = splat(q[r * ldq + d]);
            GF_UNROLL for (int v = 0; v < WIDTH; v++) sum[r][v] += value * key[v];
        }
    }
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < WIDTH; v++) store(scores + r * ld_scores + v * GF_LANES, sum[r][v] * scale);
    }
}

/* Scores of the positions 0..last become e^(score - largest), later ones 0; returns one over their sum. */
GF_INLINE float softmax_row(float *scores, int64_t last, int64_t length) {
    const vf minus_infinity = splat(-INFINITY);
    vi lane;
    for (int i = 0; i < GF_LANES; i++) lane[i] = i;
    vf largest = minus_infinity;
    for (int64_t t = 0; t <= last; t += GF_LANES) {
        const vi outside = lane > (int32_t)(last - t);
        largest = vmax(choose(outside, minus_infinity, load(scores + t)), largest);
    }
    float top = largest[0];
    for (int i = 1; i < GF_LANES; i++) top = largest[i] > top ? largest[i] : top;
    vf sum = splat(0.0f);
    for (int64_t t = 0; t < length; t += GF_LANES) {
        /* Beyond `last` lie scores of other rows' positions or of old cache contents: replaced, not multiplied. */
        const vi outside = lane > (int32_t)(last - t);
        const vf e = (vf)(~outside & (vi)vexp(load(scores + t) - top));
        store(scores + t, e);
        sum += e;
    }
    return 1.0f / sum_lanes(sum);
}

/* out[r] = inverse[r] * sum over t of weights[r][t] * values[t], for `width` registers of columns. */
GF_INLINE void mix_values(const int rows, const int width, const float *weights, int64_t ld_weights, int64_t count,
                          const float *const *blocks, int64_t offset, int64_t ld_values, const float *inverse,
                          float *out, int64_t ldo, int64_t columns) {
    vf sum[8][4];
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = splat(0.0f);
    }
    for (int64_t start = 0; start < count; start += GF_BLOCK) {
        const float *values = blocks[start / GF_BLOCK] + offset;
        const int64_t end = count - start < GF_BLOCK ? count - start : GF_BLOCK;
        for (int64_t t = 0; t < end; t++) {
            vf value[4];
            GF_UNROLL for (int v = 0; v < width; v++) value[v] = load(values + t * ld_values + v * GF_LANES);
            GF_UNROLL for (int r = 0; r < rows; r++) {
                const vf weight = splat(weights[r * ld_weights + start + t]);
                GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] += weight * value[v];
            }
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

GF_INLINE void attend_tile(const int rows, const float *q, int64_t ldq, int64_t position,
                           const float *const *blocks, int64_t keys, int64_t values, int64_t head_dim,
                           int64_t ld_values, float scale, float *scores, float *out, int64_t ldo) {
    const int64_t count = position + rows;
    const int64_t length = (count + GF_BLOCK - 1) / GF_BLOCK * GF_BLOCK;
    for (int64_t t = 0; t < length; t += GF_BLOCK)
        score_block(rows, q, ldq, blocks[t / GF_BLOCK] + keys, head_dim, scale, scores + t, length);
    float inverse[8];
    for (int r = 0; r < rows; r++) inverse[r] = softmax_row(scores + r * length, position + r, length);
    /* A row's values beyond its own position have weight 0 and are those of the tile's later rows. */
    enum { WIDE = GF_LANES == 16 ? 4 : 2 };
    int64_t d = 0;
    for (; d + WIDE * GF_LANES <= ld_values; d += WIDE * GF_LANES)
        mix_values(rows, WIDE, scores, length, count, blocks, values + d, ld_values, inverse, out + d, ldo, head_dim - d);
    for (; d < head_dim; d += GF_LANES)
        mix_values(rows, 1, scores, length, count, blocks, values + d, ld_values, inverse, out + d, ldo, head_dim - d);
}

static void attend(const float *q, int64_t ldq, int64_t rows, int64_t position, const float *const *blocks, int64_t keys,
                   int64_t values, int64_t head_dim, int64_t ld_values, float scale, float *scores, float *out,
                   int64_t ldo) {
    enum { TILE = GF_LANES == 4 ? 2 : 4 };
    while (rows >= TILE) {
        attend_tile(TILE, q, ldq, position, blocks, keys, values, head_dim, ld_values, scale, scores, out, ldo);
        q += TILE * ldq;
        out += TILE * ldo;
        position += TILE;
        rows -= TILE;
    }
    for (; rows > 0; rows--, position++, q += ldq, out += ldo)
        attend_tile(1, q, ldq, position, blocks, keys, values, head_dim, ld_values, scale, scores, out, ldo);
}
