/* Quantised panels: weights of 8 or 4 bits, activations of 8 bits, exact integer sums in groups of 64.
 *
 * A group is GF_GROUP successive k of GF_PANEL columns: 64 codes a column, then a float32 scale a column.  Codes are
 * stored with an offset, as unsigned numbers (w + 128 or w + 8), because that is what VNNI multiplies with signed
 * activations; the offset's share, offset * sum of the activations, is taken off afterwards (see dot.inc.c).  8 bits: [k / 4][columns][4];
 * 4 bits: [k / 8][columns][4], the low halves of four bytes k..k+3, the high halves k+4..k+7.
 *
 * y = sum over groups, in order, of (integer sum) * (weight scale * activation scale), one rounding for the scales and one
 * for each group (vfma).  Integer sums have none: of 64 products of at most 128 * 127 they are under 2^24, exact as floats.
 * So results do not depend on what else is computed, or where.
 *
 * Performance notes (30 November 2026), 124M on one thread, one row, 8 / 4 bits in ms beside float32's 16:
 * - Plain loops over bytes, as compilers vectorise them: baseline 18 / 44, AVX2 10 / 39.  dot.inc.c: 7 / 7 and 5 / 3;
 *   of 128 rows 3 to 22 times as fast.
 * - The loop inside a group stays one: unrolled, each load strides a whole group, and the processor fetches less ahead
 *   (7.3 ms instead of 5.5 with VNNI).
 * - Tiles as wide as the panel: in narrower ones two rows take twice as long as one. */

typedef int8_t vcodes __attribute__((vector_size(GF_LANES)));

/* To the nearest integer, ties to even: adding 1.5 * 2^23 leaves it in the low bits. */
GF_INLINE vi round_code(vf x) { return (vi)(x + splat(12582912.0f)) - 0x4b400000; }

/* A group whose largest magnitude is under this becomes zeros: one over its scale might be infinite. */
#define GF_SMALLEST 0x1p-100f

/* The largest magnitude among the finite values of a group; *damaged is NaN where one is not finite, else 0. */
GF_INLINE float largest_magnitude(const float *x, float *damaged) {
    vf largest = splat(0.0f), not_finite = splat(0.0f);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vf v = load(x + i);
        largest = vmax((vf)((vi)v & 0x7fffffff), largest);
        not_finite += v * splat(0.0f);
    }
    *damaged = sum_lanes(not_finite);
    return max_lanes(largest);
}

/* One whole group. */
GF_INLINE void quantise_group(const float *x, int8_t *codes, gf_group *group) {
    float damaged;
    const float top = largest_magnitude(x, &damaged);
    const float inverse = top >= GF_SMALLEST ? 127.0f / top : 0.0f;
    vi sum = {0};
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vi code = round_code(load(x + i) * inverse);
        const vcodes narrow = __builtin_convertvector(code, vcodes);
        memcpy(codes + i, &narrow, sizeof narrow);
        sum += code;
    }
    group->sum = 0;
    for (int i = 0; i < GF_LANES; i++) group->sum += sum[i];
    /* A value that is not finite must not vanish in the codes: it makes the whole group NaN. */
    group->scale = top / 127.0f + damaged;
}

static void quantise_row(const float *x, int64_t k, int8_t *codes, gf_group *groups) {
    for (; k >= GF_GROUP; k -= GF_GROUP, x += GF_GROUP, codes += GF_GROUP) quantise_group(x, codes, groups++);
    if (k > 0) {
        float padded[GF_GROUP] = {0};
        memcpy(padded, x, (size_t)k * sizeof(float));
        quantise_group(padded, codes, groups);
    }
}

/* The nearest codes of a vector of weights, as floats from -limit to limit. */
GF_INLINE vf limited(vf code, float limit) {
    return choose(code > splat(limit), splat(limit), choose(code < splat(-limit), splat(-limit), code));
}

/* The squared error of a group of weights with that scale and codes up to `limit`: a sum of 16 lanes.  Products are
 * rounded before they are added: a fused operation would be slow where the processor has none. */
GF_INLINE float rounding_error(const float *w, float scale, float limit) {
    enum { LANES = 16, REGISTERS = LANES / GF_LANES };
    const vf round = splat(12582912.0f), inverse = splat(1.0f / scale);
    vf error[REGISTERS];
    GF_UNROLL for (int v = 0; v < REGISTERS; v++) error[v] = splat(0.0f);
    for (int i = 0; i < GF_GROUP; i += LANES) {
        GF_UNROLL for (int v = 0; v < REGISTERS; v++) {
            const vf value = load(w + i + v * GF_LANES);
            const vf code = limited((value * inverse + round) - round, limit);
            const vf difference = value - code * scale;
            error[v] += difference * difference;
        }
    }
    return sum_registers(REGISTERS, error);
}

/* The largest weight of a group becomes the largest code.  For 4 bits smaller scales that clip it are tried too, and the
 * one with the least error kept: few weights are as large as the largest. */
static float quantise_weights(const float *w, int bits, int8_t *codes) {
    const float limit = bits == 8 ? 127.0f : 7.0f;
    float damaged; /* NaN: then the scale is NaN, and so is all that meets it */
    const float top = largest_magnitude(w, &damaged);
    const int plain = top >= GF_SMALLEST && damaged == 0.0f;
    float scale = top / limit;
    if (bits == 4 && plain) {
        float least = rounding_error(w, scale, limit);
        for (int i = 1; i < 12; i++) {
            const float smaller = top / limit * (1.0f - 0.05f * (float)i);
            const float error = rounding_error(w, smaller, limit);
            if (error < least) {
                least = error;
                scale = smaller;
            }
        }
    }
    const vf inverse = splat(1.0f / scale);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vf code = plain ? limited(load(w + i) * inverse, limit) : splat(0.0f);
        const vcodes narrow = __builtin_convertvector(round_code(code), vcodes);
        memcpy(codes + i, &narrow, sizeof narrow);
    }
    return damaged == 0.0f ? scale : NAN; /* the same NaN everywhere: it is packed */
}

