"""Products of activations with weights: y = activation(x w + b), or y += x w + b."""
# Performance notes (30 November 2026, two cores of a Zen 4 with AVX-512):
# - Weights are repacked once into panels of 32 columns.  One row then reads memory in one stream per thread, and twelve
#   rows make 24 accumulators.  124M, one thread, where the memory gives 27 GB/s: 52 tokens/s (95 % of that) against 34
#   with sgemv in place; 8 rows 303 against 71; prefill of 128 tokens 533 against 410.
# - Panels are taken from a queue, a few at a time: see pool.c.
# - A panel meets all rows before the next one is touched: weights come from memory once, however many rows there are.
# - The leading dimension of activations is the caller's; multiples of 4096 bytes make twelve rows share one cache set.
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from gpt2fast.kernels.cpu cimport (
    GF_GROUP, GF_MAX_ROWS, GF_PANEL, allocate, checked_size, checked_threads, gf_epilogue, gf_group, parallel_for,
    release, rows,
)
from gpt2fast.kernels.packing cimport (
    BLAS_COLUMNS, BLAS_ROWS, PANEL_BFLOAT16, PANEL_FLOAT32, PANEL_INT4, PANEL_INT8, Layout, Packing, foreign_code,
    pack_panel, panel_bytes, unpack_column,
)

import numpy as np

from gpt2fast.errors import InputError, OutOfMemoryError

ACTIVATIONS = {"linear": 0, "gelu_new": 1, "gelu": 2, "relu": 3, "silu": 4, "quick_gelu": 5, "tanh": 6}

cdef dict PANEL_LAYOUTS = {
    "float32": PANEL_FLOAT32, "bfloat16": PANEL_BFLOAT16, "int8": PANEL_INT8, "int4": PANEL_INT4,
}

cdef enum:
    # Below so many multiplications the second thread costs more than it brings.
    SMALL = 65536
    # Outputs that `panels_of` reads at once: some megabytes, and whole panels.
    PART = 2048

# Inputs or outputs of a weight are fewer, so that no number below wraps around.
_LIMIT = 2**40

blas_product = NULL


def packed_size(k, n, str dtype):
    """The bytes that the panels of a weight of k inputs and n outputs take as that dtype."""
    return _panels_size(PANEL_LAYOUTS[dtype], k, n)


cdef object _panels_size(Layout layout, k, n):
    # In Python's integers, which never wrap around: k and n may be numbers of a file.
    if not (0 <= k < _LIMIT and 0 <= n < _LIMIT):
        raise InputError(f"a weight of {k} inputs and {n} outputs is too large")
    cdef object size = panel_bytes(layout, k)
    return (n + GF_PANEL - 1) // GF_PANEL * size


cdef struct Product:
    const Matrix *w
    int64_t panel_bytes
    const float *x
    int64_t ldx
    int64_t m
    gf_epilogue epilogue
    float *y
    int64_t ldy
    # Quantised activations: [m][groups * GF_GROUP] codes, [m][groups].
    int64_t groups
    int8_t *codes
    gf_group *scales
    # Activations rounded to bfloat16, [m][ld_rounded].
    float *rounded
    int64_t ld_rounded


cdef inline void _one_panel(Product *job, const char *panel, int64_t first, int64_t count, gf_epilogue epilogue,
                            float *y, int64_t ldy) noexcept nogil:
    # Rows first..first+count-1 of x times one panel, into y.
    cdef const Matrix *w = job.w
    cdef const float *x = job.x + first * job.ldx
    cdef const int8_t *codes
    cdef const gf_group *scales
    if w.layout == PANEL_FLOAT32:
        rows.panel_float32(<const float *> panel, w.k, x, job.ldx, count, epilogue, y, ldy)
    elif w.layout == PANEL_BFLOAT16:
        rows.panel_bfloat16(<const uint16_t *> panel, w.k, job.rounded + first * job.ld_rounded, job.ld_rounded, count,
                            epilogue, y, ldy)
    else:
        codes = job.codes + first * job.groups * GF_GROUP
        scales = job.scales + first * job.groups
        if w.layout == PANEL_INT8:
            rows.panel_int8(<const uint8_t *> panel, job.groups, codes, job.groups * GF_GROUP, scales, job.groups,
                            count, epilogue, y, ldy)
        else:
            rows.panel_int4(<const uint8_t *> panel, job.groups, codes, job.groups * GF_GROUP, scales, job.groups,
                            count, epilogue, y, ldy)


