/* A panel of bfloat16 weights times one to twelve rows of float32: exact products, float32 sums in the order of k.
 *
 * Two successive k lie side by side, [k / 2][GF_PANEL][2], so that a register of pairs gives both by a shift and a mask:
 * a bfloat16 is the upper half of a float32. */

GF_INLINE void tile_bfloat16(const int rows, const int width, const uint16_t *w, const gf_part *part) {
    typedef uint32_t vu_unaligned __attribute__((vector_size(4 * GF_LANES), aligned(2), may_alias));
    const float *x = part->x;
    const int64_t ldx = part->ldx, to = part->to;
    vf sum[GF_MAX_ROWS][8];
    begin_part(rows, width, sum, part);
    w += 2 * part->column;
    for (int64_t i = part->from; i < to; i += 2) { /* parts begin at an even k */
        vf first[8], second[8];
        fetch_ahead(rows, w + i * GF_PANEL, GF_PART * GF_PANEL * 2);
        GF_UNROLL for (int v = 0; v < width; v++) {
            const vu pair = *(const vu_unaligned *)(w + i * GF_PANEL + 2 * v * GF_LANES);
            first[v] = (vf)(pair << 16);
            second[v] = (vf)(pair & 0xffff0000u);
        }
        GF_UNROLL for (int r = 0; r < rows; r++) {
            const vf a = splat(x[r * ldx + i]);
            GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] += a * first[v];
        }
        /* An odd k is filled up with a zero weight, and x is not read past its end. */
        if (i + 1 < to) {
            GF_UNROLL for (int r = 0; r < rows; r++) {
                const vf b = splat(x[r * ldx + i + 1]);
                GF_UNROLL for (int v = 0; v < width; v++) sum[r][v] += b * second[v];
            }
        }
    }
    end_part(rows, width, sum, part);
}
