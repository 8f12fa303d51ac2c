/* The functions of one variable that the network needs, in float32.
 *
 * The polynomials, but tanh's, are minimax approximations of their own (Remez exchange at 200 bits, coefficients rounded to float32);
 * errors are in units in the last place (ULP) of the exact result, the largest over all floats of the range. */

/* e to the x, within 1.01 ULP; 0 below -87.3, infinity above 88.37, NaN for NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r); times 2^n by its exponent bits. */
GF_INLINE vf vexp(vf x) {
    const vf low = splat(-87.3f), high = splat(89.0f), round = splat(12582912.0f); /* 1.5 * 2^23 */
    vi underflow = x < low;
    x = vmin(high, vmax(low, x)); /* NaN stays NaN */
    vf shifted = vfma(x, splat(0x1.715476p+0f), round);
    vf n = shifted - round;
    vf r = vfma(n, splat(-0x1.62e430p-1f), x);
    r = vfma(n, splat(0x1.05c610p-29f), r);
    vf p = splat(0x1.6a2438p-10f);
    p = vfma(p, r, splat(0x1.1239e2p-7f));
    p = vfma(p, r, splat(0x1.5558f2p-5f));
    p = vfma(p, r, splat(0x1.555492p-3f));
    p = vfma(p, r, splat(0x1.fffffcp-2f));
    p = vfma(p, r * r, r) + splat(1.0f);
    vu power = ((vu)shifted << 23) + (127u << 23); /* infinity for n = 128 */
    return (vf)((vi)(p * (vf)power) & ~underflow);
}

/* The error function, within 1.2 ULP: x + x p(x^2) under 1, then 1 - e^-q(|x|), which is 1 from 4 on. */
GF_INLINE vf verf(vf x) {
    const vf magnitude = (vf)((vi)x & 0x7fffffff);
    vf z = x * x;
    vf p = splat(0x1.4996ecp-14f);
    p = vfma(p, z, splat(-0x1.a40954p-11f));
    p = vfma(p, z, splat(0x1.540896p-8f));
    p = vfma(p, z, splat(-0x1.b7f97ep-6f));
    p = vfma(p, z, splat(0x1.ce2d00p-4f));
    p = vfma(p, z, splat(-0x1.81273ep-2f));
    p = vfma(p, z, splat(0x1.06eba8p-3f));
    const vf a = choose(magnitude > splat(4.0f), splat(4.0f), magnitude);
    vf q = splat(-0x1.86db4ap-13f);
    q = vfma(q, a, splat(0x1.8259a0p-9f));
    q = vfma(q, a, splat(-0x1.65cacep-6f));
    q = vfma(q, a, splat(0x1.a652ecp-4f));
    q = vfma(q, a, splat(0x1.46baf8p-1f));
    q = vfma(q, a, splat(0x1.2088e8p+0f));
    q = vfma(q, a, splat(0x1.662b2ap-12f));
    const vf far = splat(1.0f) - vexp(-q);
    const vf signed_far = (vf)((vi)far | ((vi)x & INT32_MIN));
    return choose(magnitude < splat(1.0f), vfma(x, p, x), signed_far);
}

/* x times the logistic function of s: with s = x the SiLU. */
GF_INLINE vf vlogistic(vf x, vf s) { return x / (splat(1.0f) + vexp(-s)); }

/* 0.5 x (1 + tanh(u)) = x * logistic(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): GPT-2's own GELU. */
GF_INLINE vf vgelu_new(vf x) { return vlogistic(x, x * vfma(x * x, splat(0.0713548163f), splat(1.59576912f))); }

/* 0.5 x (1 + erf(x / sqrt 2)). */
GF_INLINE vf vgelu(vf x) { return splat(0.5f) * x * (splat(1.0f) + verf(x * splat(0.707106781f))); }

/* tanh, within 1.3 ULP: under 0.625, where the other form cancels, a polynomial in x^2 (Moshier's Cephes tanhf); then
 * 1 - 2 / (e^2x + 1). */
GF_INLINE vf vtanh(vf x) {
    const vf magnitude = (vf)((vi)x & 0x7fffffff);
    vf z = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = vfma(p, z, splat(2.06390887954e-2f));
    p = vfma(p, z, splat(-5.37397155531e-2f));
    p = vfma(p, z, splat(1.33314422036e-1f));
    p = vfma(p, z, splat(-3.33332819422e-1f));
    const vf far = splat(1.0f) - splat(2.0f) / (vexp(magnitude + magnitude) + splat(1.0f));
    const vf signed_far = (vf)((vi)far | ((vi)x & INT32_MIN));
    return choose(magnitude < splat(0.625f), vfma(p * z, x, x), signed_far);
}

GF_INLINE vf vactivate(vf x, int activation) {
    switch (activation) {
        case GF_GELU_NEW: return vgelu_new(x);
        case GF_GELU: return vgelu(x);
        case GF_RELU: return choose(x < splat(0.0f), splat(0.0f), x); /* NaN stays NaN */
        case GF_SILU: return vlogistic(x, x);
        case GF_QUICK_GELU: return vlogistic(x, splat(1.702f) * x);
        case GF_TANH: return vtanh(x);
        default: return x;
    }
}
