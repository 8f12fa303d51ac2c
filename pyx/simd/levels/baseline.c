/* The row kernels for any processor of the architecture: SSE2 on x86-64, NEON on aarch64. */
#include "simd/rows.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define GF_LANES 4
#define GF_TABLE gf_rows_baseline
#define GF_NAME "baseline"
#include "simd/rows.inc.c"
