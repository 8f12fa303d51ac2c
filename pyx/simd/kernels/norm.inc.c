/* LayerNorm and activations of one row.
 *
 * A sum over n values has 32 lanes, whatever a register holds: lane j adds the values j, j + 32, j + 64 … in this order,
 * and sum_registers adds the lanes.  So its bits depend on the values alone, never on the CPU level or on what else is
 * computed. */

enum { GF_SUM_LANES = 32, GF_SUM_REGISTERS = GF_SUM_LANES / GF_LANES };

/* The values of GF_SUM_LANES lanes from x on, less `mean`, of which only `rest` are there: the others count nothing. */
GF_INLINE void last_lanes(const float *x, int64_t rest, float mean, float *lanes) {
    for (int64_t j = 0; j < GF_SUM_LANES; j++) lanes[j] = j < rest ? x[j] - mean : 0.0f;
}

static void layer_norm(const float *x, const float *weight, const float *bias, float epsilon, int64_t n, float *y) {
    const int64_t whole = n - n % GF_SUM_LANES;
    float last[GF_SUM_LANES];
    vf sum[GF_SUM_REGISTERS], squares[GF_SUM_REGISTERS];
    GF_UNROLL for (int v = 0; v < GF_SUM_REGISTERS; v++) sum[v] = squares[v] = splat(0.0f);
    for (int64_t i = 0; i < whole; i += GF_SUM_LANES) {
        GF_UNROLL for (int v = 0; v < GF_SUM_REGISTERS; v++) sum[v] += load(x + i + v * GF_LANES);
    }
    if (whole < n) {
        last_lanes(x + whole, n - whole, 0.0f, last);
        GF_UNROLL for (int v = 0; v < GF_SUM_REGISTERS; v++) sum[v] += load(last + v * GF_LANES);
    }
    const float mean = sum_registers(GF_SUM_REGISTERS, sum) / (float)n;

    for (int64_t i = 0; i < whole; i += GF_SUM_LANES) {
        GF_UNROLL for (int v = 0; v < GF_SUM_REGISTERS; v++) {
            const vf d = load(x + i + v * GF_LANES) - mean;
            squares[v] = vfma(d, d, squares[v]);
        }
    }
    if (whole < n) {
        last_lanes(x + whole, n - whole, mean, last);
        GF_UNROLL for (int v = 0; v < GF_SUM_REGISTERS; v++) {
            const vf d = load(last + v * GF_LANES);
            squares[v] = vfma(d, d, squares[v]);
        }
    }
    const float scale = 1.0f / sqrtf(sum_registers(GF_SUM_REGISTERS, squares) / (float)n + epsilon);

    int64_t i = 0;
    for (; i + GF_LANES <= n; i += GF_LANES)
        store(y + i, vfma((load(x + i) - mean) * scale, load(weight + i), load(bias + i)));
    if (i < n) {
        float values[3][GF_LANES] = {{0}};
        const size_t size = (size_t)(n - i) * sizeof(float);
        memcpy(values[0], x + i, size);
        memcpy(values[1], weight + i, size);
        memcpy(values[2], bias + i, size);
        store(values[0], vfma((load(values[0]) - mean) * scale, load(values[1]), load(values[2])));
        memcpy(y + i, values[0], size);
    }
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