cdef void _last_panel(Product *job, const char *panel, gf_epilogue epilogue, float *y, int64_t columns) noexcept nogil:
    # A panel that is only partly in y goes through a tile of its own.
    cdef float tile[GF_MAX_ROWS * GF_PANEL]
    cdef int64_t first = 0, r, count
    cdef size_t size = <size_t> columns * sizeof(float)
    while first < job.m:
        count = min(job.m - first, GF_MAX_ROWS)
        for r in range(count):
            memcpy(tile + r * GF_PANEL, y + (first + r) * job.ldy, size)
        _one_panel(job, panel, first, count, epilogue, tile, GF_PANEL)
        for r in range(count):
            memcpy(y + (first + r) * job.ldy, tile + r * GF_PANEL, size)
        first += count


cdef void _panels(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Product *job = <Product *> context
    cdef const Matrix *w = job.w
    cdef gf_epilogue epilogue = job.epilogue
    cdef const char *panel
    cdef int64_t p, columns
    for p in range(begin, end):
        panel = (<const char *> w.data) + p * job.panel_bytes
        epilogue.bias = NULL if w.bias == NULL else w.bias + p * GF_PANEL
        columns = w.n - p * GF_PANEL
        if columns >= GF_PANEL:
            _one_panel(job, panel, 0, job.m, epilogue, job.y + p * GF_PANEL, job.ldy)
        else:
            _last_panel(job, panel, epilogue, job.y + p * GF_PANEL, columns)


cdef void _quantise(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Product *job = <Product *> context
    cdef int64_t r
    for r in range(begin, end):
        rows.quantise_row(job.x + r * job.ldx, job.w.k, job.codes + r * job.groups * GF_GROUP,
                          job.scales + r * job.groups)


cdef void _round(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Product *job = <Product *> context
    cdef int64_t r
    for r in range(begin, end):
        rows.round_row(job.x + r * job.ldx, job.w.k, job.rounded + r * job.ld_rounded)


cdef inline int64_t _rounded_row(int64_t k) noexcept nogil:
    # Whole panels and a cache line: see above.
    return (k + GF_PANEL - 1) // GF_PANEL * GF_PANEL + 16


cdef void _blas_columns(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Product *job = <Product *> context
    cdef const Matrix *w = job.w
    cdef int64_t r, first = begin * GF_PANEL, last = min(end * GF_PANEL, w.n)
    blas_product(w, job.x, job.ldx, job.m, job.epilogue.accumulate, first, last, job.y, job.ldy)
    if w.bias != NULL or job.epilogue.activation != 0:
        for r in range(job.m):
            rows.activate(job.y + r * job.ldy + first, NULL if w.bias == NULL else w.bias + first,
                          job.epilogue.activation, last - first)


cdef size_t scratch_size(int64_t m, int64_t k) noexcept nogil:
    """Bytes that `linear` needs for activations [m, k] that are quantised or rounded."""
    cdef int64_t groups = (k + GF_GROUP - 1) // GF_GROUP
    return <size_t> m * max(groups * (GF_GROUP + sizeof(gf_group)), _rounded_row(k) * sizeof(float))


cdef void linear(const Matrix *w, const float *x, int64_t ldx, int64_t m, int activation, int accumulate, float *y,
                 int64_t ldy, void *scratch, int num_threads) noexcept nogil:
    """y [m, n] = activation(x [m, k] w + b), or with `accumulate` y += x w + b, on the thread pool."""
    cdef Product job
    cdef int64_t panels = (w.n + GF_PANEL - 1) // GF_PANEL
    job.w, job.x, job.ldx, job.m, job.y, job.ldy = w, x, ldx, m, y, ldy
    job.epilogue.bias = NULL
    job.epilogue.activation = activation
    job.epilogue.accumulate = accumulate
    if m * w.k * w.n < SMALL:
        num_threads = 1
    if w.layout == BLAS_ROWS or w.layout == BLAS_COLUMNS:
        # One BLAS call a thread: it packs x anew in every call.
        parallel_for(_blas_columns, &job, panels, (panels + num_threads - 1) // num_threads, num_threads)
        return
    job.panel_bytes = panel_bytes(w.layout, w.k)
    if w.layout == PANEL_INT8 or w.layout == PANEL_INT4:
        job.groups = (w.k + GF_GROUP - 1) // GF_GROUP
        job.scales = <gf_group *> scratch
        job.codes = <int8_t *> (job.scales + m * job.groups)
        parallel_for(_quantise, &job, m, 8, num_threads)
    elif w.layout == PANEL_BFLOAT16:
        job.rounded, job.ld_rounded = <float *> scratch, _rounded_row(w.k)
        parallel_for(_round, &job, m, 8, num_threads)
    # Eight pieces a thread: small enough to even out a busy core, long enough to stream.
    parallel_for(_panels, &job, panels, max(panels // (8 * num_threads), 1), num_threads)


cdef void read_column(const Matrix *w, int64_t column, float *out) noexcept nogil:
    """The k weights of one output: the embedding of a token, where the head is the token embedding."""
    cdef const float *data = <const float *> w.data
    cdef int64_t i
    if w.layout == BLAS_COLUMNS:
        memcpy(out, data + column * w.k, <size_t> w.k * sizeof(float))
    elif w.layout == BLAS_ROWS:
        for i in range(w.k):
            out[i] = data[i * w.n + column]
    else:
        unpack_column(w.layout, w.data, w.k, column, out)


cdef void _pack(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Packing *job = <Packing *> context
    cdef int64_t p
    for p in range(begin, end):
        pack_panel(job, job.offset // GF_PANEL + p)


cdef class Weight:
    """A weight matrix of k inputs and n outputs with its bias, in the layout that the kernels multiply with.

    `values` is C-contiguous float32, [k, n], or [n, k] with `by_output`; `bias` is [n] or None.  `Weight.panels` copies
    both into panels; `Weight.blas` and `Weight.table` point into them and keep them alive.
    """

    def __init__(self):
        raise TypeError("use Weight.panels, Weight.blas or Weight.table")

    def __dealloc__(self):
        if self.size:
            release(<void *> self.matrix.data, self.size)

    @staticmethod
    def panels(const float[:, ::1] values, bias=None, *, str dtype="float32", bint by_output=False, num_threads=1):
        """The weight repacked into panels of 32 outputs, as "float32", "bfloat16", "int8" or "int4".

        bfloat16 rounds to nearest even; int8 and int4 have a scale for each output and group of 64 inputs.
        """
        cdef Weight self = Weight.__new__(Weight)
        cdef int64_t k = values.shape[1 if by_output else 0], n = values.shape[0 if by_output else 1]
        cdef int threads = checked_threads(num_threads)
        self._allocate(PANEL_LAYOUTS[dtype], k, n)
        self._take_bias(bias)
        self._fill(values, 0, by_output, threads)
        return self

    @staticmethod
    def packed(const uint8_t[::1] data, bias=None, *, k, n, str dtype):
        """The weight whose panels' bytes are `data`, as `panels_data` gives them for that shape and dtype.

        Raises InputError where a number in them is none that packing makes.
        """
        cdef Weight self = Weight.__new__(Weight)
        cdef int64_t foreign
        if data.shape[0] != packed_size(k, n, dtype):
            raise ValueError(f"data has {data.shape[0]} bytes; [{k}, {n}] as {dtype} has {packed_size(k, n, dtype)}")
        self._allocate(PANEL_LAYOUTS[dtype], k, n)
        self._take_bias(bias)
        with nogil:
            memcpy(<void *> self.matrix.data, &data[0], self.size)
            foreign = foreign_code(self.matrix.layout, self.matrix.data, self.size)
        if foreign >= 0:
            raise InputError(f"byte {foreign} of the packed weights is of no {dtype} number that packing makes")
        return self

    @staticmethod
    def panels_of(read, int64_t n, int64_t k, *, str dtype="float32", num_threads=1):
        """The weight of n outputs that `read(first, last)` gives as float32 [last - first, k], a part at a time.

        So a table of embeddings is packed without a second copy of it.
        """
        cdef Weight self = Weight.__new__(Weight)
        cdef int64_t first
        cdef int threads = checked_threads(num_threads)
        self._allocate(PANEL_LAYOUTS[dtype], k, n)
        for first in range(0, n, PART):
            self._fill(read(first, min(first + PART, n)), first, True, threads)
        return self

    @staticmethod
    def table(const float[:, ::1] values):
        """A table of n rows of k values to read columns from (an embedding), never to multiply with."""
        cdef Weight self = Weight.__new__(Weight)
        self._describe(BLAS_COLUMNS, values.shape[1], values.shape[0])
        self.matrix.data = &values[0, 0]
        self.keep = values
        return self

    @staticmethod
    def blas(const float[:, ::1] values, const float[::1] bias=None, *, bint by_output=False):
        """The weight as it is, multiplied by SciPy's BLAS."""
        from gpt2fast.kernels import blas  # imports SciPy, and fills in blas_product
        cdef Weight self = Weight.__new__(Weight)
        if by_output:
            self._describe(BLAS_COLUMNS, values.shape[1], values.shape[0])
        else:
            self._describe(BLAS_ROWS, values.shape[0], values.shape[1])
        self.matrix.data = &values[0, 0]
        self.keep = (values, bias, blas)
        if bias is not None:
            if bias.shape[0] != self.matrix.n:
                raise ValueError(f"bias has {bias.shape[0]} values, the weight {self.matrix.n} outputs")
            self.matrix.bias = &bias[0]
        return self

    cdef int _describe(self, Layout layout, int64_t k, int64_t n) except -1:
        if k < 1 or n < 1:
            raise ValueError(f"the weight is empty: {k} inputs, {n} outputs")
        self.matrix.layout, self.matrix.k, self.matrix.n, self.matrix.bias = layout, k, n, NULL
        return 0

    cdef int _allocate(self, Layout layout, int64_t k, int64_t n) except -1:
        self._describe(layout, k, n)
        cdef size_t size = checked_size(_panels_size(layout, k, n))
        self.matrix.data = allocate(size)
        self.size = size
        return 0

    cdef int _take_bias(self, bias) except -1:
        """Keep a copy of the bias that is as long as the panels."""
        cdef float[::1] padded
        if bias is None:
            return 0
        if len(bias) != self.matrix.n:
            raise ValueError(f"bias has {len(bias)} values, the weight {self.matrix.n} outputs")
        padded = np.zeros((self.matrix.n + GF_PANEL - 1) // GF_PANEL * GF_PANEL, np.float32)
        np.asarray(padded)[:self.matrix.n] = bias
        self.keep = padded
        self.matrix.bias = &padded[0]
        return 0

    cdef int _fill(self, const float[:, ::1] values, int64_t first, bint by_output, int num_threads) except -1:
        """Pack `values`, with `by_output` those of the outputs from `first` on, which is a multiple of GF_PANEL."""
        cdef Packing job
        cdef int64_t n = values.shape[0 if by_output else 1]
        if values.shape[1 if by_output else 0] != self.matrix.k or first + n > self.matrix.n:
            raise ValueError(f"values [{values.shape[0]}, {values.shape[1]}] do not fit the weight")
        job.layout, job.source, job.k, job.n = self.matrix.layout, &values[0, 0], self.matrix.k, self.matrix.n
        job.offset, job.by_output, job.panels = first, by_output, <char *> self.matrix.data
        if not by_output and n != self.matrix.n:
            raise ValueError(f"values have {n} outputs, the weight {self.matrix.n}")
        with nogil:
            parallel_for(_pack, &job, (n + GF_PANEL - 1) // GF_PANEL, 1, num_threads)
        return 0

    @property
    def shape(self):
        """(inputs, outputs)."""
        return self.matrix.k, self.matrix.n

    @property
    def nbytes(self):
        """Bytes of memory that the panels occupy; 0 where the weight points into another's memory."""
        return self.size

    def panels_data(self):
        """The bytes of the panels, uint8 [nbytes], as a new array: what `packed` takes.  They are the same on every
        processor of little-endian byte order; weights.py counts their versions."""
        if self.size == 0:
            raise ValueError("the weight is not in panels")
        cdef uint8_t[::1] out = np.empty(self.size, np.uint8)
        memcpy(&out[0], self.matrix.data, self.size)
        return np.asarray(out)

    def outputs(self, int64_t first, int64_t last):
        """The float32 weights [last - first, k] of the outputs `first` to `last`, a new array, whatever the layout."""
        if not 0 <= first <= last <= self.matrix.n:
            raise IndexError(f"outputs {first} to {last} of {self.matrix.n}")
        cdef float[:, ::1] out = np.empty((last - first, self.matrix.k), np.float32)
        cdef int64_t i
        with nogil:
            for i in range(last - first):
                read_column(&self.matrix, first + i, &out[i, 0])
        return np.asarray(out)

    def values(self):
        """The float32 weights [k, n] as a new array, whatever the layout."""
        return np.ascontiguousarray(self.outputs(0, self.matrix.n).T)

    def multiply(self, const float[:, ::1] x, *, str activation="linear", add_to=None, num_threads=1):
        """activation(x w + b) as float32 [m, n], or `add_to` [m, n] plus x w + b."""
        cdef float[:, ::1] y
        cdef void *scratch
        if x.shape[1] != self.matrix.k:
            raise ValueError(f"x has {x.shape[1]} columns, the weight {self.matrix.k} inputs")
        y = np.zeros((x.shape[0], self.matrix.n), np.float32) if add_to is None else np.array(add_to, np.float32)
        if y.shape[0] != x.shape[0] or y.shape[1] != self.matrix.n:
            raise ValueError(f"add_to is {y.shape[0]} by {y.shape[1]}, the product {x.shape[0]} by {self.matrix.n}")
        cdef int function = ACTIVATIONS[activation], accumulate = add_to is not None
        cdef int threads = checked_threads(num_threads)
        if accumulate and function != 0:
            raise ValueError(f"activation {activation!r} cannot be combined with add_to")
        if x.shape[0]:
            scratch = malloc(scratch_size(x.shape[0], x.shape[1]))
            if scratch == NULL:
                raise OutOfMemoryError("no memory for quantised activations")
            with nogil:
                linear(&self.matrix, &x[0, 0], x.shape[1], x.shape[0], function, accumulate, &y[0, 0],
                       self.matrix.n, scratch, threads)
            free(scratch)
        return np.asarray(y)
