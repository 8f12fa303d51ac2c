/* A panel of GF_PANEL weight columns times one to twelve rows.
 *
 * Every output is one accumulator that takes its k products in order, each with one rounding (vfma), whatever `rows` is,
 * whichever rows share the tile and whatever the CPU level: so a row's result is the same bit for bit alone, in a batch
 * and in a prompt, on every machine.  That is a promise; keep it. */

/* Bias and residual on the accumulators of a tile, and their store. */
GF_INLINE void finish_tile(const int rows, const int width, vf sum[GF_MAX_ROWS][8], const gf_epilogue *epilogue, int column,
                           float *y, int64_t ldy) {
    GF_UNROLL for (int v = 0; v < width; v++) {
        const int c = column + v * GF_LANES;
        const vf bias = epilogue->bias == NULL ? splat(0.0f) : load(epilogue->bias + c);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            float *to = y + r * ldy + c;
            store(to, epilogue->accumulate ? load(to) + (sum[r][v] + bias) : sum[r][v] + bias);
        }
    }
}

/* Registers: 32 of 16 lanes, 16 of 8 (AVX2), 16 of 4 (SSE2) or 32 of 4 (NEON, served as SSE2 is).  Where tiles are
 * narrower than the panel, or have fewer rows than there may be, the product is cut into parts whose weights stay in the
 * first cache, so that they come from memory once (30 November 2026, AVX2, 124M, one thread: 4, 8 and 12 rows in 23, 30
 * and 34 ms, before that in 27, 38 and 54; one row takes 16). */
#if GF_LANES == 16
#define GF_TILE_ROWS 12
#define GF_PART ((int64_t)1 << 24) /* more than there are */
#define GF_TILES(T) T(1, 2) T(2, 2) T(3, 2) T(4, 2) T(5, 2) T(6, 2) T(7, 2) T(8, 2) T(9, 2) T(10, 2) T(11, 2) T(12, 2)
#elif GF_LANES == 8
#define GF_TILE_ROWS 6
#define GF_PART 64
#define GF_TILES(T) T(1, 4) T(2, 4) T(3, 4) T(4, 2) T(5, 2) T(6, 2)
#else
#define GF_TILE_ROWS 6
#define GF_PART 64
#define GF_TILES(T) T(1, 8) T(2, 4) T(3, 4) T(4, 2) T(5, 2) T(6, 2)
#endif

/* The part of a product that a tile adds to: the inputs `from` to `to` of k, for `rows` rows of x, for the columns of a
 * panel from `column` on.  Between two parts the sums lie in memory, [rows][GF_PANEL]. */
typedef struct {
    int64_t from, to, k;
    const float *x;
    int64_t ldx;
    int column;
    float *sums;
    const gf_epilogue *epilogue;
    float *y;
    int64_t ldy;
} gf_part;

GF_INLINE void begin_part(const int rows, const int width, vf sum[GF_MAX_ROWS][8], const gf_part *part) {
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++)
            sum[r][v] = part->from == 0 ? splat(0.0f) : load(part->sums + r * GF_PANEL + part->column + v * GF_LANES);
    }
}

GF_INLINE void end_part(const int rows, const int width, vf sum[GF_MAX_ROWS][8], const gf_part *part) {
    if (part->to == part->k) {
        finish_tile(rows, width, sum, part->epilogue, part->column, part->y, part->ldy);
        return;
    }
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++)
            store(part->sums + r * GF_PANEL + part->column + v * GF_LANES, sum[r][v]);
    }
}

/* A step of a tile, of whatever type, reads GF_PANEL columns of four bytes: of float32 one k, of bfloat16 two, of int8
 * four, of int4 eight.  This fetches what a step 32 steps later will read, or the thread's next panel at the end of one.
 *
 * Without it, a panel that meets several rows takes the time of the memory plus that of the arithmetic: the processor's
 * own prefetchers don't keep up, and one row gains, too.  One distance serves all types and levels, as a step always is
 * 128 bytes.  Why 4 KiB: 1 KiB gave half of the gain, 4 and 8 KiB could not be told apart.
 *
 * Performance notes (1 December 2026, Xeon of the fifth generation, one thread), ms of a product [rows, 768] x [768, 3072]
 * with weights that are in no cache, for 1 / 8 rows, by the distance in bytes.  One series each, the second best of seven
 * passes; repeated, figures differ by up to 15 %:
 *
 *     level           type      none         1024         2048         4096         8192
 *     x86-64-v4-vnni  float32   0.64 / 1.10  0.62 / 0.94  0.67 / 0.85  0.60 / 0.78  0.62 / 0.80
 *     x86-64-v4-vnni  bfloat16  0.47 / 0.71  0.40 / 0.56  0.45 / 0.50  0.36 / 0.44  0.34 / 0.44
 *     x86-64-v4-vnni  int8      0.18 / 0.36  0.19 / 0.26  0.17 / 0.27  0.20 / 0.25  0.20 / 0.23
 *         again, two series     0.17 / 0.33  -            -            0.16 / 0.24  0.16 / 0.24
 *     x86-64-v4-vnni  int4      0.13 / 0.22  0.11 / 0.17  0.11 / 0.15  0.10 / 0.14  0.10 / 0.16
 *     x86-64-v3       float32   0.71 / 0.91  -            0.60 / 0.91  0.62 / 0.94  0.69 / 0.90
 *     x86-64-v3       bfloat16  0.47 / 0.68  -            -            0.36 / 0.68  0.35 / 0.66
 *     x86-64-v3       int8      0.28 / 0.64  -            0.23 / 0.51  0.21 / 0.56  0.23 / 0.56
 *     x86-64-v3       int4      0.17 / 0.52  -            0.14 / 0.35  0.11 / 0.36  0.11 / 0.34
 *
 * "None" of x86-64-v3 is what was there before: one part ahead, and only for more than three rows of float32 or bfloat16.
 * The whole 124M, two threads, 1 / 8 texts, tokens per second, medians by turns, before and after: float32 50 / 236 and
 * 55 / 338, int8 166 / 660 and 182 / 853.  Not measured: processors of AMD's, aarch64, the level baseline. */
