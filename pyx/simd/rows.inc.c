/* Everything that is compiled once per CPU level.  The includer sets GF_LANES (floats in a vector register), GF_TABLE
 * and GF_NAME, under the compiler's target for that level. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "simd/kernels/vector.inc.c"

#include "simd/kernels/functions.inc.c"
#include "simd/kernels/norm.inc.c"
#include "simd/kernels/panel.inc.c"
#include "simd/kernels/dot.inc.c"
#include "simd/kernels/quantised.inc.c"
#include "simd/kernels/attend.inc.c"
#include "simd/kernels/elementwise.inc.c"
#include "simd/kernels/frequencies.inc.c"

const gf_rows GF_TABLE = {
    .name = GF_NAME,
    .layer_norm = layer_norm,
    .activate = activate,
    .panel_float32 = panel_float32,
    .round_row = round_row,
    .panel_bfloat16 = panel_bfloat16,
    .quantise_row = quantise_row,
    .quantise_weights = quantise_weights,
    .panel_int8 = panel_int8,
    .panel_int4 = panel_int4,
    .store_block = store_block,
    .attend = attend,
    .exp_float32 = exp_float32,
    .erf_float32 = erf_float32,
    .exp_float64 = exp_float64,
    .log_float64 = log_float64,
    .sum_float64 = sum_float64,
    .measure = measure,
    .frequencies = frequencies,
};
