"""exp, log, erf and sums of arrays, and the measures of rows of logits: the same bits on every processor."""
# NumPy's functions follow its own choice of instructions, and the C library's differ from system to system.
#
# Performance notes: see elementwise.inc.c.
from libc.math cimport NAN
from libc.stdint cimport int64_t

from gpt2fast.kernels.cpu cimport checked_threads, gf_measures, parallel_for, rows

import numpy as np

cdef enum:
    # Values that one thread takes at once.
    GRAIN = 16384

ctypedef void (*map32_t)(const float *x, int64_t n, float *y) noexcept nogil
ctypedef void (*map64_t)(const double *x, int64_t n, double *y) noexcept nogil


cdef struct Map:
    map32_t map32
    map64_t map64
    const char *x
    char *y


cdef void _map(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Map *job = <Map *> context
    if job.map32 != NULL:
        job.map32(<const float *> job.x + begin, end - begin, <float *> job.y + begin)
    else:
        job.map64(<const double *> job.x + begin, end - begin, <double *> job.y + begin)


cdef object _mapped(str name, map32_t map32, map64_t map64, x, out):
    """A function of the values of an array, and of nothing else."""
    cdef Map job
    cdef const float[::1] x32
    cdef const double[::1] x64
    cdef float[::1] y32
    cdef double[::1] y64
    cdef int64_t n
    x = np.asarray(x)
    if not (x.dtype == np.float32 and map32 != NULL) and not (x.dtype == np.float64 and map64 != NULL):
        raise TypeError(f"{name} of an array of {x.dtype}; expected {'float32' if map64 == NULL else 'float64'}"
                        f"{' or float32' if map64 != NULL and map32 != NULL else ''}")
    values = np.ascontiguousarray(x).reshape(-1)  # a scalar's shape would become (1,)
    if out is None:
        out = np.empty(x.shape, x.dtype)
    elif out.shape != x.shape or out.dtype != x.dtype or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.dtype} {out.shape}; expected C-contiguous {x.dtype} {x.shape}")
    n = values.size
    if n == 0:
        return out
    job.map32, job.map64 = NULL, NULL
    if x.dtype == np.float32:
        x32, y32 = values, out.reshape(-1)
        job.map32, job.x, job.y = map32, <const char *> &x32[0], <char *> &y32[0]
    else:
        x64, y64 = values, out.reshape(-1)
        job.map64, job.x, job.y = map64, <const char *> &x64[0], <char *> &y64[0]
    with nogil:
        parallel_for(_map, &job, n, GRAIN, 1)
    return out


def exp(x, out=None):
    """e to the power of each value of x, an array of float64 or float32, as a new array or in `out`, which may be x.

    float64: within 1 unit in the last place of the exact value, subnormal ones too.  float32: the kernels' own, within
    1.01 units in the last place; 0 below -87.3 and infinity above 88.37.

    >>> import numpy as np
    >>> exp(np.array([0.0, 1.0, -np.inf]))
    array([1.        , 2.71828183, 0.        ])
    """
    return _mapped("exp", rows.exp_float32, rows.exp_float64, x, out)


def log(x, out=None):
    """The natural logarithm of each value of x, an array of float64, as a new array or in `out`, which may be x.

    Within 1 unit in the last place of the exact value; -infinity of 0, NaN of negative values, without a warning.

    >>> import numpy as np
    >>> log(np.array([1.0, 2.0, 0.0]))
    array([0.        , 0.69314718,       -inf])
    """
    return _mapped("log", NULL, rows.log_float64, x, out)


def erf(x, out=None):
    """The error function of each value of x, an array of float32, as a new array or in `out`, which may be x.

    Within 1.2 units in the last place of the exact value.

    >>> import numpy as np
    >>> erf(np.array([0.0, 0.5, 9.0], np.float32))
    array([0.       , 0.5204999, 1.       ], dtype=float32)
    """
    return _mapped("erf", rows.erf_float32, NULL, x, out)


cdef struct Sum:
    const double *x
    int64_t n
    double total


cdef void _add(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Sum *job = <Sum *> context
    job.total = rows.sum_float64(job.x, job.n)


def total(const double[::1] x):
    """The sum of the float64 values x (n,), as a float: in 16 lanes, of which lane j adds x[j], x[j + 16] … in order.

    >>> import numpy as np
    >>> total(np.arange(100.0))
    4950.0
    """
    cdef Sum job
    if x.shape[0] == 0:
        return 0.0
    job.x, job.n = &x[0], x.shape[0]
    with nogil:
        parallel_for(_add, &job, 1, 1, 1)
    return job.total


cdef struct Measuring:
    const float *logits
    int64_t ld
    int64_t n
    const int64_t *targets
    double *out


cdef void _measure(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Measuring *job = <Measuring *> context
    cdef gf_measures measures
    cdef double *out
    cdef int64_t r
    for r in range(begin, end):
        rows.measure(job.logits + r * job.ld, job.n, job.targets[r], &measures)
        out = job.out + MEASURES * r
        out[0] = measures.log_probability
        # Of a row that is not finite the rank says nothing, either.
        out[1] = <double> measures.rank if measures.log_probability == measures.log_probability else NAN
        out[2] = measures.entropy
        out[3] = measures.variance


cdef void measure_rows(const float *logits, int64_t ld, int64_t n, const int64_t *targets, int64_t count, double *out,
                       int num_threads) noexcept nogil:
    cdef Measuring job
    job.logits, job.ld, job.n, job.targets, job.out = logits, ld, n, targets, out
    parallel_for(_measure, &job, count, 1, num_threads)


def measures(const float[:, :] logits, const int64_t[::1] targets, *, int num_threads=1):
    """What each row of logits says about its target: float64 (T, 4), the target's log-probability (a natural
    logarithm), its rank (how many logits are higher, plus one), the entropy of the row's softmax in bits, and the
    variance of the log-probability (a natural logarithm) of what is drawn from that softmax.

    `logits` are (T, n), each row contiguous, and `targets` (T,) of 0 to n - 1.  All four are NaN where a logit is NaN
    or infinity, or all are minus infinity.  Exponentials are of single precision, sums of double.

    >>> import numpy as np
    >>> measures(np.zeros((1, 4), np.float32), np.array([2]))
    array([[-1.38629436,  1.        ,  2.        ,  0.        ]])
    """
    cdef int64_t T = logits.shape[0], n = logits.shape[1], r
    cdef int threads = checked_threads(num_threads)
    cdef double[:, ::1] out = np.empty((T, MEASURES))
    if targets.shape[0] != T:
        raise ValueError(f"there are {targets.shape[0]} targets for {T} rows of logits")
    if T == 0:
        return np.asarray(out)
    for r in range(T):
        if not 0 <= targets[r] < n:
            raise IndexError(f"target {targets[r]} of row {r} is not among {n} logits")
    if n > 1 and logits.strides[1] != sizeof(float) or logits.strides[0] % <int64_t> sizeof(float):
        raise ValueError("a row of logits is not contiguous")
    cdef int64_t ld = logits.strides[0] // <int64_t> sizeof(float)
    with nogil:
        measure_rows(&logits[0, 0], ld, n, &targets[0], T, &out[0, 0], threads)
    return np.asarray(out)