enum { GF_AHEAD = 4096 };

GF_INLINE void fetch_ahead(const void *step) {
    __builtin_prefetch((const char *)step + GF_AHEAD);
    __builtin_prefetch((const char *)step + GF_AHEAD + 64);
}

/* `rows` and `width` (vector registers per row) are constants at every call, so the accumulators live in registers. */
GF_INLINE void tile_float32(const int rows, const int width, const float *w, const gf_part *part) {
    const float *x = part->x;
    const int64_t ldx = part->ldx, to = part->to;
    vf sum[GF_MAX_ROWS][8];
    begin_part(rows, width, sum, part);
    w += part->column;
    for (int64_t i = part->from; i < to; i++) {
        vf column_weights[8];
        fetch_ahead(w + i * GF_PANEL);
        GF_UNROLL for (int v = 0; v < width; v++) column_weights[v] = load(w + i * GF_PANEL + v * GF_LANES);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vf value = splat(x[r * ldx + i]);
            GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = vfma(value, column_weights[v], sum[r][v]);
        }
    }
    end_part(rows, width, sum, part);
}

#include "simd/kernels/bfloat16.inc.c"

/* The loop over parts, tiles of rows and columns, for one type of weights. */
#define GF_DEFINE_PANEL(NAME, TILE, WEIGHT)                                                                         \
    static void NAME(const WEIGHT *panel, int64_t k, const float *x, int64_t ldx, int64_t rows, gf_epilogue epilogue, \
                     float *y, int64_t ldy) {                                                                       \
        float sums[GF_MAX_ROWS * GF_PANEL];                                                                         \
        while (rows > 0) {                                                                                          \
            const int some = rows < GF_MAX_ROWS ? (int)rows : GF_MAX_ROWS;                                          \
            for (int64_t from = 0, to; from < k; from = to) {                                                       \
                to = k - from > GF_PART ? from + GF_PART : k;                                                       \
                for (int row = 0, tile; row < some; row += tile) {                                                  \
                    gf_part part = {from, to, k, x + row * ldx, ldx, 0, sums + row * GF_PANEL, &epilogue,           \
                                    y + row * ldy, ldy};                                                            \
                    tile = some - row < GF_TILE_ROWS ? some - row : GF_TILE_ROWS;                                   \
                    switch (tile) { GF_TILES(TILE) }                                                                \
                }                                                                                                   \
            }                                                                                                       \
            /* Here and not in the tile: the values are still in the first cache, and the tiles stay small. */      \
            if (epilogue.activation != GF_LINEAR)                                                                   \
                for (int r = 0; r < some; r++) activate(y + r * ldy, NULL, epilogue.activation, GF_PANEL);          \
            x += some * ldx;                                                                                        \
            y += some * ldy;                                                                                        \
            rows -= some;                                                                                           \
        }                                                                                                           \
    }

#define GF_TILE_OF(FUNCTION, ROWS, WIDTH)                                            \
    case ROWS:                                                                       \
        for (; part.column < GF_PANEL; part.column += (WIDTH) * GF_LANES)            \
            FUNCTION(ROWS, WIDTH, panel, &part);                                     \
        break;
#define GF_FLOAT32_TILE(ROWS, WIDTH) GF_TILE_OF(tile_float32, ROWS, WIDTH)
#define GF_BFLOAT16_TILE(ROWS, WIDTH) GF_TILE_OF(tile_bfloat16, ROWS, WIDTH)

GF_DEFINE_PANEL(panel_float32, GF_FLOAT32_TILE, float)
GF_DEFINE_PANEL(panel_bfloat16, GF_BFLOAT16_TILE, uint16_t)
