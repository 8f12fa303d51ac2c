/* One vector register of floats in the compiler's own vector types, so that one source serves every CPU level; and the
 * functions of one variable that the network needs. */

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

GF_INLINE vf vmax(vf a, vf b) { return choose(a > b, a, b); }

/* The lanes added in a fixed order. */
GF_INLINE float sum_lanes(vf v) {
    float lane[GF_LANES];
    store(lane, v);
    for (int width = GF_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

/* e to the x, within 2 units in the last place; 0 below -87.3, the largest power of this form above 88.3; NaN for NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r by the polynomial of Moshier's Cephes expf; times 2^n by its exponent bits. */
GF_INLINE vf vexp(vf x) {
    const vf low = splat(-87.3f), high = splat(88.3f), round = splat(12582912.0f); /* 1.5 * 2^23 */
    vi underflow = x < low;
    x = choose(x > high, high, choose(underflow, low, x));
    vf shifted = x * splat(1.44269504088896341f) + round;
    vf n = shifted - round;
    vf r = x - n * splat(0.693359375f);
    r = r - n * splat(-2.12194440e-4f);
    vf p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * (r * r) + r + splat(1.0f);
    vu power = ((vu)shifted << 23) + (127u << 23);
    return (vf)((vi)(p * (vf)power) & ~underflow);
}

/* x times the logistic function of s * x: with s = 1 the SiLU. */
GF_INLINE vf vlogistic(vf x, vf s) { return x / (splat(1.0f) + vexp(-s)); }

/* 0.5 x (1 + tanh(u)) = x * logistic(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): GPT-2's own GELU. */
GF_INLINE vf vgelu_new(vf x) {
    vf u2 = splat(1.59576912160573071f) * (x + splat(0.044715f) * x * x * x);
    return vlogistic(x, u2);
}

/* 0.5 x (1 + erf(x / sqrt 2)), by the C library: few checkpoints use it. */
GF_INLINE vf vgelu(vf x) {
    float lane[GF_LANES];
    store(lane, x);
    for (int i = 0; i < GF_LANES; i++) lane[i] = 0.5f * lane[i] * (1.0f + erff(lane[i] * 0.70710678118654752f));
    return load(lane);
}

GF_INLINE vf vactivate(vf x, int activation) {
    switch (activation) {
        case GF_GELU_NEW: return vgelu_new(x);
        case GF_GELU: return vgelu(x);
        case GF_RELU: return choose(x < splat(0.0f), splat(0.0f), x); /* NaN stays NaN */
        case GF_SILU: return vlogistic(x, x);
        default: return x;
    }
}
