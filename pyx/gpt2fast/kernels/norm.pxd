# LayerNorm of many rows.
from libc.stdint cimport int64_t

cdef struct LayerNorm:
    const float *weight
    const float *bias
    float epsilon
    int64_t n

cdef void layer_norm(const LayerNorm *norm, const float *x, int64_t ldx, int64_t m, float *y, int64_t ldy,
                     int num_threads) noexcept nogil
