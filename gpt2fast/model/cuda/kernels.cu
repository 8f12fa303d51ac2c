// The kernels of GPT-2 between the matrix products, for NVIDIA GPUs.
//
// Compiled when a model is opened, once for each kind of weights and width of a head:
//   -DWEIGHTS=0 float32, 1 float16, 2 bfloat16   how matrices, the cache and what goes into a product are kept
//   -DHEAD_DIM=64                                the width of an attention head
// Sums, the residual stream and what comes out of a product are float32 in every kind.  No header is needed, so that
// NVRTC compiles this text alone; tests/support/emulation.h stands in for what the compiler knows, and runs it on a CPU.
//
// Launches are in operations.py, which also says what the arrays hold.  Shapes are beside the arguments: T tokens, E the
// width of the network, S texts (rows of the cache) in the pass.  Every array is contiguous.

#define LANES 32              // threads that run in step
#define EVERY 0xffffffffu     // all lanes of a warp
#define BLOCK 32              // positions in one block of the cache, one for each lane
#define QUERIES 4             // tokens of one text that read its keys and values together
#define WARPS 4               // warps that share the positions of one text
#define PARTS ((HEAD_DIM + LANES - 1) / LANES)
#define LOWEST -3.402823466e+38f

// Numbers as they are kept

#ifdef __CUDACC__
__device__ __forceinline__ float half_as_float(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ unsigned short float_as_half(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#if WEIGHTS == 0
typedef float real;
__device__ __forceinline__ float widen(real value) { return value; }
__device__ __forceinline__ real narrow(float value) { return value; }
#elif WEIGHTS == 1
typedef unsigned short real;
__device__ __forceinline__ float widen(real bits) { return half_as_float(bits); }
__device__ __forceinline__ real narrow(float value) { return float_as_half(value); }
#else
typedef unsigned short real;
__device__ __forceinline__ float widen(real bits) { return __uint_as_float((unsigned)bits << 16); }
__device__ __forceinline__ real narrow(float value)
{
    unsigned bits = __float_as_uint(value);
    if (value != value)
        return 0x7fc0;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to the nearest, of two the even one
}
#endif

// Sums and maxima over the lanes of a warp, and over a thread block; every thread gets them.

__device__ __forceinline__ float warp_sum(float value)
{
    for (int step = LANES / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(EVERY, value, step);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
    for (int step = LANES / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(EVERY, value, step));
    return value;
}

__device__ __forceinline__ float block_sum(float value)
{
    __shared__ float sums[LANES];
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    value = warp_sum(value);
    __syncthreads();  // the sums of an earlier call have been read
    if (lane == 0)
        sums[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? sums[lane] : 0.0f);
}

// x [T, E] = the embeddings of `ids` [T] plus those of `positions` [T].
// One thread block for each token.
extern "C" __global__ void embed(const real *wte, const float *wpe, const long long *ids, const long long *positions,
                                 int width, float *x)
{
    const real *token = wte + ids[blockIdx.x] * width;
    const float *position = wpe + positions[blockIdx.x] * width;
    x += (long long)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        x[i] = widen(token[i]) + position[i];
}

// LayerNorm of rows of x [T, E] to which `bias` [E] is added first, where there is one: the bias of the product that was
// added to x last.  `rows` names the rows; where it is null, all are meant, and x keeps the sum.  The result goes to
// `out` as the next product takes it, or to `exact` as float32; the other one is null.
// One thread block for each row of the result.
extern "C" __global__ void layer_norm(float *x, const long long *rows, const float *bias, const float *weight,
                                      const float *shift, float epsilon, int width, real *out, float *exact)
{
    long long row = blockIdx.x;
    x += (rows ? rows[row] : row) * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float value = bias ? x[i] + bias[i] : x[i];
        if (bias && !rows)
            x[i] = value;  // read again below by this thread only
        sum += value;
    }
    float mean = block_sum(sum) / width;
    sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float value = (bias && rows ? x[i] + bias[i] : x[i]) - mean;
        sum += value * value;
    }
    float factor = 1.0f / sqrtf(block_sum(sum) / width + epsilon);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float value = (bias && rows ? x[i] + bias[i] : x[i]) - mean;
        value = value * factor * weight[i] + shift[i];
        if (out)
            out[row * width + i] = narrow(value);
        else
            exact[row * width + i] = value;
    }
}

// out [T, N] = the activation function of x [T, N] plus `bias` [N].
// One thread for each value; the thread blocks of a row side by side in x, the rows in y.
extern "C" __global__ void activate(const float *x, const float *bias, int function, int width, real *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width)
        return;
    long long place = (long long)blockIdx.y * width + i;
    float value = x[place] + bias[i];
    if (function == 0)  // gelu_new
        value = 0.5f * value * (1.0f + tanhf(0.7978845608f * (value + 0.044715f * value * value * value)));
    else if (function == 1)  // gelu
        value = 0.5f * value * (1.0f + erff(0.7071067812f * value));
    else if (function == 2)  // relu
        value = value < 0.0f ? 0.0f : value;
    else if (function == 5)  // tanh
        value = tanhf(value);
    else  // silu and quick_gelu: the logistic function of value or of 1.702 value, written so that nothing overflows
        value = value * 0.5f * (1.0f + tanhf((function == 3 ? 0.5f : 0.851f) * value));
    out[place] = narrow(value);
}

// A block of the cache holds BLOCK positions of one text: for each layer and head keys [HEAD_DIM, BLOCK], so that the
// lanes of a warp read neighbouring positions, then values [BLOCK, HEAD_DIM].  `tables` [S, blocks] has the addresses.
__device__ __forceinline__ real *block_of(const long long *tables, int blocks, long long text, long long block,
                                          int layer, int heads, int head)
{
    real *data = (real *)tables[text * blocks + block];
    return data + ((long long)layer * heads + head) * (2 * HEAD_DIM * BLOCK);
}

