/* Which CPU level this process uses.  By features, never by model names: those leave AMD chips at the baseline. */
#include "simd/rows.h"

#include <stddef.h>
#include <string.h>

#ifdef GF_X86_LEVELS
static int has_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static int has_v4(void) {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}

/* Not part of v4, but of nearly every chip with it. */
static int has_v4_vnni(void) { return has_v4() && __builtin_cpu_supports("avx512vnni"); }
#endif

#ifdef GF_ARM_LEVELS
#if defined(__ARM_FEATURE_DOTPROD) /* all of this is compiled for it, as for every Mac */
static int has_dotprod(void) { return 1; }
#elif defined(__linux__)
#include <sys/auxv.h>
static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* HWCAP_ASIMDDP */
#elif defined(_WIN32)
#include <windows.h>
static int has_dotprod(void) { return IsProcessorFeaturePresent(43); } /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
#else
static int has_dotprod(void) { return 0; }
#endif
#endif

const gf_rows *gf_rows_for(const char *name, int *known) {
    *known = 1;
#ifdef GF_X86_LEVELS
    __builtin_cpu_init();
    if (name == NULL)
        return has_v4_vnni() ? &gf_rows_v4_vnni : has_v4() ? &gf_rows_v4 : has_v3() ? &gf_rows_v3 : &gf_rows_baseline;
    if (strcmp(name, "x86-64-v4-vnni") == 0) return has_v4_vnni() ? &gf_rows_v4_vnni : NULL;
    if (strcmp(name, "x86-64-v4") == 0) return has_v4() ? &gf_rows_v4 : NULL;
    if (strcmp(name, "x86-64-v3") == 0) return has_v3() ? &gf_rows_v3 : NULL;
    if (strcmp(name, "aarch64-dotprod") == 0) return NULL;
#elif defined(GF_ARM_LEVELS)
    if (name == NULL) return has_dotprod() ? &gf_rows_dotprod : &gf_rows_baseline;
    if (strcmp(name, "aarch64-dotprod") == 0) return has_dotprod() ? &gf_rows_dotprod : NULL;
    if (strncmp(name, "x86-64-v", 8) == 0) return NULL;
#else
    if (name == NULL) return &gf_rows_baseline;
    if (strncmp(name, "x86-64-v", 8) == 0 || strcmp(name, "aarch64-dotprod") == 0) return NULL;
#endif
    if (strcmp(name, "baseline") == 0) return &gf_rows_baseline;
    *known = 0;
    return NULL;
}
