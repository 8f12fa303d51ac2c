/* A panel of GF_PANEL weight columns times one to twelve rows.
 *
 * Every output is one accumulator that takes its k products in order, whatever `rows` is and whichever rows share the
 * tile: so a row's result is the same bit for bit alone, in a batch and in a prompt.  That is a promise; keep it. */

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

/* `rows` and `width` (vector registers per row) are constants at every call, so the accumulators live in registers. */
GF_INLINE void tile_float32(const int rows, const int width, const float *w, int64_t k, const float *x, int64_t ldx,
                            const gf_epilogue *epilogue, int column, float *y, int64_t ldy) {
    vf sum[GF_MAX_ROWS][8];
    GF_UNROLL for (int r = 0; r < rows; r++) {
        GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = splat(0.0f);
    }
    w += column;
    for (int64_t i = 0; i < k; i++) {
        vf column_weights[8];
        GF_UNROLL for (int v = 0; v < width; v++) column_weights[v] = load(w + i * GF_PANEL + v * GF_LANES);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vf value = splat(x[r * ldx + i]);
            GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] += value * column_weights[v];
        }
    }
    finish_tile(rows, width, sum, epilogue, column, y, ldy);
}

#include "bfloat16.inc.c"

/* Registers: 32 of 16 lanes, 16 of 8 (AVX2), 16 of 4 (SSE2) or 32 of 4 (NEON, served as SSE2 is). */
#if GF_LANES == 16
#define GF_TILE_ROWS 12
#define GF_TILES(T) T(1, 2) T(2, 2) T(3, 2) T(4, 2) T(5, 2) T(6, 2) T(7, 2) T(8, 2) T(9, 2) T(10, 2) T(11, 2) T(12, 2)
#elif GF_LANES == 8
#define GF_TILE_ROWS 6
#define GF_TILES(T) T(1, 4) T(2, 4) T(3, 4) T(4, 2) T(5, 2) T(6, 2)
#else
#define GF_TILE_ROWS 6
#define GF_TILES(T) T(1, 8) T(2, 4) T(3, 4) T(4, 2) T(5, 2) T(6, 2)
#endif

/* The loop over tiles of rows and of columns, for one type of weights. */
#define GF_DEFINE_PANEL(NAME, TILE, WEIGHT)                                                                         \
    static void NAME(const WEIGHT *panel, int64_t k, const float *x, int64_t ldx, int64_t rows, gf_epilogue epilogue, \
                     float *y, int64_t ldy) {                                                                       \
        while (rows > 0) {                                                                                          \
            const int tile = rows < GF_TILE_ROWS ? (int)rows : GF_TILE_ROWS;                                        \
            switch (tile) { GF_TILES(TILE) }                                                                        \
            /* Here and not in the tile: the values are still in the first cache, and the tiles stay small. */      \
            if (epilogue.activation != GF_LINEAR)                                                                   \
                for (int r = 0; r < tile; r++) activate(y + r * ldy, NULL, epilogue.activation, GF_PANEL);          \
            x += tile * ldx;                                                                                        \
            y += tile * ldy;                                                                                        \
            rows -= tile;                                                                                           \
        }                                                                                                           \
    }

#define GF_TILE_OF(FUNCTION, ROWS, WIDTH)                                             \
    case ROWS:                                                                        \
        for (int column = 0; column < GF_PANEL; column += (WIDTH) * GF_LANES)         \
            FUNCTION(ROWS, WIDTH, panel, k, x, ldx, &epilogue, column, y, ldy);       \
        break;
#define GF_FLOAT32_TILE(ROWS, WIDTH) GF_TILE_OF(tile_float32, ROWS, WIDTH)
#define GF_BFLOAT16_TILE(ROWS, WIDTH) GF_TILE_OF(tile_bfloat16, ROWS, WIDTH)

GF_DEFINE_PANEL(panel_float32, GF_FLOAT32_TILE, float)
GF_DEFINE_PANEL(panel_bfloat16, GF_BFLOAT16_TILE, uint16_t)
