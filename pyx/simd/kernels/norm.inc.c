/* LayerNorm and activations of one row.  The order of every sum depends on n alone, never on what else is computed. */

static void layer_norm(const float *x, const float *weight, const float *bias, float epsilon, int64_t n, float *y) {
    enum { STEP = 2 * GF_LANES };
    vf s0 = splat(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        s0 += load(x + i);
        s1 += load(x + i + GF_LANES);
    }
    float sum = sum_lanes(s0 + s1);
    for (int64_t j = i; j < n; j++) sum += x[j];
    const float mean = sum / (float)n;

    s0 = s1 = splat(0.0f);
    for (i = 0; i + STEP <= n; i += STEP) {
        vf d0 = load(x + i) - mean, d1 = load(x + i + GF_LANES) - mean;
        s0 += d0 * d0;
        s1 += d1 * d1;
    }
    float squares = sum_lanes(s0 + s1);
    for (int64_t j = i; j < n; j++) squares += (x[j] - mean) * (x[j] - mean);
    const float scale = 1.0f / sqrtf(squares / (float)n + epsilon);

    for (i = 0; i + GF_LANES <= n; i += GF_LANES)
        store(y + i, (load(x + i) - mean) * scale * load(weight + i) + load(bias + i));
    for (; i < n; i++) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

static void activate(float *x, const float *bias, int activation, int64_t n) {
    for (int64_t i = 0; i < n; i += GF_LANES) {
        int64_t rest = n - i < GF_LANES ? n - i : GF_LANES;
        float buffer[GF_LANES] = {0};
        float *lanes = rest == GF_LANES ? x + i : buffer;
        vf v;
        if (rest == GF_LANES) {
            v = load(x + i);
            if (bias != NULL) v += load(bias + i);
        } else {
            for (int64_t j = 0; j < rest; j++) buffer[j] = x[i + j] + (bias != NULL ? bias[i + j] : 0.0f);
            v = load(buffer);
        }
        store(lanes, vactivate(v, activation));
        if (rest != GF_LANES) memcpy(x + i, buffer, (size_t)rest * sizeof(float));
    }
}
