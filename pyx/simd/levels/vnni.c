/* The row kernels for x86-64-v4 with VNNI, which multiplies 64 pairs of bytes and adds them by fours in one instruction. */
#include "simd/rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef GF_X86_LEVELS
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni")
#endif
#define GF_LANES 16
#define GF_TABLE gf_rows_v4_vnni
#define GF_NAME "x86-64-v4-vnni"
#define GF_VNNI
#include "simd/rows.inc.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
