/* The frequencies that text is coded with (kernels/coding.pyx): whole numbers made of a row of logits.
 *
 * After exp, whose bits are the same everywhere, all is arithmetic of whole numbers, whose order does not matter. */

/* frequencies[i] = floor(2^30 exp(logits[i] - largest)) >> shift, plus 1, with the least shift for which their sum, which
 * is returned, is under 2^32; 0 where a logit is NaN or infinity, or all are minus infinity.  n is under 2^31. */
static uint64_t frequencies(const float *logits, int64_t n, uint32_t *frequencies) {
    const int64_t whole = n - n % GF_LANES;
    float last[GF_LANES];
    for (int64_t i = 0; i < GF_LANES; i++) last[i] = whole + i < n ? logits[whole + i] : -INFINITY;
    vf largest = splat(-INFINITY);
    vi finite = ~(vi){0};
    for (int64_t i = 0; i < n; i += GF_LANES) {
        const vf x = load(i < whole ? logits + i : last);
        largest = vmax(x, largest);
        finite &= x < splat(INFINITY); /* not of NaN, either */
    }
    for (int i = 0; i < GF_LANES; i++)
        if (!finite[i]) return 0;
    const float top = max_lanes(largest);
    if (top == -INFINITY) return 0;
    const vf one = splat(0x1p30f);
    for (int64_t i = 0; i < whole; i += GF_LANES) {
        const vi weight = __builtin_convertvector(vexp(load(logits + i) - splat(top)) * one, vi);
        memcpy(frequencies + i, &weight, sizeof weight);
    }
    const vi weight = __builtin_convertvector(vexp(load(last) - splat(top)) * one, vi);
    memcpy(frequencies + whole, &weight, (size_t)(n - whole) * sizeof *frequencies);
    uint64_t sum = 0, total = 0;
    for (int64_t i = 0; i < n; i++) sum += frequencies[i];
    int shift = 0;
    while ((sum >> shift) + (uint64_t)n > UINT32_MAX) shift++;
    for (int64_t i = 0; i < n; i++) total += frequencies[i] = (frequencies[i] >> shift) + 1;
    return total;
}
