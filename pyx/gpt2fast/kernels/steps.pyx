"""The steps of a layer one at a time, as a pass with hooks takes them; `transformer` takes them in one stretch."""
# Only what no other module offers by itself: products are `Weight.multiply`, norms `layer_norm_rows`.
from libc.math cimport fmaf
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from gpt2fast.kernels.attention cimport Heads, Segment, attention, scores_stride
from gpt2fast.kernels.cpu cimport GF_BLOCK, checked_threads, parallel_for, rows
from gpt2fast.kernels.plan cimport Plan

import numpy as np

from gpt2fast.errors import OutOfMemoryError
from gpt2fast.kernels.linear import ACTIVATIONS


def attend(Plan plan not None, const float[:, ::1] qkv, *, int64_t layer, float scale, num_threads=1):
    """Causal attention of the plan's tokens in one layer: float32 [T, n_embd] for their queries, keys and values
    [T, 3 n_embd], of which keys and values join the cache first."""
    cdef int threads = checked_threads(num_threads)
    cdef int64_t width = plan.cache.n_head * plan.cache.head_dim
    cdef int64_t stride = scores_stride(plan.cache.capacity)
    cdef float[:, ::1] out = np.empty((plan.tokens, width), np.float32)
    if qkv.shape[0] != plan.tokens or qkv.shape[1] != 3 * width:
        raise ValueError(f"qkv is {qkv.shape[0]} by {qkv.shape[1]}; expected {plan.tokens} by {3 * width}")
    if plan.tokens == 0:
        return np.asarray(out)
    cdef Heads heads = plan.heads(layer, scale)
    cdef float *scratch = <float *> malloc(threads * stride * sizeof(float))
    if scratch == NULL:
        raise OutOfMemoryError("no memory for attention scores")
    with nogil:
        attention(&heads, plan.segments, plan.n_segments, plan.tiles, plan.n_tiles, &qkv[0, 0], 3 * width, &out[0, 0],
                  width, scratch, stride, threads)
    free(scratch)
    return np.asarray(out)


def keys_and_values(Plan plan not None, int64_t segment, int64_t layer):
    """The keys [n_head, head_dim, length] and the values [n_head, length, head_dim], both float32, that one layer has
    of the whole text of a segment, its new tokens, which have attended, included."""
    cdef Heads heads = plan.heads(layer, 1)
    if not 0 <= segment < plan.n_segments or not 0 <= layer < plan.cache.n_layer:
        raise IndexError(f"segment {segment} of {plan.n_segments}, layer {layer} of {plan.cache.n_layer}")
    cdef const Segment *text = &plan.segments[segment]
    cdef int64_t length = text.position + text.count, h, t, d, at
    cdef float[:, :, ::1] keys = np.empty((heads.n_head, heads.head_dim, length), np.float32)
    cdef float[:, :, ::1] values = np.empty((heads.n_head, length, heads.head_dim), np.float32)
    with nogil:
        for h in range(heads.n_head):
            at = heads.layer_offset + h * heads.head_size
            for d in range(heads.head_dim):
                for t in range(length):
                    keys[h, d, t] = _number(&heads, text.blocks[t // GF_BLOCK], at + d * GF_BLOCK + t % GF_BLOCK)
            at += GF_BLOCK * heads.head_dim
            for t in range(length):
                for d in range(heads.head_dim):
                    values[h, t, d] = _number(&heads, text.blocks[t // GF_BLOCK],
                                              at + t % GF_BLOCK * heads.ld_values + d)
    return np.asarray(keys), np.asarray(values)


cdef inline float _number(const Heads *heads, const void *block, int64_t index) noexcept nogil:
    cdef uint32_t bits
    cdef float value
    if not heads.half:
        return (<const float *> block)[index]
    bits = <uint32_t> (<const uint16_t *> block)[index] << 16
    memcpy(&value, &bits, 4)
    return value


cdef struct Activation:
    float *x
    int64_t width
    int function


cdef void _activate(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Activation *job = <Activation *> context
    rows.activate(job.x + begin * job.width, NULL, job.function, (end - begin) * job.width)


def activate(x, str function, *, num_threads=1):
    """The activation function of each value of x [T, n], a new float32 array: what a product with it would store."""
    cdef Activation job
    cdef int threads = checked_threads(num_threads)
    cdef float[:, ::1] out = np.array(x, np.float32, order="C")
    job.function, job.width = ACTIVATIONS[function], out.shape[1]
    if out.shape[0] and out.shape[1]:
        job.x = &out[0, 0]
        with nogil:
            parallel_for(_activate, &job, out.shape[0], 8, threads)
    return np.asarray(out)


def scale_and_shift(const float[:, ::1] x, const float[::1] weight, const float[::1] bias):
    """x * weight + bias for each row of x [T, n], rounded once as LayerNorm rounds it: float32 [T, n]."""
    cdef float[:, ::1] out = np.empty((x.shape[0], x.shape[1]), np.float32)
    cdef int64_t r, i
    if not x.shape[1] == weight.shape[0] == bias.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, weight {weight.shape[0]} and bias {bias.shape[0]} values")
    with nogil:
        for r in range(x.shape[0]):
            for i in range(x.shape[1]):
                out[r, i] = fmaf(x[r, i], weight[i], bias[i])
    return np.asarray(out)
