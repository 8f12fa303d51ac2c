# A weight as the kernels read it, and its product with rows of activations.
from libc.stdint cimport int64_t

from gpt2fast.kernels.packing cimport Layout

cdef struct Matrix:
    Layout layout
    int64_t k
    int64_t n
    const void *data
    const float *bias  # NULL: none

# The columns begin..end-1 of y = x w, or of y += x w: what the BLAS module supplies.
ctypedef void (*product_t)(const Matrix *w, const float *x, int64_t ldx, int64_t m, int accumulate, int64_t begin,
                           int64_t end, float *y, int64_t ldy) noexcept nogil
cdef product_t blas_product

# Bytes that `linear` needs beside x and y: room for quantised activations.
cdef size_t scratch_size(int64_t m, int64_t k) noexcept nogil
cdef void linear(const Matrix *w, const float *x, int64_t ldx, int64_t m, int activation, int accumulate, float *y,
                 int64_t ldy, void *scratch, int num_threads) noexcept nogil
cdef void read_column(const Matrix *w, int64_t column, float *out) noexcept nogil

cdef class Weight:
    cdef Matrix matrix
    cdef size_t size      # of memory that this object owns, or 0
    cdef object keep      # arrays that `matrix` points into

    cdef int _describe(self, Layout layout, int64_t k, int64_t n) except -1
    cdef int _allocate(self, Layout layout, int64_t k, int64_t n) except -1
    cdef int _take_bias(self, bias) except -1
    cdef int _fill(self, const float[:, ::1] values, int64_t first, bint by_output, int num_threads) except -1
