/* The row kernels for aarch64 with the dot products of Armv8.2, which multiply 16 pairs of bytes and add them by fours.
 *
 * Checked under emulation, never timed.  I8MM's SMMLA multiplies eight successive codes of a column, and panels hold four
 * together; BFMMLA rounds sums otherwise than the other levels. */
#include "simd/rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef GF_ARM_LEVELS
#include <arm_neon.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#define GF_LANES 4
#define GF_TABLE gf_rows_dotprod
#define GF_NAME "aarch64-dotprod"
#define GF_DOTPROD
#include "simd/rows.inc.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
