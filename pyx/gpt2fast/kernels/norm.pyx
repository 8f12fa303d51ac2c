"""LayerNorm (Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450) of rows of activations."""
from libc.stdint cimport int64_t

from gpt2fast.kernels.cpu cimport checked_threads, parallel_for, rows

import numpy as np

cdef enum:
    # Rows that one thread takes at once: a row is well under a microsecond.
    GRAIN = 8


cdef struct Job:
    const LayerNorm *norm
    const float *x
    int64_t ldx
    float *y
    int64_t ldy


cdef void _rows(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef const LayerNorm *norm = job.norm
    cdef int64_t r
    for r in range(begin, end):
        rows.layer_norm(job.x + r * job.ldx, norm.weight, norm.bias, norm.epsilon, norm.n, job.y + r * job.ldy)


cdef void layer_norm(const LayerNorm *norm, const float *x, int64_t ldx, int64_t m, float *y, int64_t ldy,
                     int num_threads) noexcept nogil:
    """y [m, n] = (x - mean) / sqrt(variance + epsilon) * weight + bias, for each row of x [m, n]."""
    cdef Job job
    job.norm, job.x, job.ldx, job.y, job.ldy = norm, x, ldx, y, ldy
    parallel_for(_rows, &job, m, GRAIN, num_threads)


def layer_norm_rows(const float[:, ::1] x, const float[::1] weight, const float[::1] bias, float epsilon, *,
                    num_threads=1):
    """LayerNorm of each row of x [m, n] as a new float32 array: the kernel alone, for tests and benchmarks."""
    cdef LayerNorm norm
    cdef int threads = checked_threads(num_threads)
    cdef float[:, ::1] y = np.empty((x.shape[0], x.shape[1]), np.float32)
    if not x.shape[1] == weight.shape[0] == bias.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, weight {weight.shape[0]} and bias {bias.shape[0]} values")
    if x.shape[0] and x.shape[1]:
        norm.weight, norm.bias, norm.epsilon, norm.n = &weight[0], &bias[0], epsilon, x.shape[1]
        with nogil:
            layer_norm(&norm, &x[0, 0], x.shape[1], x.shape[0], &y[0, 0], x.shape[1], threads)
    return np.asarray(y)