// Keys and values of new tokens go into the cache: those parts of qkv [T, 3 E] plus `bias` [3 E].  Token t is number
// `positions`[t] of its text, whose blocks are in row `texts`[t] of the tables.
// One thread block for each token.
extern "C" __global__ void append(const float *qkv, const float *bias, const long long *positions,
                                  const long long *texts, const long long *tables, int blocks, int layer, int heads)
{
    long long token = blockIdx.x, position = positions[token];
    int width = heads * HEAD_DIM, place = position % BLOCK;
    qkv += token * 3 * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        int d = i % HEAD_DIM;
        real *keys = block_of(tables, blocks, texts[token], position / BLOCK, layer, heads, i / HEAD_DIM);
        keys[d * BLOCK + place] = narrow(qkv[width + i] + bias[width + i]);
        keys[HEAD_DIM * BLOCK + place * HEAD_DIM + d] = narrow(qkv[2 * width + i] + bias[2 * width + i]);
    }
}

// out [T, E] = causal attention of the queries in qkv [T, 3 E] plus `bias` [3 E], with keys and values of the cache.
// A tile is up to QUERIES tokens in a row of one text; `tiles` [number, 4] has the first token in the pass, how many
// there are, the first one's position in its text, and the text's row of the tables.
//
// One thread block of WARPS warps for each tile in x and head in y.  Warp w takes blocks w, w + WARPS, ... of the cache,
// and softmax is made as they come (Milakov and Gimelshein 2018, arXiv:1805.02867): each score counts relative to the
// highest so far, and sums are scaled where a higher one comes.  At the end the warps' sums are put together.
extern "C" __global__ void attend(const float *qkv, const float *bias, const long long *tiles, const long long *tables,
                                  int blocks, int layer, float scale, real *out)
{
    __shared__ __align__(16) float query[HEAD_DIM][QUERIES];
    __shared__ __align__(16) float weight[WARPS][BLOCK][QUERIES];
    __shared__ float tops[WARPS][QUERIES], totals[WARPS][QUERIES], sums[WARPS][QUERIES][HEAD_DIM];
    int head = blockIdx.y, heads = gridDim.y, width = heads * HEAD_DIM;
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    tiles += blockIdx.x * 4;
    long long first = tiles[0], position = tiles[2], text = tiles[3];
    int count = tiles[1];

    for (int i = threadIdx.x; i < QUERIES * HEAD_DIM; i += blockDim.x) {
        int q = i / HEAD_DIM, column = head * HEAD_DIM + i % HEAD_DIM;
        query[i % HEAD_DIM][q] = q < count ? (qkv[(first + q) * 3 * width + column] + bias[column]) * scale : 0.0f;
    }
    __syncthreads();

    // Of this warp and each query: the highest score, each lane's share of the sum of weights, and weighted values.
    float top[QUERIES], total[QUERIES], sum[QUERIES][PARTS];
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        top[q] = LOWEST;
        total[q] = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            sum[q][part] = 0.0f;
    }

    long long end = position + count;  // where the last query's text ends
    for (long long begin = (long long)warp * BLOCK; begin < end; begin += WARPS * BLOCK) {
        const real *keys = block_of(tables, blocks, text, begin / BLOCK, layer, heads, head);
        const real *values = keys + HEAD_DIM * BLOCK;

        float score[QUERIES] = {};
#pragma unroll 8
        for (int d = 0; d < HEAD_DIM; d++) {
            float key = widen(keys[d * BLOCK + lane]);
#pragma unroll
            for (int q = 0; q < QUERIES; q++)
                score[q] += query[d][q] * key;
        }
#pragma unroll
        for (int q = 0; q < QUERIES; q++) {
            bool visible = begin + lane <= position + q;  // what was read beyond is anything
            float now = fmaxf(top[q], warp_max(visible ? score[q] : LOWEST));
            float before = expf(top[q] - now);
            float share = visible ? expf(score[q] - now) : 0.0f;
            weight[warp][lane][q] = share;
            total[q] = total[q] * before + share;
            top[q] = now;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                sum[q][part] *= before;
        }
        __syncwarp();
        int there = end - begin < BLOCK ? end - begin : BLOCK;
        for (int j = 0; j < there; j++) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                int d = part * LANES + lane;
                float value = d < HEAD_DIM ? widen(values[j * HEAD_DIM + d]) : 0.0f;
#pragma unroll
                for (int q = 0; q < QUERIES; q++)
                    sum[q][part] += weight[warp][j][q] * value;
            }
        }
        __syncwarp();
    }

#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        float all = warp_sum(total[q]);
        if (lane == 0) {
            tops[warp][q] = top[q];
            totals[warp][q] = all;
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (part * LANES + lane < HEAD_DIM)
                sums[warp][q][part * LANES + lane] = sum[q][part];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * HEAD_DIM; i += blockDim.x) {
        int q = i / HEAD_DIM, d = i % HEAD_DIM;
        float highest = LOWEST, over = 0.0f, under = 0.0f;
        for (int w = 0; w < WARPS; w++)
            highest = fmaxf(highest, tops[w][q]);
        for (int w = 0; w < WARPS; w++) {
            float factor = expf(tops[w][q] - highest);  // 0 for a warp that saw nothing
            over += factor * sums[w][q][d];
            under += factor * totals[w][q];
        }
        out[(first + q) * width + head * HEAD_DIM + d] = narrow(over / under);
    }
}
