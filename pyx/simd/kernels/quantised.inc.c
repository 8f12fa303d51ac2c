/* Quantised panels: weights of 8 or 4 bits, activations of 8 bits, exact integer sums in groups of 64.
 *
 * A group is GF_GROUP successive k of GF_PANEL columns: 64 codes a column, then a float32 scale a column.  Codes are
 * stored with an offset, as unsigned numbers (w + 128 or w + 8), because that is what VNNI multiplies with signed
 * activations; the offset's share, offset * sum of the activations, is what a sum begins with, negative (see dot.inc.c).  8 bits: [k / 4][columns][4];
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
 * - Tiles as wide as the panel: in narrower ones two rows take twice as long as one.
 *
 * Prompts (1 December 2026, Xeon of the fifth generation, one thread), 10^9 products a second of [rows, 768] x [768, 768],
 * the best of several series by turns, before and after codes of 4 bits were unpacked once for up to 48 rows:
 *
 *     level           rows  int4 before  int4 after  int8
 *     x86-64-v4-vnni  512   186          258         283
 *     x86-64-v4-vnni  12    186          207         287
 *     x86-64-v3       240   62           79          54
 *     x86-64-v4       240   92           94          68
 *     baseline        48    10           11          11
 *
 * - Of 8 rows unpacking brings nothing. Parts of 96 rows are no quicker than of 48.
 * - int8 is at its limit: float32 makes 85.5, so bytes 342; of 234 instructions of a group that take a unit for vectors 192
 *   multiply, which is 82 %. Only larger groups would change that.
 * - Sums that begin with the offset's share instead of losing it in the end: half a per cent.
 * - The largest of 64 and the sum of codes by the processor's own reductions, codes narrowed by one instruction: included in
 *   the figures of attend.inc.c. */

/* To the nearest integer, ties to even: adding 1.5 * 2^23 leaves it in the low bits. */
GF_INLINE vi round_code(vf x) { return (vi)(x + splat(12582912.0f)) - 0x4b400000; }

/* A group whose largest magnitude is under this becomes zeros: one over its scale might be infinite. */
#define GF_SMALLEST 0x1p-100f

/* The largest magnitude among the values of a group; infinity where one is not finite. */
GF_INLINE float largest_magnitude(const float *x) {
    vf largest = splat(0.0f);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vf magnitude = (vf)((vi)load(x + i) & 0x7fffffff);
        largest = choose(magnitude == magnitude, vmax(magnitude, largest), splat(INFINITY));
    }
    return max_lanes(largest);
}

/* One whole group. */
GF_INLINE void quantise_group(const float *x, int8_t *codes, gf_group *group) {
    const float top = largest_magnitude(x);
    const float inverse = top >= GF_SMALLEST ? 127.0f / top : 0.0f;
    vi sum = {0};
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vi code = round_code(load(x + i) * inverse);
        const vcodes narrow = narrow_codes(code);
        memcpy(codes + i, &narrow, sizeof narrow);
        sum += code;
    }
    group->sum = sum_codes(sum);
    /* A value that is not finite must not vanish in the codes: it makes the whole group NaN. */
    group->scale = top < INFINITY ? top / 127.0f : NAN;
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
    const float top = largest_magnitude(w);
    const int plain = top >= GF_SMALLEST && top < INFINITY;
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
        const vcodes narrow = narrow_codes(round_code(code));
        memcpy(codes + i, &narrow, sizeof narrow);
    }
    return top < INFINITY ? scale : NAN; /* the same NaN everywhere: it is packed; all that meets it is NaN */
}

typedef int32_t vi_unaligned __attribute__((vector_size(4 * GF_LANES), aligned(1), may_alias));

/* The part of a product that a tile adds to: some groups of all, for some rows.  Before the first group the sums are
 * zero, after the last one they go to y; between two parts they lie in memory, [rows][GF_PANEL]. */
typedef struct {
    const uint8_t *codes; /* of the weights, [groups] of GF_GROUP * GF_PANEL codes */
    int64_t step;         /* bytes from a group to the next */
    const float *weight_scales;
    int64_t scales_step; /* numbers from a group to the next */
    int64_t groups;
    const uint8_t *next; /* with unpacked codes: what will be unpacked next, and is fetched meanwhile */
    const int8_t *x;
    int64_t ldx;
    const gf_group *x_groups;
    int64_t ldx_groups;
    int first, last;
    float *sums;
    const gf_epilogue *epilogue;
    float *y;
    int64_t ldy;
} gf_quantised_part;

