/* vfma: a * b + c with a single rounding, which is what IEEE 754 calls fusedMultiplyAdd, at every level.
 *
 * Written out, and never left to the compiler, which would fuse one expression and not its neighbour. */

#define GF_FUSED 1 /* the processor has an instruction for it */

#if GF_LANES == 16

GF_INLINE vf vfma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

#elif GF_LANES == 8

GF_INLINE vf vfma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

#elif defined(__ARM_NEON) && defined(__aarch64__)

GF_INLINE vf vfma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

#elif defined(__SSE2__)

#undef GF_FUSED
#define GF_FUSED 0

/* SSE2 has no such instruction.  In double precision the product of two floats is exact, so only the sum rounds.  It is
 * rounded to odd: cut off, with the last bit set where anything was cut off.  Rounding that to float gives what rounding
 * the exact sum would have given, as a double has more than two bits beyond a float's (Boldo and Melquiond 2008, "Emulation
 * of FMA and correctly rounded sums", IEEE Transactions on Computers 57). */
GF_INLINE __m128d sum_to_odd(__m128d p, __m128d c) {
    const __m128d sum = p + c, back = sum - p;
    const __m128d lost = (p - (sum - back)) + (c - back); /* exactly p + c - sum (Knuth's TwoSum); NaN where that is */
    const __m128d zero = _mm_setzero_pd();
    const __m128i inexact = (__m128i)_mm_or_pd(_mm_cmplt_pd(lost, zero), _mm_cmpgt_pd(lost, zero));
    const __m128i beyond = _mm_shuffle_epi32(_mm_srai_epi32((__m128i)sum ^ (__m128i)lost, 31), 0xf5); /* signs differ */
    return (__m128d)_mm_or_si128(_mm_add_epi64((__m128i)sum, beyond & inexact), _mm_srli_epi64(inexact, 63));
}

GF_INLINE vf vfma(vf a, vf b, vf c) {
    const __m128 x = (__m128)a, y = (__m128)b, z = (__m128)c;
    const __m128d low = sum_to_odd(_mm_cvtps_pd(x) * _mm_cvtps_pd(y), _mm_cvtps_pd(z));
    const __m128d high = sum_to_odd(_mm_cvtps_pd(_mm_movehl_ps(x, x)) * _mm_cvtps_pd(_mm_movehl_ps(y, y)),
                                    _mm_cvtps_pd(_mm_movehl_ps(z, z)));
    return (vf)_mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}

#else

#undef GF_FUSED
#define GF_FUSED 0

GF_INLINE vf vfma(vf a, vf b, vf c) {
    for (int i = 0; i < GF_LANES; i++) c[i] = fmaf(a[i], b[i], c[i]); /* the C library's rounds once, too */
    return c;
}

#endif
