"""The forward pass of GPT-2: embeddings, blocks, final norm and head, over rows of a KVCache."""
# The network in one place, and in one stretch without the GIL: a pass is some hundred kernel calls, and taking the GIL
# again after each could wait for another Python thread's time slice every time.
#
# Rows of activations are padded by one cache line: without it the rows of width 3072 all start at the same cache set.
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from gpt2fast.kernels.attention cimport Heads, attention, scores_stride
from gpt2fast.kernels.cpu cimport GF_MAX_ROWS, GF_PANEL, allocate, checked_size, checked_threads, parallel_for, release
from gpt2fast.kernels.elementwise cimport MEASURES, measure_rows
from gpt2fast.kernels.kv_cache cimport KVCache
from gpt2fast.kernels.linear cimport Matrix, Weight, linear, read_column, scratch_size
from gpt2fast.kernels.norm cimport LayerNorm, layer_norm
from gpt2fast.kernels.plan cimport Plan

import numpy as np

from gpt2fast.errors import InputError, OutOfMemoryError
from gpt2fast.kernels.linear import ACTIVATIONS


cdef enum:
    # Rows of logits that are measured at a time, whole tiles of them.
    MEASURED_ROWS = 8 * GF_MAX_ROWS


cdef struct Block:
    LayerNorm ln_1
    Matrix c_attn
    Matrix c_proj
    LayerNorm ln_2
    Matrix c_fc
    Matrix mlp_c_proj
    float scale


cdef struct Look:
    # What a pass is to tell of the residual stream on its way; it lives as long as the call.
    const int64_t *outputs       # the tokens that results are for
    int64_t n_outputs
    const int64_t *stages        # where the stream is looked at, in growing order
    int64_t n_stages
    float *seen                  # [n_stages, n_outputs, n_embd] what was there


cdef class Workspace:
    """The activations of one pass over at most `rows` tokens, and each thread's scratch for scores."""
    cdef int64_t rows, ld_embd, ld_qkv, ld_inner, ld_scores
    cdef int num_threads
    cdef float *x         # [rows, n_embd] the residual stream
    cdef float *h         # [rows, n_embd] what a norm or the heads put out
    cdef float *qkv       # [rows, 3 n_embd]
    cdef float *inner     # [rows, n_inner]
    cdef float *scores    # [num_threads, ld_scores]
    cdef void *scratch    # what `linear` needs
    cdef size_t size

    def __init__(self, int64_t rows, int64_t n_embd, int64_t n_inner, int64_t capacity, int num_threads):
        self.rows, self.num_threads = rows, num_threads
        self.ld_embd, self.ld_qkv, self.ld_inner = _padded(n_embd), _padded(3 * n_embd), _padded(n_inner)
        self.ld_scores = scores_stride(capacity)
        cdef size_t size = checked_size(
            (<object> rows * (2 * self.ld_embd + self.ld_qkv + self.ld_inner) + <object> num_threads * self.ld_scores)
            * sizeof(float) + scratch_size(rows, max(n_embd, n_inner))
        )
        self.x = <float *> allocate(size)
        self.size = size
        self.h = self.x + rows * self.ld_embd
        self.qkv = self.h + rows * self.ld_embd
        self.inner = self.qkv + rows * self.ld_qkv
        self.scores = self.inner + rows * self.ld_inner
        self.scratch = self.scores + num_threads * self.ld_scores

    def __dealloc__(self):
        if self.x != NULL:
            release(self.x, self.size)


cdef int64_t _padded(int64_t n) noexcept:
    return (n + GF_PANEL - 1) // GF_PANEL * GF_PANEL + 16


cdef struct Embedding:
    const Matrix *wte
    const float *wpe
    const int32_t *ids
    const int64_t *positions
    int64_t n_embd
    float *x
    int64_t ldx


