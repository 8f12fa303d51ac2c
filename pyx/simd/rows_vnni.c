/* The quantised panels with AVX-512 VNNI, which multiplies 64 pairs of bytes and adds them by fours in one instruction.
 *
 * The same sums as quantised.inc.c: integers exactly, then the same float32 operations in the same order. */
#include "rows.h"

#ifdef GF_X86_LEVELS
#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* `rows` and `bits` are constants at every call. */
INLINE void tile(const int rows, const int bits, const uint8_t *panel, int64_t groups, const int8_t *codes,
                 int64_t ldcodes, const gf_group *scales, int64_t ldscales, const gf_epilogue *epilogue, float *y,
                 int64_t ldy) {
    const int64_t size = GF_GROUP * GF_PANEL * bits / 8;
    const __m512i low = _mm512_set1_epi8(15);
    __m512 sum[8][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++) {
        __m512i dot[8][2];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) dot[r][0] = dot[r][1] = _mm512_setzero_si512();
        for (int i = 0; i < GF_GROUP; i += bits == 8 ? 4 : 8) {
            __m512i w0 = _mm512_loadu_si512(panel + i * GF_PANEL * bits / 8);
            __m512i w1 = _mm512_loadu_si512(panel + i * GF_PANEL * bits / 8 + 64);
            __m512i high0 = w0, high1 = w1;
            if (bits == 4) {
                high0 = _mm512_and_si512(_mm512_srli_epi16(w0, 4), low);
                high1 = _mm512_and_si512(_mm512_srli_epi16(w1, 4), low);
                w0 = _mm512_and_si512(w0, low);
                w1 = _mm512_and_si512(w1, low);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                int32_t four[2];
                memcpy(four, codes + r * ldcodes + g * GF_GROUP + i, bits == 8 ? 4 : 8);
                __m512i x = _mm512_set1_epi32(four[0]);
                dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], w0, x);
                dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], w1, x);
                if (bits == 4) {
                    x = _mm512_set1_epi32(four[1]);
                    dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], high0, x);
                    dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], high1, x);
                }
            }
        }
        const float *weight_scale = (const float *)(panel + size);
        const __m512 scale0 = _mm512_loadu_ps(weight_scale), scale1 = _mm512_loadu_ps(weight_scale + 16);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const gf_group group = scales[r * ldscales + g];
            const __m512i offset = _mm512_set1_epi32((bits == 8 ? 128 : 8) * group.sum);
            const __m512 scale = _mm512_set1_ps(group.scale);
            sum[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(dot[r][0], offset)),
                                        _mm512_mul_ps(scale0, scale), sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(dot[r][1], offset)),
                                        _mm512_mul_ps(scale1, scale), sum[r][1]);
        }
        panel += size + GF_PANEL * sizeof(float);
    }
    __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
    if (epilogue->bias != NULL) {
        bias0 = _mm512_loadu_ps(epilogue->bias);
        bias1 = _mm512_loadu_ps(epilogue->bias + 16);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        float *to = y + r * ldy;
        __m512 value0 = _mm512_add_ps(sum[r][0], bias0), value1 = _mm512_add_ps(sum[r][1], bias1);
        if (epilogue->accumulate) {
            value0 = _mm512_add_ps(_mm512_loadu_ps(to), value0);
            value1 = _mm512_add_ps(_mm512_loadu_ps(to + 16), value1);
        }
        _mm512_storeu_ps(to, value0);
        _mm512_storeu_ps(to + 16, value1);
    }
}

#define PANEL(NAME, BITS)                                                                                              \
    TARGET void NAME(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes, const gf_group *scales, \
                     int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y, int64_t ldy) {                    \
        for (int64_t r = 0; r < rows;) {                                                                               \
            const int8_t *x = codes + r * ldcodes;                                                                     \
            const gf_group *s = scales + r * ldscales;                                                                 \
            float *to = y + r * ldy;                                                                                   \
            const int count = rows - r >= 6 ? 6 : rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;                           \
            switch (count) {                                                                                           \
                case 6: tile(6, BITS, panel, groups, x, ldcodes, s, ldscales, &epilogue, to, ldy); break;              \
                case 4: tile(4, BITS, panel, groups, x, ldcodes, s, ldscales, &epilogue, to, ldy); break;              \
                case 2: tile(2, BITS, panel, groups, x, ldcodes, s, ldscales, &epilogue, to, ldy); break;              \
                default: tile(1, BITS, panel, groups, x, ldcodes, s, ldscales, &epilogue, to, ldy); break;             \
            }                                                                                                          \
            if (epilogue.activation != GF_LINEAR)                                                                      \
                for (int i = 0; i < count; i++) gf_rows_v4.activate(to + i * ldy, NULL, epilogue.activation, GF_PANEL); \
            r += count;                                                                                                \
        }                                                                                                              \
    }

PANEL(gf_panel_int8_vnni, 8)
PANEL(gf_panel_int4_vnni, 4)
#endif
