# Weights into panels, and one output back.
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memcpy

# How a weight of k inputs and n outputs lies in memory.
cdef enum Layout:
    # Panels of GF_PANEL outputs, the last one filled up with zeros, the bias likewise.
    PANEL_FLOAT32   # [panels][k][GF_PANEL]
    PANEL_BFLOAT16  # [panels][(k + 1) / 2][GF_PANEL][2]
    PANEL_INT8      # [panels][groups] of codes and scales: see quantised.inc.c
    PANEL_INT4
    # As the checkpoint has it, for BLAS.
    BLAS_ROWS       # [k][n], the published Conv1D layout
    BLAS_COLUMNS    # [n][k], the token embedding as the output head

cdef struct Packing:
    Layout layout
    const float *source   # [k][n], or with by_output the outputs from `offset` on, [...][k]
    int64_t offset
    int64_t k
    int64_t n
    bint by_output
    char *panels

cdef int64_t panel_bytes(Layout layout, int64_t k) noexcept nogil
cdef void pack_panel(Packing *job, int64_t p) noexcept nogil
cdef int64_t foreign_code(Layout layout, const void *panels, int64_t size) noexcept nogil
cdef void unpack_column(Layout layout, const void *panels, int64_t k, int64_t column, float *out) noexcept nogil

cdef inline uint16_t to_bfloat16(float value) noexcept nogil:
    # To nearest, ties to even; 0 under 2^-56, infinity from 2^64 on: see bfloat16.inc.c.
    cdef uint32_t bits, sign, magnitude
    memcpy(&bits, &value, 4)
    sign = bits >> 16 & 0x8000
    if value != value:
        return <uint16_t> (sign | 0x7fc0)
    magnitude = ((bits & 0x7fffffff) + 0x7fff + (bits >> 16 & 1)) >> 16
    if magnitude < 0x2380:
        magnitude = 0
    elif magnitude >= 0x5f80:
        magnitude = 0x7f80
    return <uint16_t> (sign | magnitude)
