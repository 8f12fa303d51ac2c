/* The row kernels for x86-64-v3: AVX2 and FMA. */
#include "simd/rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef GF_X86_LEVELS
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe")
#endif
#define GF_LANES 8
#define GF_TABLE gf_rows_v3
#define GF_NAME "x86-64-v3"
#include "simd/rows.inc.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