typedef int32_t vi_unaligned __attribute__((vector_size(4 * GF_LANES), aligned(1), may_alias));

/* `bits`, `rows` and `width` (vector registers per row) are constants at every call. */
GF_INLINE void tile_quantised(const int bits, const int rows, const int width, const uint8_t *panel, int64_t groups,
                              const int8_t *codes, int64_t ldcodes, const gf_group *scales, int64_t ldscales,
                              const gf_epilogue *epilogue, int column, float *y, int64_t ldy) {
    const int64_t size = GF_GROUP * GF_PANEL * bits / 8;
    vf sum[GF_MAX_ROWS][8];
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = splat(0.0f);
    }
    for (int64_t g = 0; g < groups; g++) {
        vi dot[GF_MAX_ROWS][8];
        GF_UNROLL for (int r = 0; r < rows; r++) {
            GF_UNROLL for (int v = 0; v < width; v++) dot[r][v] = (vi){0};
        }
        GF_ROLL for (int i = 0; i < GF_GROUP; i += 32 / bits) {
            vi weights[8];
            fetch_ahead(panel + i * GF_PANEL * bits / 8);
            GF_UNROLL for (int v = 0; v < width; v++)
                weights[v] = *(const vi_unaligned *)(panel + i * GF_PANEL * bits / 8 + 4 * (column + v * GF_LANES));
            GF_UNROLL for (int r = 0; r < rows; r++) {
                int32_t four[2];
                memcpy(four, codes + r * ldcodes + g * GF_GROUP + i, 32 / bits);
                const vi x = (vi){0} + four[0];
                if (bits == 8) {
                    GF_UNROLL for (int v = 0; v < width; v++) dot[r][v] = dot_four(8, dot[r][v], weights[v], x);
                } else {
                    const vi later = (vi){0} + four[1];
                    GF_UNROLL for (int v = 0; v < width; v++) {
                        dot[r][v] = dot_four(4, dot[r][v], weights[v] & 0x0f0f0f0f, x);
                        dot[r][v] = dot_four(4, dot[r][v], (weights[v] >> 4) & 0x0f0f0f0f, later);
                    }
                }
            }
        }
        GF_UNROLL for (int v = 0; v < width; v++) {
            const vf weight_scale = load((const float *)(panel + size) + column + v * GF_LANES);
            GF_UNROLL for (int r = 0; r < rows; r++) {
                const gf_group group = scales[r * ldscales + g];
                const vf exact = __builtin_convertvector(dot[r][v] - dot_offset(bits) * group.sum, vf);
                sum[r][v] = vfma(exact, weight_scale * group.scale, sum[r][v]);
            }
        }
        panel += size + GF_PANEL * sizeof(float);
    }
    finish_tile(rows, width, sum, epilogue, column, y, ldy);
}

/* The sums of a group need registers, of which there are 32 or 16; those of all groups may be spilled, 16 steps apart. */
#if GF_LANES == 16
#define GF_QUANTISED_TILES(T) T(1, 2) T(2, 2) T(4, 2) T(6, 2)
#define GF_QUANTISED_ROWS 6
#elif defined(__aarch64__)
#define GF_QUANTISED_TILES(T) T(1, GF_PANEL / GF_LANES) T(2, 4) T(4, 4)
#define GF_QUANTISED_ROWS 4
#else
#define GF_QUANTISED_TILES(T) T(1, GF_PANEL / GF_LANES) T(2, 4)
#define GF_QUANTISED_ROWS 2
#endif

#define GF_QUANTISED_TILE(ROWS, WIDTH)                                                                        \
    case ROWS:                                                                                                \
        for (int column = 0; column < GF_PANEL; column += (WIDTH) * GF_LANES)                                 \
            tile_quantised(bits, ROWS, WIDTH, panel, groups, codes, ldcodes, scales, ldscales, &epilogue, column, \
                           y, ldy);                                                                           \
        break;

GF_INLINE void panel_quantised(const int bits, const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes,
                               const gf_group *scales, int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y,
                               int64_t ldy) {
    while (rows > 0) {
        const int tile = rows < 2 ? 1 : rows < 4 || GF_QUANTISED_ROWS == 2 ? 2 : rows < 6 || GF_QUANTISED_ROWS == 4 ? 4 : 6;
        switch (tile) { GF_QUANTISED_TILES(GF_QUANTISED_TILE) }
        if (epilogue.activation != GF_LINEAR)
            for (int r = 0; r < tile; r++) activate(y + r * ldy, NULL, epilogue.activation, GF_PANEL);
        codes += tile * ldcodes;
        scales += tile * ldscales;
        y += tile * ldy;
        rows -= tile;
    }
}

static void panel_int8(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes, const gf_group *scales,
                       int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y, int64_t ldy) {
    panel_quantised(8, panel, groups, codes, ldcodes, scales, ldscales, rows, epilogue, y, ldy);
}

static void panel_int4(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes, const gf_group *scales,
                       int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y, int64_t ldy) {
    panel_quantised(4, panel, groups, codes, ldcodes, scales, ldscales, rows, epilogue, y, ldy);
}
