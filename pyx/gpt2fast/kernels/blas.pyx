"""Row-major products through the BLAS that SciPy brings.  Importing this module imports SciPy."""
# Each call runs on one thread (see gpt2fast/model/blas.py): the columns are split over our own pool, and two thread
# pools in one forward pass wait for each other.  One row goes to sgemv: sgemm packs the whole weight to use it once.
from libc.stdint cimport int64_t

from scipy.linalg.cython_blas cimport sgemm, sgemv

from gpt2fast.kernels cimport linear
from gpt2fast.kernels.linear cimport Matrix
from gpt2fast.kernels.packing cimport BLAS_ROWS


cdef void _product(const Matrix *w, const float *x, int64_t ldx, int64_t m, int accumulate, int64_t begin, int64_t end,
                   float *y, int64_t ldy) noexcept nogil:
    """y[:, begin:end] = x w[:, begin:end], or += with `accumulate`."""
    # BLAS thinks in columns: our row-major y [m, n] is its column-major [n, m].
    cdef int n_ = <int> (end - begin), m_ = <int> m, k_ = <int> w.k, ldx_ = <int> ldx, ldy_ = <int> ldy, one = 1
    cdef bint by_rows = w.layout == BLAS_ROWS
    cdef int ldw = <int> (w.n if by_rows else w.k)
    cdef float *data = (<float *> w.data) + (begin if by_rows else begin * w.k)
    cdef float alpha = 1.0, beta = accumulate
    if m == 1:
        if by_rows:
            sgemv(b"N", &n_, &k_, &alpha, data, &ldw, <float *> x, &one, &beta, y + begin, &one)
        else:
            sgemv(b"T", &k_, &n_, &alpha, data, &ldw, <float *> x, &one, &beta, y + begin, &one)
    else:
        sgemm(b"N" if by_rows else b"T", b"N", &n_, &m_, &k_, &alpha, data, &ldw, <float *> x, &ldx_, &beta,
              y + begin, &ldy_)


linear.blas_product = _product
