/* Which CPU level this process uses.  By features, never by model names: those leave AMD chips at the baseline. */
#include "rows.h"

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

/* x86-64-v4, with VNNI where the processor has it: that is not part of the level, but of nearly every chip with it. */
static const gf_rows *v4_table(void) {
    static gf_rows table;
    table = gf_rows_v4;
    if (__builtin_cpu_supports("avx512vnni")) {
        table.panel_int8 = gf_panel_int8_vnni;
        table.panel_int4 = gf_panel_int4_vnni;
    }
    return &table;
}
#endif

const gf_rows *gf_rows_for(const char *name, int *known) {
    *known = 1;
#ifdef GF_X86_LEVELS
    __builtin_cpu_init();
    if (name == NULL) return has_v4() ? v4_table() : has_v3() ? &gf_rows_v3 : &gf_rows_baseline;
    if (strcmp(name, "x86-64-v4") == 0) return has_v4() ? v4_table() : NULL;
    if (strcmp(name, "x86-64-v3") == 0) return has_v3() ? &gf_rows_v3 : NULL;
#else
    if (name == NULL) return &gf_rows_baseline;
    if (strcmp(name, "x86-64-v4") == 0 || strcmp(name, "x86-64-v3") == 0) return NULL;
#endif
    if (strcmp(name, "baseline") == 0) return &gf_rows_baseline;
    *known = 0;
    return NULL;
}
