/* The C half without Python: every kernel at every CPU level on made numbers, a line with a digest for each; and the
 * thread pool.  tests/tools/cross_compile.py builds it for other systems and compares what it writes. */
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "simd/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 65536

static uint64_t state;

static uint64_t next(void) { /* xorshift64 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static float number(void) { return (float)((int64_t)(next() >> 40) - (1 << 23)) / (1 << 22); } /* -2 to 2 */

static void fill(float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = number();
}

static void show(const char *level, const char *kernel, const void *data, size_t size) { /* FNV-1a */
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
    printf("%s %s %016" PRIx64 "\n", level, kernel, hash);
}

static float *a, *b, *c, *y;

static void products(const gf_rows *rows) {
    enum { K = 131, ROWS = GF_MAX_ROWS, GROUPS = (K + GF_GROUP - 1) / GF_GROUP };
    static const int counts[] = {1, 2, 5, ROWS};
    static float rounded[ROWS * (K + 1)];
    static uint16_t halves[(K + 1) / 2 * GF_PANEL * 2];
    static uint8_t panel[GROUPS * (GF_GROUP + 4) * GF_PANEL];
    static int8_t codes[ROWS * GROUPS * GF_GROUP];
    static gf_group groups[ROWS * GROUPS];
    const gf_epilogue epilogue = {.bias = c, .activation = GF_GELU_NEW, .accumulate = 0};
    for (int r = 0; r < ROWS; r++) rows->round_row(a + r * K, K, rounded + r * (K + 1));
    for (int i = 0; i < (K + 1) / 2 * GF_PANEL * 2; i++) {
        const float value = number();
        uint32_t bits;
        memcpy(&bits, &value, 4);
        halves[i] = (uint16_t)(bits >> 16);
    }
    for (int r = 0; r < ROWS; r++) rows->quantise_row(a + r * K, K, codes + r * GROUPS * GF_GROUP, groups + r * GROUPS);
    show(rows->name, "quantise_row", codes, sizeof codes);
    for (int i = 0; i < 4; i++) {
        const int m = counts[i];
        rows->panel_float32(b, K, a, K, m, epilogue, y, GF_PANEL);
        show(rows->name, "panel_float32", y, sizeof(float) * (size_t)m * GF_PANEL);
        rows->panel_bfloat16(halves, K, rounded, K + 1, m, epilogue, y, GF_PANEL);
        show(rows->name, "panel_bfloat16", y, sizeof(float) * (size_t)m * GF_PANEL);
        for (int bits = 8; bits >= 4; bits -= 4) {
            const size_t codes_size = GF_GROUP * GF_PANEL * (size_t)bits / 8, size = codes_size + 4 * GF_PANEL;
            for (int group = 0; group < GROUPS; group++) {
                /* As packing makes them: never -128 or -8. */
                for (size_t j = 0; j < codes_size; j++) panel[(size_t)group * size + j] = (uint8_t)(next() >> 32) | 0x11;
                memcpy(panel + (size_t)group * size + codes_size, b + group * GF_PANEL, 4 * GF_PANEL);
            }
            (bits == 8 ? rows->panel_int8 : rows->panel_int4)(panel, GROUPS, codes, GROUPS * GF_GROUP, groups, GROUPS, m,
                                                              epilogue, y, GF_PANEL);
            show(rows->name, bits == 8 ? "panel_int8" : "panel_int4", y, sizeof(float) * (size_t)m * GF_PANEL);
        }
    }
}

static void attention(const gf_rows *rows) {
    enum { HEAD = 64, POSITION = 37, ROWS = 5, BLOCKS = (POSITION + ROWS + GF_BLOCK - 1) / GF_BLOCK };
    static float scores[12 * BLOCKS * GF_BLOCK];
    const void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = b + i * 2 * HEAD * GF_BLOCK;
    rows->attend(0, a, HEAD, ROWS, POSITION, blocks, 0, HEAD * GF_BLOCK, HEAD, HEAD, 0.125f, scores, y, HEAD);
    show(rows->name, "attend", y, sizeof(float) * ROWS * HEAD);
}

static void functions(const gf_rows *rows) {
    enum { N = 771 };
    static double wide[N], out[N];
    gf_measures measures;
    for (int i = 0; i < N; i++) wide[i] = (double)b[i] * b[i] + 0.01;
    rows->layer_norm(a, b, c, 1e-5f, N, y);
    show(rows->name, "layer_norm", y, sizeof(float) * N);
    for (int activation = GF_LINEAR; activation <= GF_TANH; activation++) {
        memcpy(y, a, sizeof(float) * N);
        rows->activate(y, b, activation, N);
        show(rows->name, "activate", y, sizeof(float) * N);
    }
    rows->exp_float32(a, N, y);
    show(rows->name, "exp_float32", y, sizeof(float) * N);
    rows->erf_float32(a, N, y);
    show(rows->name, "erf_float32", y, sizeof(float) * N);
    rows->exp_float64(wide, N, out);
    show(rows->name, "exp_float64", out, sizeof out);
    rows->log_float64(wide, N, out);
    show(rows->name, "log_float64", out, sizeof out);
    out[0] = rows->sum_float64(wide, N);
    show(rows->name, "sum_float64", out, sizeof(double));
    rows->measure(a, N, 5, &measures);
    show(rows->name, "measure.log_probability", &measures.log_probability, sizeof(double));
    show(rows->name, "measure.entropy", &measures.entropy, sizeof(double));
    show(rows->name, "measure.rank", &measures.rank, sizeof(int64_t));
}

static void add_numbers(void *context, int64_t begin, int64_t end, int thread) {
    int64_t *sums = context;
    for (int64_t i = begin; i < end; i++) sums[16 * thread] += i;
}

static int pool_works(void) {
    static int64_t sums[16 * 4];
    for (int round = 0; round < 2000; round++) {
        memset(sums, 0, sizeof sums);
        gf_parallel_for(add_numbers, sums, 1000, 7, 1 + round % 4);
        if (sums[0] + sums[16] + sums[32] + sums[48] != 499500) return 0;
    }
    return 1;
}

int main(void) {
    static const char *levels[] = {"baseline", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "aarch64-dotprod"};
    a = gf_allocate(sizeof(float) * COUNT), b = gf_allocate(sizeof(float) * COUNT);
    c = gf_allocate(sizeof(float) * COUNT), y = gf_allocate(sizeof(float) * COUNT);
    if (a == NULL || b == NULL || c == NULL || y == NULL) return 1;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        int known;
        const gf_rows *rows = gf_rows_for(levels[i], &known);
        if (rows == NULL) continue;
        state = 20261201;
        fill(a, COUNT), fill(b, COUNT), fill(c, COUNT);
        products(rows);
        attention(rows);
        functions(rows);
    }
    if (!pool_works()) return 1;
    puts("pool ok");
    gf_free(a, sizeof(float) * COUNT);
    return 0;
}
