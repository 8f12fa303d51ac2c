/* The row kernels for x86-64-v4: AVX-512 F, BW, CD, DQ and VL. */
#include "simd/rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef GF_X86_LEVELS
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#endif
#define GF_LANES 16
#define GF_TABLE gf_rows_v4
#define GF_NAME "x86-64-v4"
#include "simd/rows.inc.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
