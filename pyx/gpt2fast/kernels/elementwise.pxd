# What the forward pass needs of the measures of logits.
from libc.stdint cimport int64_t

cdef enum:
    # What is measured of a row: log-probability, rank, entropy, variance.
    MEASURES = 4

# The MEASURES of `count` rows of n logits about their targets, which are under n, into out [count, MEASURES].
cdef void measure_rows(const float *logits, int64_t ld, int64_t n, const int64_t *targets, int64_t count, double *out,
                       int num_threads) noexcept nogil
