/* Products in bfloat16: panels of bfloat16 weights times one to twelve rows of activations that are rounded to bfloat16,
 * with float32 sums.
 *
 * A bfloat16 here is what round_bfloat16 makes of a float32: the nearest of 8 significant bits, of two the even one; 0 with
 * its sign under 2^-56, and infinity from 2^64 on.  With these two limits every product is a float32 without rounding, and
 * every sum of them a multiple of 2^-126, so never subnormal.  Hence one definition for all processors, though AVX-512
 * BF16's instruction takes subnormal numbers for 0, and some have no fused multiply-add:
 *
 *     sum = sum + x[k + 1] w[k + 1], then sum = sum + x[k] w[k],   for k = 0, 2, 4 …
 *
 * each rounded once, to nearest, the odd k before the even one, which is that instruction's order.
 *
 * That instruction is not used. On a Xeon of the fifth generation (1 December 2026) it starts every other cycle: of 512 rows
 * it made 43 * 10^9 products a second where this file makes 75 to 80, and only of one row more (23.6 instead of 20), which
 * memory limits. Of the same bits, as a test says. Processors on which it starts every cycle would gain; none was at hand.
 *
 * Two successive k lie side by side, [k / 2][GF_PANEL][2], so that a register of pairs gives both by a shift and a mask:
 * a bfloat16 is the upper half of a float32. */

GF_INLINE vf round_bfloat16(vf x) {
    const vu bits = (vu)x, sign = bits & 0x80000000u;
    const vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0x7fff0000u;
    const vi magnitude = (vi)(bits & 0x7fffffffu);
    /* Signed comparisons, which every level has; no magnitude has the upper bit. */
    const vu small = (vu)((vi)rounded < 0x23800000), large = (vu)((vi)rounded > 0x5f7f0000), nan = (vu)(magnitude > 0x7f800000);
    const vu number = (rounded & ~small & ~large) | (0x7f800000u & large);
    return (vf)(sign | (number & ~nan) | (0x7fc00000u & nan));
}

/* The k values of a row as bfloat16, and a zero where k is odd: k rounded up to even float32 numbers. */
static void round_row(const float *x, int64_t k, float *y) {
    int64_t i = 0;
    for (; i + GF_LANES <= k; i += GF_LANES) store(y + i, round_bfloat16(load(x + i)));
    if (i < k) {
        float lanes[GF_LANES] = {0};
        memcpy(lanes, x + i, (size_t)(k - i) * sizeof(float));
        store(lanes, round_bfloat16(load(lanes)));
        memcpy(y + i, lanes, (size_t)(k - i + k % 2) * sizeof(float));
    }
}

/* Up to GF_LANES values as bfloat16. */
GF_INLINE void round_halves(const float *x, int64_t count, uint16_t *y) {
    float lanes[GF_LANES] = {0};
    if (count < GF_LANES) x = memcpy(lanes, x, (size_t)count * sizeof(float));
    const vh halves = narrow_halves((vu)round_bfloat16(load(x)) >> 16);
    memcpy(y, &halves, sizeof halves);
}

/* sum + x w for a product that needs no rounding. */
GF_INLINE vf add_exact_product(vf x, vf w, vf sum) {
#if GF_FUSED
    return vfma(x, w, sum);
#else
    return x * w + sum;
#endif
}

GF_INLINE void tile_bfloat16(const int rows, const int width, const uint16_t *w, const gf_part *part) {
    typedef uint32_t vu_unaligned __attribute__((vector_size(4 * GF_LANES), aligned(2), may_alias));
    const float *x = part->x;
    const int64_t ldx = part->ldx, to = part->to;
    vf sum[GF_MAX_ROWS][8];
    begin_part(rows, width, sum, part);
    w += 2 * part->column;
    for (int64_t i = part->from; i < to; i += 2) { /* parts begin at an even k */
        const vu_unaligned *pairs = (const vu_unaligned *)(w + i * GF_PANEL);
        vf column_weights[8];
        fetch_ahead(pairs);
        GF_UNROLL for (int v = 0; v < width; v++) column_weights[v] = (vf)(pairs[v] & 0xffff0000u);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vf value = splat(x[r * ldx + i + 1]);
            GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = add_exact_product(value, column_weights[v], sum[r][v]);
        }
        GF_UNROLL for (int v = 0; v < width; v++) column_weights[v] = (vf)(pairs[v] << 16);
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vf value = splat(x[r * ldx + i]);
            GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] = add_exact_product(value, column_weights[v], sum[r][v]);
        }
    }
    end_part(rows, width, sum, part);
}