/* `bits`, `unpacked`, `rows` and `width` (vector registers per row) are constants at every call. */
GF_INLINE void tile_quantised(const int bits, const int unpacked, const int rows, const int width,
                              const gf_quantised_part *part, int column) {
    const int stored = unpacked ? 8 : bits;
    const uint8_t *codes = part->codes;
    vf sum[GF_MAX_ROWS][8];
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++)
            sum[r][v] = part->first ? splat(0.0f) : load(part->sums + r * GF_PANEL + column + v * GF_LANES);
    }
    for (int64_t g = 0; g < part->groups; g++) {
        vi dot[GF_MAX_ROWS][8];
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vi start = (vi){0} - dot_offset(bits) * part->x_groups[r * part->ldx_groups + g].sum;
            GF_UNROLL for (int v = 0; v < width; v++) dot[r][v] = start;
        }
        GF_ROLL for (int i = 0; i < GF_GROUP; i += 32 / stored) {
            const uint8_t *at = codes + i * GF_PANEL * stored / 8;
            vi weights[8];
            if (unpacked)
                __builtin_prefetch(part->next + (at - part->codes) / 2, 0, 2);
            else
                fetch_ahead(at);
            GF_UNROLL for (int v = 0; v < width; v++)
                weights[v] = *(const vi_unaligned *)(at + 4 * (column + v * GF_LANES));
            GF_UNROLL for (int r = 0; r < rows; r++) {
                int32_t four[2];
                memcpy(four, part->x + r * part->ldx + g * GF_GROUP + i, 32 / stored);
                const vi x = (vi){0} + four[0];
                if (stored == 8) {
                    GF_UNROLL for (int v = 0; v < width; v++) dot[r][v] = dot_four(bits, dot[r][v], weights[v], x);
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
            const vf weight_scale = load(part->weight_scales + g * part->scales_step + column + v * GF_LANES);
            GF_UNROLL for (int r = 0; r < rows; r++) {
                const float scale = part->x_groups[r * part->ldx_groups + g].scale;
                sum[r][v] = vfma(__builtin_convertvector(dot[r][v], vf), weight_scale * scale, sum[r][v]);
            }
        }
        codes += part->step;
    }
    if (part->last) {
        finish_tile(rows, width, sum, part->epilogue, column, part->y, part->ldy);
    } else {
        GF_UNROLL for (int r = 0; r < rows; r++) {
            GF_UNROLL for (int v = 0; v < width; v++)
                store(part->sums + r * GF_PANEL + column + v * GF_LANES, sum[r][v]);
        }
    }
}

/* Codes of 4 bits as bytes, in the order of codes of 8 bits, of some groups. */
GF_INLINE void unpack_codes(const uint8_t *panel, int64_t step, int64_t groups, uint8_t *codes) {
    for (int64_t g = 0; g < groups; g++, panel += step) {
        for (int i = 0; i < GF_GROUP / 8; i++) {
            fetch_ahead(panel + 4 * i * GF_PANEL);
            GF_UNROLL for (int c = 0; c < 4 * GF_PANEL; c += 4 * GF_LANES) {
                const vi both = *(const vi_unaligned *)(panel + 4 * i * GF_PANEL + c);
                *(vi_unaligned *)(codes + c) = both & 0x0f0f0f0f;
                *(vi_unaligned *)(codes + 4 * GF_PANEL + c) = (both >> 4) & 0x0f0f0f0f;
            }
            codes += 8 * GF_PANEL;
        }
    }
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

#define GF_QUANTISED_TILE(ROWS, WIDTH)                                    \
    case ROWS:                                                            \
        for (int column = 0; column < GF_PANEL; column += (WIDTH) * GF_LANES) \
            tile_quantised(bits, unpacked, ROWS, WIDTH, &part, column);   \
        break;

/* So many groups of a panel are unpacked at once, for so many rows: the codes stay in the first cache. */
enum { GF_UNPACK_ROWS = 12, GF_PART_GROUPS = 12, GF_PART_ROWS = 48 };

/* `rows` rows in tiles, for one part of the groups. */
GF_INLINE void tiles_quantised(const int bits, const int unpacked, gf_quantised_part part, int64_t rows) {
    while (rows > 0) {
        const int tile = rows < 2 ? 1 : rows < 4 || GF_QUANTISED_ROWS == 2 ? 2 : rows < 6 || GF_QUANTISED_ROWS == 4 ? 4 : 6;
        switch (tile) { GF_QUANTISED_TILES(GF_QUANTISED_TILE) }
        if (part.last && part.epilogue->activation != GF_LINEAR)
            for (int r = 0; r < tile; r++) activate(part.y + r * part.ldy, NULL, part.epilogue->activation, GF_PANEL);
        part.x += tile * part.ldx;
        part.x_groups += tile * part.ldx_groups;
        part.sums += tile * GF_PANEL;
        part.y += tile * part.ldy;
        rows -= tile;
    }
}

static void panel_int8(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes, const gf_group *scales,
                       int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y, int64_t ldy) {
    enum { SIZE = GF_GROUP * GF_PANEL, STEP = SIZE + 4 * GF_PANEL };
    const gf_quantised_part whole = {panel, STEP, (const float *)(panel + SIZE), STEP / 4, groups, NULL, codes, ldcodes, scales, ldscales,
                                     1, 1, y, &epilogue, y, ldy};
    tiles_quantised(8, 0, whole, rows);
}

static void panel_int4(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes, const gf_group *scales,
                       int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y, int64_t ldy) {
    enum { SIZE = GF_GROUP * GF_PANEL / 2, STEP = SIZE + 4 * GF_PANEL };
    float sums[GF_PART_ROWS * GF_PANEL];
    uint8_t unpacked[GF_PART_GROUPS * GF_GROUP * GF_PANEL];
    while (rows >= GF_UNPACK_ROWS) {
        const int64_t some = rows < GF_PART_ROWS ? rows : GF_PART_ROWS;
        for (int64_t g = 0; g < groups; g += GF_PART_GROUPS) {
            const int64_t count = groups - g < GF_PART_GROUPS ? groups - g : GF_PART_GROUPS;
            const uint8_t *from = panel + g * STEP;
            const gf_quantised_part part = {unpacked, GF_GROUP * GF_PANEL, (const float *)(from + SIZE), STEP / 4, count, from + count * STEP,
                                            codes + g * GF_GROUP, ldcodes, scales + g, ldscales, g == 0, g + count == groups, sums, &epilogue,
                                            y, ldy};
            unpack_codes(from, STEP, count, unpacked);
            tiles_quantised(4, 1, part, some);
        }
        codes += some * ldcodes;
        scales += some * ldscales;
        y += some * ldy;
        rows -= some;
    }
    const gf_quantised_part whole = {panel, STEP, (const float *)(panel + SIZE), STEP / 4, groups, NULL, codes, ldcodes, scales, ldscales,
                                     1, 1, y, &epilogue, y, ldy};
    tiles_quantised(4, 0, whole, rows);
}
