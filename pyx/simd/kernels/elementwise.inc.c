/* exp, log and sums in double precision, which sampling and scoring need, and what is measured of a row of logits.
 *
 * Here every operator rounds by itself; nothing is fused, as SSE2 could not follow.  Errors are in units in the last place
 * (ULP) of the exact result. */

typedef double vd __attribute__((vector_size(4 * GF_LANES)));
typedef double vd_unaligned __attribute__((vector_size(4 * GF_LANES), aligned(8), may_alias));
typedef int64_t vl __attribute__((vector_size(4 * GF_LANES)));
typedef uint64_t vul __attribute__((vector_size(4 * GF_LANES)));

#define GF_DOUBLES (GF_LANES / 2)

GF_INLINE vd load64(const double *p) { return *(const vd_unaligned *)p; }
GF_INLINE void store64(double *p, vd v) { *(vd_unaligned *)p = v; }
GF_INLINE vd splat64(double x) { return x - (vd){0}; }
GF_INLINE vd choose64(vl mask, vd a, vd b) { return (vd)((mask & (vl)a) | (~mask & (vl)b)); }

/* 2 to the n, for the n of -1022 to 1023 whose float64 plus 1.5 * 2^52 is `shifted`. */
GF_INLINE vd power_of_two(vd shifted) {
    return (vd)((vul)((vl)shifted - INT64_C(0x4338000000000000) + 1023) << 52);
}

/* e to the x, within 1 ULP, subnormal results too; 0 below -745.2, infinity above 709.78.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r); times 2^n in two steps, of which one rounds at most. */
GF_INLINE vd vexp64(vd x) {
    const vd low = splat64(-746.0), high = splat64(710.0), round = splat64(0x1.8p52);
    x = choose64(x > high, high, choose64(x < low, low, x));
    const vd n = (x * splat64(0x1.71547652b82fep+0) + round) - round;
    vd r = x - n * splat64(0x1.62e42fefa3800p-1); /* exact: 42 bits times 11 */
    r = r - n * splat64(0x1.ef35793c76730p-45);
    vd p = splat64(0x1.ad7f69b90fe09p-26);
    p = p * r + splat64(0x1.28ad72fee4169p-22);
    p = p * r + splat64(0x1.71df2554c3994p-19);
    p = p * r + splat64(0x1.a0199a0c2eac4p-16);
    p = p * r + splat64(0x1.a01a012a57026p-13);
    p = p * r + splat64(0x1.6c16c1842a271p-10);
    p = p * r + splat64(0x1.1111111127be6p-7);
    p = p * r + splat64(0x1.555555555087cp-5);
    p = p * r + splat64(0x1.55555555554fap-3);
    p = p * r + splat64(0x1.000000000000ap-1);
    p = splat64(1.0) + (r + r * r * p);
    const vd half = n * splat64(0.5) + round;
    return p * power_of_two(half) * power_of_two(n - (half - round) + round);
}

/* The natural logarithm, within 1 ULP; -infinity of 0, NaN of negative numbers.
 * x = 2^k m with m in [sqrt(1/2), sqrt 2), f = m - 1, s = f / (2 + f), so that log m = 2 atanh(s) = f - s (f - s^2 p(s^2)). */
GF_INLINE vd vlog64(vd x) {
    const vd smallest = splat64(0x1p-1022);
    const vl tiny = x < smallest;
    const vul bits = (vul)choose64(tiny, x * splat64(0x1p54), x);
    const vul k = (bits - UINT64_C(0x3fe6a09e667f3bcd) + UINT64_C(0x4000000000000000)) >> 52; /* plus 1024 */
    const vd m = (vd)(bits - ((k - 1024) << 52));
    const vd exponent = (vd)(k | UINT64_C(0x4330000000000000)) - choose64(tiny, splat64(0x1p52 + 1078), splat64(0x1p52 + 1024));
    const vd f = m - splat64(1.0), s = f / (splat64(2.0) + f), z = s * s;
    vd p = splat64(0x1.2f0633557165fp-3);
    p = p * z + splat64(0x1.39a1a7170b6eap-3);
    p = p * z + splat64(0x1.74663fa0d500cp-3);
    p = p * z + splat64(0x1.c71c52060f01dp-3);
    p = p * z + splat64(0x1.24924941f4f17p-2);
    p = p * z + splat64(0x1.999999997fd78p-2);
    p = p * z + splat64(0x1.5555555555592p-1);
    const vd result = exponent * splat64(0x1.62e42fefa3800p-1) +
                      (f - (s * (f - z * p) - exponent * splat64(0x1.ef35793c76730p-45)));
    const vl finite = x < splat64(INFINITY);
    const vd special = choose64(x == splat64(0.0), splat64(-INFINITY), choose64(x < splat64(0.0), splat64(NAN), x));
    return choose64(finite & (x > splat64(0.0)), result, special);
}

/* FUNCTION of n values, which may be replaced by the results. */
#define GF_DEFINE_MAP(NAME, TYPE, LANES, LOAD, STORE, FUNCTION)             \
    static void NAME(const TYPE *x, int64_t n, TYPE *y) {                   \
        int64_t i = 0;                                                      \
        for (; i + LANES <= n; i += LANES) STORE(y + i, FUNCTION(LOAD(x + i))); \
        if (i < n) {                                                        \
            TYPE last[LANES] = {0};                                         \
            memcpy(last, x + i, (size_t)(n - i) * sizeof(TYPE));            \
            STORE(last, FUNCTION(LOAD(last)));                              \
            memcpy(y + i, last, (size_t)(n - i) * sizeof(TYPE));            \
        }                                                                   \
    }

