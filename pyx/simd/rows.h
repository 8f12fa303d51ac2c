/* The row kernels: plain arithmetic on rows of float32, compiled once per CPU level and picked at import.
 *
 * Everything below is single-threaded; the loops over rows, panels and heads, and the threads, are the callers'. */
#ifndef GPT2FAST_ROWS_H
#define GPT2FAST_ROWS_H

#include <stdint.h>

/* Columns of a weight panel: two AVX-512 registers, four AVX2, eight NEON or SSE. */
#define GF_PANEL 32
/* Positions of a block of keys in the cache. */
#define GF_BLOCK 16
/* At most so many rows of a head attend at once. */
#define GF_ATTEND_ROWS 8
/* At most so many rows go through a panel at once. */
#define GF_MAX_ROWS 12

/* Successive inputs that share a scale in quantised weights and activations. */
#define GF_GROUP 64

enum gf_activation { GF_LINEAR = 0, GF_GELU_NEW, GF_GELU, GF_RELU, GF_SILU, GF_QUICK_GELU, GF_TANH };

/* What happens to a product before it is stored: y = activation(product + bias), or y += product + bias. */
typedef struct {
    const float *bias; /* GF_PANEL values for each panel, or NULL */
    int activation;    /* enum gf_activation */
    int accumulate;    /* y += ..., the residual connection; then activation is GF_LINEAR */
} gf_epilogue;

/* What quantised activations carry for each group. */
typedef struct {
    float scale;
    int32_t sum; /* of the codes */
} gf_group;

/* What a row of logits says about one of them.  NaN where a logit is NaN or infinite, or all are minus infinity. */
typedef struct {
    double log_probability; /* natural logarithm of its softmax */
    double entropy;         /* of the softmax, in bits */
    double variance;        /* of the natural logarithm of the softmax, under the softmax */
    int64_t rank;           /* how many are higher, plus one */
} gf_measures;

typedef void (*gf_panel_quantised)(const uint8_t *panel, int64_t groups, const int8_t *codes, int64_t ldcodes,
                                   const gf_group *scales, int64_t ldscales, int64_t rows, gf_epilogue epilogue, float *y,
                                   int64_t ldy);

typedef struct {
    const char *name;

    /* y = (x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias, over n values. */
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float epsilon, int64_t n, float *y);

    /* x = activation(x + bias) over n values; bias may be NULL. */
    void (*activate)(float *x, const float *bias, int activation, int64_t n);

    /* One panel [k][GF_PANEL] times `rows` rows of x, into GF_PANEL columns of y; 1 <= rows <= GF_MAX_ROWS. */
    void (*panel_float32)(const float *panel, int64_t k, const float *x, int64_t ldx, int64_t rows, gf_epilogue epilogue,
                          float *y, int64_t ldy);

    /* The k values of a row rounded to bfloat16, and a zero where k is odd: what panel_bfloat16 takes. */
    void (*round_row)(const float *x, int64_t k, float *y);

    /* The same with bfloat16 weights, [(k + 1) / 2][GF_PANEL][2], and rows that are rounded. */
    void (*panel_bfloat16)(const uint16_t *panel, int64_t k, const float *x, int64_t ldx, int64_t rows,
                           gf_epilogue epilogue, float *y, int64_t ldy);

    /* The k values of a row as codes of 8 bits, whole groups of them, and a gf_group for each group. */
    void (*quantise_row)(const float *x, int64_t k, int8_t *codes, gf_group *groups);

    /* The codes of GF_GROUP weights, from -127 or -7 up; returns their scale. */
    float (*quantise_weights)(const float *w, int bits, int8_t *codes);

    /* The same with quantised weights and activations, any number of rows; see quantised.inc.c for the layout. */
    gf_panel_quantised panel_int8, panel_int4;

    /* Keys and values, [count][ld] each, of the positions at..at+count-1 of one head and block; where they lie in the
       block, and as what, is what `attend` reads. */
    void (*store_block)(int half, const float *key, const float *value, int64_t ld, int64_t count, int64_t at,
                        void *block, int64_t keys, int64_t values, int64_t head_dim, int64_t ld_values);

    /* Causal attention of `rows` successive positions of one head, the first at `position`, over a cache in blocks of
       GF_BLOCK positions: in each block lie, from number `keys` on, [head_dim][GF_BLOCK] keys, and from number `values`
       on [GF_BLOCK][ld_values] values, ld_values being head_dim rounded up to 16.  The numbers are float32, with `half`
       bfloat16.  scores is scratch: GF_ATTEND_ROWS rows of whole blocks. */
    void (*attend)(int half, const float *q, int64_t ldq, int64_t rows, int64_t position, const void *const *blocks,
                   int64_t keys, int64_t values, int64_t head_dim, int64_t ld_values, float scale, float *scores,
                   float *out, int64_t ldo);

    /* Functions of n values; y may be x. */
    void (*exp_float32)(const float *x, int64_t n, float *y);
    void (*erf_float32)(const float *x, int64_t n, float *y);
    void (*exp_float64)(const double *x, int64_t n, double *y);
    void (*log_float64)(const double *x, int64_t n, double *y);
    double (*sum_float64)(const double *x, int64_t n);

    /* What n logits say about the one with number `target`. */
    void (*measure)(const float *logits, int64_t n, int64_t target, gf_measures *out);

    /* Frequencies of n tokens, each at least 1, in proportion to e to their logits; returns their sum, which is under
       2^32, or 0 where the logits are not finite. */
    uint64_t (*frequencies)(const float *logits, int64_t n, uint32_t *frequencies);
} gf_rows;

extern const gf_rows gf_rows_baseline;
#if defined(__x86_64__) && defined(__GNUC__)
#define GF_X86_LEVELS 1
extern const gf_rows gf_rows_v3, gf_rows_v4, gf_rows_v4_vnni;
#endif
/* Clang before 16 declares the intrinsics only where all of a file is compiled for such a processor. */
#if defined(__aarch64__) && defined(__ARM_NEON) && \
    (!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD))
#define GF_ARM_LEVELS 1
extern const gf_rows gf_rows_dotprod;
#endif

/* The level's table, or NULL where the name is unknown (*known = 0) or this processor lacks it (*known = 1).
   name NULL: the best level of this processor. */
const gf_rows *gf_rows_for(const char *name, int *known);

#endif
