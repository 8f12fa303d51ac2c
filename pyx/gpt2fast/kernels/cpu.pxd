# What the other kernels need of the C layer: the row kernels of this CPU level, and the parallel loop.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "simd/rows.h":
    enum:
        GF_PANEL
        GF_BLOCK
        GF_ATTEND_ROWS
        GF_MAX_ROWS
        GF_GROUP
    ctypedef struct gf_epilogue:
        const float *bias
        int activation
        int accumulate
    ctypedef struct gf_group:
        float scale
        int32_t sum
    ctypedef struct gf_measures:
        double log_probability
        double entropy
        double variance
        int64_t rank
    ctypedef void (*gf_panel_quantised)(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes,
                                        const gf_group *scales, int64_t ldscales, int64_t rows, gf_epilogue epilogue,
                                        float *y, int64_t ldy) noexcept nogil
    ctypedef struct gf_rows:
        const char *name
        void (*layer_norm)(const float *x, const float *weight, const float *bias, float epsilon, int64_t n,
                           float *y) noexcept nogil
        void (*activate)(float *x, const float *bias, int activation, int64_t n) noexcept nogil
        void (*panel_float32)(const float *panel, int64_t k, const float *x, int64_t ldx, int64_t rows,
                              gf_epilogue epilogue, float *y, int64_t ldy) noexcept nogil
        void (*round_row)(const float *x, int64_t k, float *y) noexcept nogil
        void (*panel_bfloat16)(const uint16_t *panel, int64_t k, const float *x, int64_t ldx, int64_t rows,
                               gf_epilogue epilogue, float *y, int64_t ldy) noexcept nogil
        void (*quantise_row)(const float *x, int64_t k, int8_t *codes, gf_group *groups) noexcept nogil
        float (*quantise_weights)(const float *w, int bits, int8_t *codes) noexcept nogil
        gf_panel_quantised panel_int8
        gf_panel_quantised panel_int4
        void (*store_block)(int half, const float *key, const float *value, int64_t ld, int64_t count, int64_t at,
                            void *block, int64_t keys, int64_t values, int64_t head_dim,
                            int64_t ld_values) noexcept nogil
        void (*attend)(int half, const float *q, int64_t ldq, int64_t rows, int64_t position, const void *const *blocks,
                       int64_t keys, int64_t values, int64_t head_dim, int64_t ld_values, float scale, float *scores,
                       float *out, int64_t ldo) noexcept nogil
        void (*exp_float32)(const float *x, int64_t n, float *y) noexcept nogil
        void (*erf_float32)(const float *x, int64_t n, float *y) noexcept nogil
        void (*exp_float64)(const double *x, int64_t n, double *y) noexcept nogil
        void (*log_float64)(const double *x, int64_t n, double *y) noexcept nogil
        double (*sum_float64)(const double *x, int64_t n) noexcept nogil
        void (*measure)(const float *logits, int64_t n, int64_t target, gf_measures *out) noexcept nogil
        uint64_t (*frequencies)(const float *logits, int64_t n, uint32_t *frequencies) noexcept nogil

cdef extern from "runtime/pool.h":
    enum:
        GPT2FAST_MAX_THREADS
    ctypedef void (*gf_task)(void *context, int64_t begin, int64_t end, int thread) noexcept nogil

cdef const gf_rows *rows
cdef void parallel_for(gf_task task, void *context, int64_t count, int64_t grain, int num_threads) noexcept nogil
cdef int checked_threads(num_threads) except -1
cdef size_t checked_size(size) except? 0
cdef void *allocate(size_t size) except NULL
cdef void release(void *data, size_t size) noexcept