GF_DEFINE_MAP(exp_float32, float, GF_LANES, load, store, vexp)
GF_DEFINE_MAP(erf_float32, float, GF_LANES, load, store, verf)
GF_DEFINE_MAP(exp_float64, double, GF_DOUBLES, load64, store64, vexp64)
GF_DEFINE_MAP(log_float64, double, GF_DOUBLES, load64, store64, vlog64)

/* Sums in double precision have 16 lanes: lane j adds the values j, j + 16, j + 32 … in this order. */
enum { GF_SUM64_LANES = 16, GF_SUM64_REGISTERS = GF_SUM64_LANES / GF_DOUBLES };

GF_INLINE double sum_registers64(vd *v) {
    GF_UNROLL for (int width = GF_SUM64_REGISTERS / 2; width > 0; width /= 2) {
        GF_UNROLL for (int i = 0; i < width; i++) v[i] += v[i + width];
    }
    double lane[GF_DOUBLES];
    store64(lane, v[0]);
    for (int width = GF_DOUBLES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

static double sum_float64(const double *x, int64_t n) {
    vd sum[GF_SUM64_REGISTERS];
    GF_UNROLL for (int v = 0; v < GF_SUM64_REGISTERS; v++) sum[v] = splat64(0.0);
    int64_t i = 0;
    for (; i + GF_SUM64_LANES <= n; i += GF_SUM64_LANES) {
        GF_UNROLL for (int v = 0; v < GF_SUM64_REGISTERS; v++) sum[v] += load64(x + i + v * GF_DOUBLES);
    }
    if (i < n) {
        double last[GF_SUM64_LANES] = {0};
        memcpy(last, x + i, (size_t)(n - i) * sizeof(double));
        GF_UNROLL for (int v = 0; v < GF_SUM64_REGISTERS; v++) sum[v] += load64(last + v * GF_DOUBLES);
    }
    return sum_registers64(sum);
}

GF_INLINE double log_of(double x) { return vlog64(splat64(x))[0]; }

/* Adds to the lanes of `sums` the e^below of 16 logits, to those of `means` e^below times below, which is exact, and to
 * those of `squares` this times below. */
GF_INLINE void measure_lanes(const float *x, float top, vd *sums, vd *means, vd *squares) {
    typedef float vhalf __attribute__((vector_size(2 * GF_LANES), aligned(4), may_alias));
    float below[GF_SUM64_LANES], weights[GF_SUM64_LANES];
    GF_UNROLL for (int i = 0; i < GF_SUM64_LANES; i += GF_LANES) {
        /* The floor, far under what has a weight, keeps minus infinity times 0 out of the entropy. */
        const vf difference = load(x + i) - top, floored = choose(difference < splat(-200.0f), splat(-200.0f), difference);
        store(below + i, floored);
        store(weights + i, vexp(floored));
    }
    GF_UNROLL for (int v = 0; v < GF_SUM64_REGISTERS; v++) {
        const vd weight = __builtin_convertvector(*(const vhalf *)(weights + v * GF_DOUBLES), vd);
        const vd distance = __builtin_convertvector(*(const vhalf *)(below + v * GF_DOUBLES), vd);
        const vd product = weight * distance;
        sums[v] += weight;
        means[v] += product;
        squares[v] += product * distance;
    }
}

static void measure(const float *logits, int64_t n, int64_t target, gf_measures *out) {
    const float chosen = logits[target];
    vf largest = splat(-INFINITY);
    vi above = {0};
    float last[GF_SUM64_LANES];
    const int64_t whole = n - n % GF_SUM64_LANES;
    for (int64_t i = 0; i < GF_SUM64_LANES; i++) last[i] = whole + i < n ? logits[whole + i] : -INFINITY;
    for (int64_t i = 0; i < n; i += GF_LANES) {
        const vf x = load(i < whole ? logits + i : last + (i - whole));
        largest = vmax(x, largest);
        above -= x > splat(chosen);
    }
    const float top = max_lanes(largest);
    vd sums[GF_SUM64_REGISTERS], means[GF_SUM64_REGISTERS], squares[GF_SUM64_REGISTERS];
    GF_UNROLL for (int v = 0; v < GF_SUM64_REGISTERS; v++) sums[v] = means[v] = squares[v] = splat64(0.0);
    for (int64_t i = 0; i < whole; i += GF_SUM64_LANES) measure_lanes(logits + i, top, sums, means, squares);
    if (whole < n) measure_lanes(last, top, sums, means, squares);
    const double total = sum_registers64(sums), mean = sum_registers64(means) / total, logarithm = log_of(total);
    out->log_probability = (double)(chosen - top) - logarithm;
    out->entropy = (logarithm - mean) * (1 / 0x1.62e42fefa39efp-1);
    const double variance = sum_registers64(squares) / total - mean * mean;
    out->variance = variance < 0.0 ? 0.0 : variance; /* NaN stays NaN */
    out->rank = 1;
    for (int i = 0; i < GF_LANES; i++) out->rank += above[i];
}
