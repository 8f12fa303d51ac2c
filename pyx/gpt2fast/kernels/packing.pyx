"""The layouts of weight panels: float32, bfloat16, and groups of 8 or 4 bit codes with scales."""
# A panel holds GF_PANEL outputs; what lies beyond the last output is zero.  rows.h and quantised.inc.c say the rest.
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memcpy

from gpt2fast.kernels.cpu cimport GF_GROUP, GF_PANEL, rows


cdef int64_t panel_bytes(Layout layout, int64_t k) noexcept nogil:
    """The size of one panel of k inputs."""
    cdef int64_t groups = (k + GF_GROUP - 1) // GF_GROUP
    if layout == PANEL_FLOAT32:
        return k * GF_PANEL * 4
    if layout == PANEL_BFLOAT16:
        return (k + 1) // 2 * GF_PANEL * 4
    if layout == PANEL_INT8:
        return groups * (GF_GROUP * GF_PANEL + 4 * GF_PANEL)
    return groups * (GF_GROUP * GF_PANEL // 2 + 4 * GF_PANEL)


cdef void _pack_group(const float *values, int bits, int column, uint8_t *group) noexcept nogil:
    # The codes of one output of a group, and its scale behind all codes.
    cdef int8_t codes[GF_GROUP]
    cdef float *scales = <float *> (group + GF_GROUP * GF_PANEL * bits // 8)
    cdef int i
    cdef uint8_t *byte
    scales[column] = rows.quantise_weights(values, bits, codes)
    for i in range(GF_GROUP):
        if bits == 8:
            group[(i // 4 * GF_PANEL + column) * 4 + i % 4] = <uint8_t> (codes[i] + 128)
        else:
            byte = &group[(i // 8 * GF_PANEL + column) * 4 + i % 4]
            byte[0] |= <uint8_t> ((codes[i] + 8) << (4 if i % 8 >= 4 else 0))


cdef void pack_panel(Packing *job, int64_t p) noexcept nogil:
    """Fill panel p, which is zero, from the source."""
    cdef int64_t k = job.k, i, columns = min(job.n - p * GF_PANEL, GF_PANEL)
    cdef int64_t first = p * GF_PANEL - job.offset  # in the source
    cdef int64_t step = 1 if job.by_output else job.n  # from one input to the next
    cdef char *panel = job.panels + p * panel_bytes(job.layout, k)
    cdef const float *source
    cdef float *floats = <float *> panel
    cdef uint16_t *halves = <uint16_t *> panel
    cdef float group[GF_GROUP]
    cdef int64_t start, size
    cdef int c, bits
    if job.layout == PANEL_FLOAT32 and not job.by_output:
        for i in range(k):
            memcpy(floats + i * GF_PANEL, job.source + i * job.n + first, <size_t> columns * sizeof(float))
        return
    if job.layout == PANEL_FLOAT32:
        for i in range(k):
            for c in range(columns):
                floats[i * GF_PANEL + c] = job.source[(first + c) * k + i]
        return
    if job.layout == PANEL_BFLOAT16:
        for i in range(k):
            for c in range(columns):
                source = job.source + ((first + c) * k if job.by_output else first + c)
                halves[(i // 2 * GF_PANEL + c) * 2 + i % 2] = to_bfloat16(source[i * step])
        return
    bits = 8 if job.layout == PANEL_INT8 else 4
    size = panel_bytes(job.layout, GF_GROUP)
    start = 0
    while start < k:
        for c in range(GF_PANEL):
            source = job.source + ((first + c) * k if job.by_output else first + c)
            for i in range(GF_GROUP):
                group[i] = source[(start + i) * step] if c < columns and start + i < k else 0
            _pack_group(group, bits, c, <uint8_t *> panel)
        panel += size
        start += GF_GROUP


cdef int64_t foreign_code(Layout layout, const void *panels, int64_t size) noexcept nogil:
    """Which byte of the panels belongs to a code that packing never makes; -1 where there is none.

    Kernels rely on it: some negate a code of 8 bits, of which -128 has no negative, and products of bfloat16 are exact
    only within the limits of `to_bfloat16`.
    """
    cdef const uint8_t *codes = <const uint8_t *> panels
    cdef const uint16_t *halves = <const uint16_t *> panels
    cdef int64_t i, start = 0
    cdef const void *found
    cdef uint16_t magnitude
    if layout == PANEL_INT8:
        while start < size:
            found = memchr(codes + start, 0, GF_GROUP * GF_PANEL)
            if found != NULL:
                return <const uint8_t *> found - codes
            start += panel_bytes(PANEL_INT8, GF_GROUP)
    elif layout == PANEL_BFLOAT16:
        for i in range(size // 2):
            magnitude = halves[i] & 0x7fff
            if 0 < magnitude < 0x2380 or 0x5f7f < magnitude < 0x7f80:
                return 2 * i
    return -1


cdef void unpack_column(Layout layout, const void *panels, int64_t k, int64_t column, float *out) noexcept nogil:
    """The k weights of one output, as the kernels see them."""
    cdef const char *panel = (<const char *> panels) + column // GF_PANEL * panel_bytes(layout, k)
    cdef int64_t c = column % GF_PANEL, i, j, size
    cdef uint32_t bits
    cdef const uint8_t *group
    cdef const float *scales
    if layout == PANEL_FLOAT32:
        for i in range(k):
            out[i] = (<const float *> panel)[i * GF_PANEL + c]
        return
    if layout == PANEL_BFLOAT16:
        for i in range(k):
            bits = <uint32_t> (<const uint16_t *> panel)[(i // 2 * GF_PANEL + c) * 2 + i % 2] << 16
            memcpy(out + i, &bits, 4)
        return
    size = panel_bytes(layout, GF_GROUP)
    for i in range(k):
        group = <const uint8_t *> panel + i // GF_GROUP * size
        scales = <const float *> (group + size - 4 * GF_PANEL)
        j = i % GF_GROUP
        if layout == PANEL_INT8:
            out[i] = (<int> group[(j // 4 * GF_PANEL + c) * 4 + j % 4] - 128) * scales[c]
        else:
            bits = group[(j // 8 * GF_PANEL + c) * 4 + j % 4]
            out[i] = (<int> (bits >> 4 if j % 8 >= 4 else bits & 15) - 8) * scales[c]
