/* One vector register of floats in the compiler's own vector types, so that one source serves every CPU level.
 *
 * Results are the same bits at every level: operators are IEEE 754's, each rounded by itself (-ffp-contract=off); vfma
 * rounds once; and a sum has a fixed number of lanes, however many of them a register holds. */
#if FLT_EVAL_METHOD != 0
#error "float expressions are computed in another precision: on 32-bit x86, compile with -msse2 -mfpmath=sse"
#endif

typedef float vf __attribute__((vector_size(4 * GF_LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * GF_LANES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * GF_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * GF_LANES)));

#define GF_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define GF_UNROLL _Pragma("clang loop unroll(full)")
#define GF_ROLL _Pragma("clang loop unroll(disable)")
#else
#define GF_UNROLL _Pragma("GCC unroll 32")
#define GF_ROLL _Pragma("GCC unroll 1")
#endif

GF_INLINE vf load(const float *p) { return *(const vf_unaligned *)p; }
GF_INLINE void store(float *p, vf v) { *(vf_unaligned *)p = v; }

/* x - 0 is x for every x (x + 0 is not, for -0), so compilers make one broadcast of it. */
GF_INLINE vf splat(float x) { return x - (vf){0}; }

/* mask ? a : b, lane by lane; masks are what vector comparisons give, all ones or all zeros. */
GF_INLINE vf choose(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* a > b ? a : b, so b where a is NaN; it is one instruction on x86. */
GF_INLINE vf vmax(vf a, vf b) {
#if GF_LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif GF_LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return choose(a > b, a, b);
#endif
}

/* a < b ? a : b. */
GF_INLINE vf vmin(vf a, vf b) {
#if GF_LANES == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif GF_LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return choose(a < b, a, b);
#endif
}

/* Between 32 bits and 16 or 8: the numbers are there in both.  One instruction, of which compilers make five from
 * __builtin_convertvector: attention over a cache of bfloat16 was a quarter slower with that. */
typedef uint16_t vh __attribute__((vector_size(2 * GF_LANES)));
typedef uint16_t vh_unaligned __attribute__((vector_size(2 * GF_LANES), aligned(2), may_alias));
typedef int8_t vcodes __attribute__((vector_size(GF_LANES)));

GF_INLINE vu widen(vh x) {
#if GF_LANES == 16
    return (vu)_mm512_cvtepu16_epi32((__m256i)x);
#elif GF_LANES == 8
    return (vu)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, vu);
#endif
}

GF_INLINE vh narrow_halves(vu x) {
#if GF_LANES == 16
    return (vh)_mm512_cvtepi32_epi16((__m512i)x);
#else
    return __builtin_convertvector(x, vh);
#endif
}

GF_INLINE vcodes narrow_codes(vi x) {
#if GF_LANES == 16
    return (vcodes)_mm512_cvtepi32_epi8((__m512i)x);
#else
    return __builtin_convertvector(x, vcodes);
#endif
}

#include "simd/kernels/fma.inc.c"

/* The lanes added in a fixed order: the upper half to the lower one until one is left. */
GF_INLINE float sum_lanes(vf v) {
    float lane[GF_LANES];
    store(lane, v);
    for (int width = GF_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

/* The same for lanes that lie in `count` registers. */
GF_INLINE float sum_registers(const int count, vf *v) {
    GF_UNROLL for (int width = count / 2; width > 0; width /= 2) {
        GF_UNROLL for (int i = 0; i < width; i++) v[i] += v[i + width];
    }
    return sum_lanes(v[0]);
}

/* The largest lane; the lanes are not NaN. */
GF_INLINE float max_lanes(vf v) {
#if GF_LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#endif
    float top = v[0];
    for (int i = 1; i < GF_LANES; i++) top = v[i] > top ? v[i] : top;
    return top;
}

/* The sum of whole numbers. */
GF_INLINE int32_t sum_codes(vi v) {
#if GF_LANES == 16
    return _mm512_reduce_add_epi32((__m512i)v);
#endif
    int32_t sum = 0;
    for (int i = 0; i < GF_LANES; i++) sum += v[i];
    return sum;
}
