/* Quantised panels: weights of 8 or 4 bits, activations of 8 bits, exact integer sums in groups of 64.
 *
 * A group is GF_GROUP successive k of GF_PANEL columns: 64 codes a column, then a float32 scale a column.  Codes are
 * stored with an offset, as unsigned numbers (w + 128 or w + 8), because that is what VNNI multiplies with signed
 * activations; the offset's share, offset * sum of the activations, is taken off afterwards.  8 bits: [k / 4][columns][4];
 * 4 bits: [k / 8][columns][4], the low halves of four bytes k..k+3, the high halves k+4..k+7.
 *
 * y = sum over groups of (integer sum) * weight scale * activation scale.  Integer sums have no rounding, and groups are
 * added in order, so results do not depend on what else is computed. */

typedef int8_t vcodes __attribute__((vector_size(GF_LANES)));

/* One whole group. */
GF_INLINE void quantise_group(const float *x, int8_t *codes, gf_group *group) {
    vf largest = splat(0.0f), not_finite = splat(0.0f);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vf v = load(x + i);
        largest = vmax((vf)((vi)v & 0x7fffffff), largest);
        not_finite += v * splat(0.0f);
    }
    float top = largest[0];
    for (int i = 1; i < GF_LANES; i++) top = largest[i] > top ? largest[i] : top;
    const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
    vi sum = {0};
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        /* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits. */
        const vi code = (vi)(load(x + i) * inverse + splat(12582912.0f)) - 0x4b400000;
        const vcodes narrow = __builtin_convertvector(code, vcodes);
        memcpy(codes + i, &narrow, sizeof narrow);
        sum += code;
    }
    group->sum = 0;
    for (int i = 0; i < GF_LANES; i++) group->sum += sum[i];
    /* A value that is not finite must not vanish in the codes: it makes the whole group NaN. */
    group->scale = top / 127.0f + sum_lanes(not_finite);
}

static void quantise_row(const float *x, int64_t k, int8_t *codes, gf_group *groups) {
    for (; k >= GF_GROUP; k -= GF_GROUP, x += GF_GROUP, codes += GF_GROUP) quantise_group(x, codes, groups++);
    if (k > 0) {
        float padded[GF_GROUP] = {0};
        memcpy(padded, x, (size_t)k * sizeof(float));
        quantise_group(padded, codes, groups);
    }
}

/* The squared error of a group of weights with that scale and codes up to `limit`. */
GF_INLINE float rounding_error(const float *w, float scale, float limit) {
    const vf round = splat(12582912.0f), inverse = splat(1.0f / scale);
    vf error = splat(0.0f);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        vf code = (load(w + i) * inverse + round) - round;
        code = choose(code > splat(limit), splat(limit), choose(code < splat(-limit), splat(-limit), code));
        const vf difference = load(w + i) - code * scale;
        error += difference * difference;
    }
    return sum_lanes(error);
}

/* The largest weight of a group becomes the largest code.  For 4 bits smaller scales that clip it are tried too, and the
 * one with the least error kept: few weights are as large as the largest. */
static float quantise_weights(const float *w, int bits, int8_t *codes) {
    const float limit = bits == 8 ? 127.0f : 7.0f;
    vf largest = splat(0.0f), not_finite = splat(0.0f);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        largest = vmax((vf)((vi)load(w + i) & 0x7fffffff), largest);
        not_finite += load(w + i) * splat(0.0f);
    }
    float top = largest[0];
    for (int i = 1; i < GF_LANES; i++) top = largest[i] > top ? largest[i] : top;
    const float damaged = sum_lanes(not_finite); /* 0, or NaN: then the scale is NaN, and so is all that meets it */
    float scale = top / limit;
    if (bits == 4 && scale > 0.0f && damaged == 0.0f) {
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
    const vf inverse = splat(scale > 0.0f && damaged == 0.0f ? 1.0f / scale : 0.0f);
    for (int i = 0; i < GF_GROUP; i += GF_LANES) {
        const vf code = choose(inverse == splat(0.0f), splat(0.0f), load(w + i) * inverse);
        const vf inside = choose(code > splat(limit), splat(limit), choose(code < splat(-limit), splat(-limit), code));
        const vcodes narrow = __builtin_convertvector((vi)(inside + splat(12582912.0f)) - 0x4b400000, vcodes);
        memcpy(codes + i, &narrow, sizeof narrow);
    }
    return scale + damaged;
}

/* The integer sums of one group for GF_PANEL columns and one row. */
GF_INLINE void group_sums(const int bits, const uint8_t *w, const int8_t *x, int32_t *sums) {
    for (int c = 0; c < GF_PANEL; c++) sums[c] = 0;
    if (bits == 8) {
        for (int i = 0; i < GF_GROUP; i += 4) {
            for (int c = 0; c < GF_PANEL; c++) {
                const uint8_t *four = w + i * GF_PANEL + 4 * c;
                sums[c] += four[0] * x[i] + four[1] * x[i + 1] + four[2] * x[i + 2] + four[3] * x[i + 3];
            }
        }
    } else {
        for (int i = 0; i < GF_GROUP; i += 8) {
            for (int c = 0; c < GF_PANEL; c++) {
                const uint8_t *four = w + i / 2 * GF_PANEL + 4 * c;
                for (int j = 0; j < 4; j++) sums[c] += (four[j] & 15) * x[i + j] + (four[j] >> 4) * x[i + 4 + j];
            }
        }
    }
}

GF_INLINE void panel_quantised(const int bits, const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes,
                               const gf_group *scales, int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y,
                               int64_t ldy) {
    const int64_t size = GF_GROUP * GF_PANEL * bits / 8;
    const int32_t offset = bits == 8 ? 128 : 8;
    for (int64_t r = 0; r < rows; r++) {
        float sum[GF_PANEL] = {0};
        const uint8_t *w = panel;
        for (int64_t g = 0; g < groups; g++, w += size + GF_PANEL * sizeof(float)) {
            int32_t sums[GF_PANEL];
            group_sums(bits, w, codes + r * ldcodes + g * GF_GROUP, sums);
            const gf_group group = scales[r * ldscales + g];
            const float *weight_scale = (const float *)(w + size);
            for (int c = 0; c < GF_PANEL; c++)
                sum[c] += (float)(sums[c] - offset * group.sum) * (weight_scale[c] * group.scale);
        }
        for (int c = 0; c < GF_PANEL; c++) {
            const float value = sum[c] + (epilogue.bias == NULL ? 0.0f : epilogue.bias[c]);
            y[r * ldy + c] = epilogue.accumulate ? y[r * ldy + c] + value : value;
        }
        if (epilogue.activation != GF_LINEAR) activate(y + r * ldy, NULL, epilogue.activation, GF_PANEL);
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
