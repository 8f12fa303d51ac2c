/* A panel of GF_PANEL weight columns times one to twelve rows.
 *
 * Every output is one accumulator that takes its k products in order, whatever `rows` is and whichever rows share the
 * tile: so a row's result is the same bit for bit alone, in a batch and in a prompt.  That is a promise; keep it. */

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
    GF_UNROLL for (int v = 0; v < width; v++) {
        const int c = column + v * GF_LANES;
        const vf bias = epilogue->bias == NULL ? splat(0.0f) : load(epilogue->bias + c);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            float *to = y + r * ldy + c;
            store(to, epilogue->accumulate ? load(to) + (sum[r][v] + bias) : sum[r][v] + bias);
        }
    }
}

#define GF_TILE(ROWS, WIDTH)                                                                \
    case ROWS:                                                                              \
        for (int column = 0; column < GF_PANEL; column += (WIDTH) * GF_LANES)               \
            tile_float32(ROWS, WIDTH, panel, k, x, ldx, &epilogue, column, y, ldy);         \
        break;

/* Registers: 32 of 16 lanes, 16 of 8 (AVX2), 16 of 4 (SSE2) or 32 of 4 (NEON, served as SSE2 is). */
#if GF_LANES == 16
#define GF_TILE_ROWS 12
#else
#define GF_TILE_ROWS 6
#endif

static void panel_float32(const float *panel, int64_t k, const float *x, int64_t ldx, int64_t rows, gf_epilogue epilogue,
                          float *y, int64_t ldy) {
    while (rows > 0) {
        const int tile = rows < GF_TILE_ROWS ? (int)rows : GF_TILE_ROWS;
        switch (tile) {
#if GF_LANES == 16
            GF_TILE(1, 2)
            GF_TILE(2, 2)
            GF_TILE(3, 2)
            GF_TILE(4, 2)
            GF_TILE(5, 2)
            GF_TILE(6, 2)
            GF_TILE(7, 2)
            GF_TILE(8, 2)
            GF_TILE(9, 2)
            GF_TILE(10, 2)
            GF_TILE(11, 2)
            GF_TILE(12, 2)
#elif GF_LANES == 8
            GF_TILE(1, 4)
            GF_TILE(2, 4)
            GF_TILE(3, 4)
            GF_TILE(4, 2)
            GF_TILE(5, 2)
            GF_TILE(6, 2)
#else
            GF_TILE(1, 8)
            GF_TILE(2, 4)
            GF_TILE(3, 4)
            GF_TILE(4, 2)
            GF_TILE(5, 2)
            GF_TILE(6, 2)
#endif
        }
        /* Here and not in the tile: the values are still in the first cache, and twelve tiles stay small. */
        if (epilogue.activation != GF_LINEAR)
            for (int r = 0; r < tile; r++) activate(y + r * ldy, NULL, epilogue.activation, GF_PANEL);
        x += tile * ldx;
        y += tile * ldy;
        rows -= tile;
    }
}
