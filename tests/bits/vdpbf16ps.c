/* AVX-512 BF16's VDPBF16PS beside the definition of bfloat16 products (pyx/simd/kernels/bfloat16.inc.c): how many of the
 * sums differ, over numbers of the kinds that the definition lets through.  Argument: how many registers of each kind. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;
static uint64_t random_bits(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static float widened(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Exponents: of all that are let through, the lowest, the highest, ordinary ones. */
static const int LOWEST[] = {71, 71, 184, 123}, COUNT[] = {120, 12, 7, 8};

static uint16_t some(int kind) {
    const uint64_t bits = random_bits();
    const uint16_t sign_and_fraction = bits & 0x807f;
    if (bits >> 32 & 15) return sign_and_fraction | (uint16_t)((LOWEST[kind] + bits / 65536 % 4096 % COUNT[kind]) << 7);
    return bits & 0x8000; /* 0 */
}

int main(int argc, char **argv) {
    const long registers = argc > 1 ? atol(argv[1]) : 100000;
    long differ = 0, in_the_other_order = 0, subnormal = 0;
    for (int kind = 0; kind < 4; kind++) {
        for (long i = 0; i < registers; i++) {
            uint16_t w[32], x[32];
            float before[16], after[16];
            for (int j = 0; j < 32; j++) {
                w[j] = some(kind);
                x[j] = some(kind);
            }
            for (int j = 0; j < 16; j++) { /* a sum of some products so far */
                before[j] = 0;
                for (int n = random_bits() % 3; n > 0; n--) before[j] = fmaf(widened(some(kind)), widened(some(kind)), before[j]);
            }
            _mm512_storeu_ps(after, _mm512_dpbf16_ps(_mm512_loadu_ps(before), (__m512bh)_mm512_loadu_si512(w),
                                                     (__m512bh)_mm512_loadu_si512(x)));
            for (int j = 0; j < 16; j++) {
                const float even_w = widened(w[2 * j]), even_x = widened(x[2 * j]);
                const float odd_w = widened(w[2 * j + 1]), odd_x = widened(x[2 * j + 1]);
                const float sum = fmaf(odd_x, odd_w, before[j]), defined = fmaf(even_x, even_w, sum);
                const float other = fmaf(odd_x, odd_w, fmaf(even_x, even_w, before[j]));
                differ += memcmp(&defined, &after[j], 4) != 0;
                in_the_other_order += memcmp(&other, &after[j], 4) != 0;
                subnormal += fpclassify(sum) == FP_SUBNORMAL || fpclassify(defined) == FP_SUBNORMAL;
            }
        }
    }
    printf("%ld differ, %ld in the other order, %ld subnormal, of %ld\n", differ, in_the_other_order, subnormal, 64 * registers);
    return differ != 0 || subnormal != 0 || in_the_other_order == 0;
}