cdef void _embed(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Embedding *job = <Embedding *> context
    cdef int64_t r, i
    cdef float *x
    cdef const float *position
    for r in range(begin, end):
        x = job.x + r * job.ldx
        position = job.wpe + job.positions[r] * job.n_embd
        read_column(job.wte, job.ids[r], x)
        for i in range(job.n_embd):
            x[i] += position[i]


cdef class Transformer:
    """GPT-2 (Radford et al. 2019) as the kernels run it.

    `wte`: Weight whose columns are the token embeddings; `wpe`: float32 [n_ctx, n_embd]; `blocks`: for each layer a
    mapping of `ln_1`, `ln_2` to (weight, bias) and of `c_attn`, `c_proj`, `c_fc`, `mlp_c_proj` to Weight, with `scale`,
    the factor of the attention scores; `ln_f`: (weight, bias); `head`: Weight of the output head, often `wte` itself.
    """
    cdef readonly int64_t n_layer, n_head, n_embd, n_inner, n_ctx, vocab_size
    cdef Block *blocks
    cdef Matrix wte, head
    cdef LayerNorm ln_f
    cdef const float[:, ::1] wpe
    cdef int activation
    cdef object keep
    cdef Workspace workspace

    def __init__(self, *, int64_t n_head, str activation, float epsilon, Weight wte, const float[:, ::1] wpe, blocks,
                 ln_f, Weight head):
        cdef int64_t i
        self.n_layer, self.n_head = len(blocks), n_head
        self.n_ctx, self.n_embd, self.wpe = wpe.shape[0], wpe.shape[1], wpe
        self.n_inner = blocks[0]["c_fc"].shape[1]
        self.vocab_size = head.matrix.n
        self.activation = ACTIVATIONS[activation]
        self.wte, self.head = wte.matrix, head.matrix
        self.keep = (wte, wpe, blocks, ln_f, head)
        self.blocks = <Block *> malloc(self.n_layer * sizeof(Block))
        if self.blocks == NULL:
            raise OutOfMemoryError("no memory for the table of layers")
        for i, block in enumerate(blocks):
            self.blocks[i].ln_1 = _norm(block["ln_1"], epsilon)
            self.blocks[i].c_attn = _matrix(block["c_attn"])
            self.blocks[i].c_proj = _matrix(block["c_proj"])
            self.blocks[i].ln_2 = _norm(block["ln_2"], epsilon)
            self.blocks[i].c_fc = _matrix(block["c_fc"])
            self.blocks[i].mlp_c_proj = _matrix(block["mlp_c_proj"])
            self.blocks[i].scale = block["scale"]
        self.ln_f = _norm(ln_f, epsilon)

    def __dealloc__(self):
        free(self.blocks)

    def forward(self, KVCache cache not None, const int64_t[::1] cache_rows, const int64_t[::1] counts,
                const int32_t[::1] ids, const int64_t[::1] outputs, *, num_threads=1):
        """The final hidden states after some of the new tokens, whose keys and values are now in the cache.

        Row `cache_rows[s]` of the cache grows by `counts[s]` tokens; `ids` holds all of them, one row after another.
        Returns float32 [len(outputs), n_embd], what the final LayerNorm puts out for the tokens at the indices
        `outputs` of `ids`; `logits` goes on from there.  The caller has checked the ids and that no cache row appears
        twice.  Raises InputError where a row would outgrow the cache, before anything is changed.
        """
        cdef float[:, ::1] out = np.empty((outputs.shape[0], self.n_embd), np.float32)
        self._pass(cache, cache_rows, counts, ids, outputs, None, self.n_layer, out, checked_threads(num_threads))
        return np.asarray(out)

    def residual(self, KVCache cache not None, const int64_t[::1] cache_rows, const int64_t[::1] counts,
                 const int32_t[::1] ids, const int64_t[::1] outputs, const int64_t[::1] stages not None, *,
                 num_threads=1):
        """The residual stream at `stages`, at least one, in growing order: float32 [len(stages), len(outputs), n_embd].

        At stage 0 it is the embeddings, at 2 i + 1 and 2 i + 2 what attention and MLP of layer i have made of it, at
        2 n_layer + 1 the final hidden states.  Layers beyond the last stage are not run, so the cache
        gets no keys and values for them.  The other arguments and errors are those of `forward`.
        """
        cdef int64_t n = stages.shape[0], w = outputs.shape[0]
        cdef int64_t n_layer = min((stages[n - 1] + 1) // 2, self.n_layer)
        cdef float[:, ::1] out = np.empty((n * w, self.n_embd), np.float32)
        self._pass(cache, cache_rows, counts, ids, outputs, stages, n_layer, out, checked_threads(num_threads))
        return np.asarray(out).reshape(n, w, self.n_embd)

    def logits(self, const float[:, ::1] states, *, num_threads=1):
        """The logits float32 [w, vocab_size] that the head makes of final hidden states [w, n_embd]."""
        cdef int threads = checked_threads(num_threads)
        cdef int64_t i, w = states.shape[0]
        cdef float[:, ::1] out = np.empty((w, self.vocab_size), np.float32)
        if w == 0:
            return np.asarray(out)
        if states.shape[1] != self.n_embd:
            raise InputError(f"the hidden states are {states.shape[1]} wide; expected {self.n_embd}")
        cdef Workspace space = self._take_workspace(w, 1, threads)
        with nogil:
            for i in range(w):
                memcpy(space.h + i * space.ld_embd, &states[i, 0], self.n_embd * sizeof(float))
            linear(&self.head, space.h, space.ld_embd, w, 0, 0, &out[0, 0], self.vocab_size, space.scratch, threads)
        self.workspace = space
        return np.asarray(out)

    def measures(self, const float[:, ::1] states, const int64_t[::1] targets, int64_t n_vocab, *, num_threads=1):
        """What the first `n_vocab` logits after each of the final hidden states [w, n_embd] say about its target, an id
        under `n_vocab`: float64 [w, 4], bit for bit what `gpt2fast.kernels.elementwise.measures` gives for `logits`.

        Never are there logits of more than MEASURED_ROWS rows, whose memory is taken anew for as long as the call.
        """
        cdef int threads = checked_threads(num_threads)
        cdef int64_t i, first = 0, count, w = states.shape[0], block = min(w, MEASURED_ROWS)
        cdef int64_t ld = _padded(self.vocab_size)
        cdef double[:, ::1] out = np.empty((w, MEASURES))
        if targets.shape[0] != w or states.shape[1] != self.n_embd or not 1 <= n_vocab <= self.vocab_size:
            raise ValueError(f"{targets.shape[0]} targets, states [{w}, {states.shape[1]}], n_vocab {n_vocab}")
        for i in range(w):
            if not 0 <= targets[i] < n_vocab:
                raise IndexError(f"target {targets[i]} of row {i} is not among {n_vocab} logits")
        if w == 0:
            return np.asarray(out)
        cdef Workspace space = self._take_workspace(block, 1, threads)
        cdef size_t size = checked_size(<object> block * ld * sizeof(float))
        cdef float *logits = <float *> allocate(size)
        with nogil:
            while first < w:
                count = min(block, w - first)
                for i in range(count):
                    memcpy(space.h + i * space.ld_embd, &states[first + i, 0], self.n_embd * sizeof(float))
                linear(&self.head, space.h, space.ld_embd, count, 0, 0, logits, ld, space.scratch, threads)
                measure_rows(logits, ld, n_vocab, &targets[first], count, &out[first, 0], threads)
                first += count
        release(logits, size)
        self.workspace = space
        return np.asarray(out)

    def plan(self, KVCache cache not None, const int64_t[::1] cache_rows, const int64_t[::1] counts):
        """The `Plan` of a pass in which row `cache_rows[s]` grows by `counts[s]` tokens, for `layers`.

        Raises InputError where the cache was made for another model, or a row would outgrow it.
        """
        self._check_cache(cache)
        return Plan(cache, cache_rows, counts, self.n_ctx)

    def layers(self, Plan plan not None, const float[:, ::1] x, int64_t first, int64_t last, *, num_threads=1):
        """What the layers `first` to `last` - 1 make of the residual stream x [plan.tokens, n_embd]: a new array.

        Their keys and values are in the cache afterwards, which does not count the tokens yet: see `Plan.grow`.
        """
        cdef int threads = checked_threads(num_threads)
        cdef int64_t i, m = plan.tokens
        cdef float[:, ::1] out = np.empty((m, self.n_embd), np.float32)
        self._check_cache(plan.cache)
        if not 0 <= first <= last <= self.n_layer or x.shape[0] != m or x.shape[1] != self.n_embd:
            raise ValueError(f"layers {first} to {last} of {self.n_layer}, x [{x.shape[0]}, {x.shape[1]}]")
        if m == 0:
            return np.asarray(out)
        cdef Workspace space = self._take_workspace(m, plan.cache.capacity, threads)
        cdef Look look
        look.n_stages = 0
        with nogil:
            for i in range(m):
                memcpy(space.x + i * space.ld_embd, &x[i, 0], self.n_embd * sizeof(float))
            self._run_blocks(space, &look, plan, first, last, threads)
            for i in range(m):
                memcpy(&out[i, 0], space.x + i * space.ld_embd, self.n_embd * sizeof(float))
        self.workspace = space
        return np.asarray(out)

    cdef int _pass(self, KVCache cache, const int64_t[::1] cache_rows, const int64_t[::1] counts,
                   const int32_t[::1] ids, const int64_t[::1] outputs, const int64_t[::1] stages, int64_t n_layer,
                   float[:, ::1] out, int num_threads) except -1:
        """Run the first `n_layer` layers, and the final LayerNorm where that is the last stage or there are none."""
        cdef int64_t m = ids.shape[0], i, w = outputs.shape[0]
        cdef int64_t n_stages = 0 if stages is None else stages.shape[0]
        cdef bint last = n_stages == 0 or stages[n_stages - 1] > 2 * self.n_layer
        if m == 0:
            return 0
        self._check_cache(cache)
        cdef Plan plan = Plan(cache, cache_rows, counts, self.n_ctx)
        cdef Workspace space = self._take_workspace(m, cache.capacity, num_threads)
        cdef Look look
        look.outputs, look.n_outputs = &outputs[0] if w > 0 else NULL, w
        look.stages, look.n_stages = &stages[0] if n_stages > 0 else NULL, n_stages if w > 0 else 0
        look.seen = &out[0, 0] if w > 0 else NULL
        with nogil:
            self._embed_tokens(space, &ids[0], &plan.positions[0], m, num_threads)
            self._look(&look, space, 0)
            self._run_blocks(space, &look, plan, 0, n_layer, num_threads)
            if w > 0 and last:
                for i in range(w):
                    layer_norm(&self.ln_f, space.x + outputs[i] * space.ld_embd, space.ld_embd, 1,
                               &out[out.shape[0] - w + i, 0], self.n_embd, 1)
        plan.grow()
        self.workspace = space
        return 0

    cdef int _check_cache(self, KVCache cache) except -1:
        if cache.n_layer != self.n_layer or cache.n_head != self.n_head or \
                cache.head_dim * cache.n_head != self.n_embd:
            raise InputError("the cache was made for a model of another shape")
        return 0

    cdef void _embed_tokens(self, Workspace space, const int32_t *ids, const int64_t *positions, int64_t m,
                            int num_threads) noexcept nogil:
        cdef Embedding job
        job.wte, job.wpe, job.ids, job.positions = &self.wte, &self.wpe[0, 0], ids, positions
        job.n_embd, job.x, job.ldx = self.n_embd, space.x, space.ld_embd
        parallel_for(_embed, &job, m, 8, num_threads)

    cdef void _run_blocks(self, Workspace space, Look *look, Plan plan, int64_t first, int64_t last,
                          int num_threads) noexcept nogil:
        cdef float *x = space.x
        cdef float *h = space.h
        cdef int64_t ld = space.ld_embd, ld_qkv = space.ld_qkv, ld_inner = space.ld_inner, m = plan.tokens, i
        cdef Block *block
        cdef Heads heads
        for i in range(first, last):
            block = &self.blocks[i]
            heads = plan.heads(i, block.scale)
            layer_norm(&block.ln_1, x, ld, m, h, ld, num_threads)
            linear(&block.c_attn, h, ld, m, 0, 0, space.qkv, ld_qkv, space.scratch, num_threads)
            attention(&heads, plan.segments, plan.n_segments, plan.tiles, plan.n_tiles, space.qkv, ld_qkv, h, ld,
                      space.scores, space.ld_scores, num_threads)
            linear(&block.c_proj, h, ld, m, 0, 1, x, ld, space.scratch, num_threads)
            self._look(look, space, 2 * i + 1)
            layer_norm(&block.ln_2, x, ld, m, h, ld, num_threads)
            linear(&block.c_fc, h, ld, m, self.activation, 0, space.inner, ld_inner, space.scratch, num_threads)
            linear(&block.mlp_c_proj, space.inner, ld_inner, m, 0, 1, x, ld, space.scratch, num_threads)
            self._look(look, space, 2 * i + 2)

    cdef void _look(self, Look *look, Workspace space, int64_t stage) noexcept nogil:
        """Put the residual stream beside what was seen of it before, where this is a stage that is asked for."""
        cdef int64_t i
        if look.n_stages > 0 and look.stages[0] == stage:
            for i in range(look.n_outputs):
                memcpy(look.seen, space.x + look.outputs[i] * space.ld_embd, self.n_embd * sizeof(float))
                look.seen += self.n_embd
            look.stages += 1
            look.n_stages -= 1

    cdef Workspace _take_workspace(self, int64_t m, int64_t capacity, int num_threads):
        # Taken away while in use: a pass in another thread makes its own.
        cdef Workspace space = self.workspace
        self.workspace = None
        if space is None or space.rows < m or space.num_threads < num_threads or \
                space.ld_scores < scores_stride(capacity):
            space = Workspace(m, self.n_embd, self.n_inner, capacity, num_threads)
        return space


cdef LayerNorm _norm(parameters, float epsilon) except *:
    cdef LayerNorm norm
    cdef const float[::1] weight = parameters[0], bias = parameters[1]
    norm.weight, norm.bias, norm.epsilon, norm.n = &weight[0], &bias[0], epsilon, weight.shape[0]
    return norm


cdef Matrix _matrix(Weight weight) except *:
    return weight.matrix
