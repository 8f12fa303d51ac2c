/* Products of bytes: what a level has for them.
 *
 * dot_four adds to each lane of `sums` the products of four codes of weights and four of activations, exactly.  Weights
 * come as they are stored, w + 128 (`bits` 8) or w + 8 (`bits` 4); dot_offset is what of that is still in the sums.
 *
 * Performance notes (30 November 2026): in plain loops, which is what all levels without VNNI had, compilers made so
 * little of the bytes that 8 bits were at best as quick as float32, and 4 bits several times as slow. */

#if GF_LANES == 16 && defined(GF_VNNI)

GF_INLINE int dot_offset(const int bits) { return bits == 8 ? 128 : 8; }

GF_INLINE vi dot_four(const int bits, vi sums, vi weights, vi x) {
    (void)bits;
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
}

#elif GF_LANES == 16 || GF_LANES == 8

/* The instruction that multiplies unsigned with signed bytes adds pairs of products in 16 bits, and 2 * 255 * 127 saturates
 * them.  So one factor gives its sign to the other, and 2 * 127 * 127 = 32,258 fits (codes of 8 bits go from -127), as do
 * 2 * 15 * 127.  Which one it is depends on what is shared by more products: with AVX2 an activation, by the four registers
 * of a tile's two rows (the other way round a prompt took 5 % longer); with AVX-512 a weight, by six rows. */
GF_INLINE int dot_offset(const int bits) { return bits == 8 ? 0 : 8; }

GF_INLINE vi dot_four(const int bits, vi sums, vi weights, vi x) {
#if GF_LANES == 16
    const __m512i w = (__m512i)(weights ^ (bits == 8 ? (int32_t)0x80808080 : 0)), a = (__m512i)x;
    const __m512i pairs = bits == 8 ? _mm512_maddubs_epi16(_mm512_abs_epi8(w), _mm512_mask_sub_epi8(
                                          a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a))
                                    : _mm512_maddubs_epi16(w, a);
    return sums + (vi)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i w = (__m256i)(weights ^ (bits == 8 ? (int32_t)0x80808080 : 0)), a = (__m256i)x;
    const __m256i pairs = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w, a))
                                    : _mm256_maddubs_epi16(w, a);
    return sums + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

#elif defined(__SSE2__)

GF_INLINE int dot_offset(const int bits) { return bits == 8 ? 128 : 8; }

GF_INLINE vi dot_four(const int bits, vi sums, vi weights, vi x) {
    (void)bits;
    const __m128i zero = _mm_setzero_si128(), w = (__m128i)weights;
    const __m128i wide = _mm_srai_epi16(_mm_unpacklo_epi8((__m128i)x, (__m128i)x), 8);
    const __m128 low = (__m128)_mm_madd_epi16(_mm_unpacklo_epi8(w, zero), wide);
    const __m128 high = (__m128)_mm_madd_epi16(_mm_unpackhi_epi8(w, zero), wide);
    return sums + (vi)_mm_shuffle_ps(low, high, 0x88) + (vi)_mm_shuffle_ps(low, high, 0xdd);
}

#elif defined(__ARM_NEON) && defined(__aarch64__)

GF_INLINE int dot_offset(const int bits) { return bits == 8 ? 0 : 8; }

GF_INLINE vi dot_four(const int bits, vi sums, vi weights, vi x) {
    const int8x16_t w = (int8x16_t)(weights ^ (bits == 8 ? (int32_t)0x80808080 : 0)), a = (int8x16_t)x;
#ifdef GF_DOTPROD
    return (vi)vdotq_s32((int32x4_t)sums, w, a);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(a)), high = vmull_high_s8(w, a);
    return sums + (vi)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}

#else

GF_INLINE int dot_offset(const int bits) { return bits == 8 ? 128 : 8; }

GF_INLINE vi dot_four(const int bits, vi sums, vi weights, vi x) {
    (void)bits;
    uint8_t w[4 * GF_LANES];
    int8_t a[4 * GF_LANES];
    memcpy(w, &weights, sizeof w);
    memcpy(a, &x, sizeof a);
    for (int i = 0; i < 4 * GF_LANES; i++) sums[i / 4] += w[i] * a[i];
    return sums;
}

#endif
