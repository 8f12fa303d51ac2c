// Tokens are chosen from logits, as gpt2fast/generation/sampling.py does it on a host, number for number.
//
// Compiled when a model is opened.  Weights and the race are in double precision; no header is needed, so that NVRTC
// compiles this text alone, and tests/support/emulation.h runs it on a CPU.
//
// A thread block of COLUMNS threads chooses from one row of logits.  First each thread looks at every COLUMNS-th logit:
// the highest of these columns tell the highest of all, and how high a logit must be to be among the k best.

#define LANES 32      // threads that run in step
#define COLUMNS 1024  // threads; each has the column of every COLUMNS-th logit
#define BEST 768      // logits that top-k and top-p can keep
#define ROOM 2048     // logits among which the best are
#define EVERY 0xffffffffu
#define INFINITE __uint_as_float(0x7f800000)
#define NO_NUMBER 0xffffffffffffffffull

struct Draw {
    long long row, count;  // which row of logits, and how many of them are tokens
    unsigned long long key;
    double temperature;
    long long top_k;
    double top_p, min_p;
};

// The sum or the least of the numbers of all threads, which each of them gets.

__device__ __forceinline__ double over_warp(double value, bool least)
{
    for (int step = LANES / 2; step > 0; step /= 2) {
        double other = __shfl_xor_sync(EVERY, value, step);
        value = least ? fmin(value, other) : value + other;
    }
    return value;
}

__device__ __forceinline__ double over_block(double value, bool least)
{
    __shared__ double parts[COLUMNS / LANES];
    value = over_warp(value, least);
    __syncthreads();  // those of an earlier call have been read
    if (threadIdx.x % LANES == 0)
        parts[threadIdx.x / LANES] = value;
    __syncthreads();
    return over_warp(parts[threadIdx.x % LANES], least);
}

// A logit and its id as one number that is greater for a higher logit and, of equal ones, for a lower id.
__device__ __forceinline__ unsigned long long ranked(float value, int id)
{
    unsigned bits = __float_as_uint(value + 0.0f);  // of -0 those of 0, which is as high
    bits = bits >> 31 ? ~bits : bits | 0x80000000;
    return value < INFINITE ? (unsigned long long)bits << 32 | ~(unsigned)id : NO_NUMBER;
}

__device__ __forceinline__ int id_of(unsigned long long rank)
{
    return ~(unsigned)rank;
}

// Puts `size` keys, a power of two, into descending order: a bitonic sort (Batcher 1968).
__device__ void sort(unsigned long long *keys, int size)
{
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < size / 2; pair += COLUMNS) {
                int i = pair / step * 2 * step + pair % step;
                unsigned long long first = keys[i], second = keys[i + step];
                if ((first < second) == !(i & run)) {
                    keys[i] = second;
                    keys[i + step] = first;
                }
            }
        }
    __syncthreads();
}

// 53 random bits for a token: SplitMix64 (Steele et al. 2014).
__device__ __forceinline__ unsigned long long random_bits(unsigned long long key, int id)
{
    unsigned long long bits = key + ((unsigned long long)id + 1) * 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return (bits ^ bits >> 31) >> 11;
}

__device__ __forceinline__ double weight_of(float logit, float top, double temperature)
{
    return exp(((double)logit - (double)top) / temperature);
}

// When a token arrives in the race: an exponentially distributed number over its weight.
__device__ __forceinline__ double arrival(unsigned long long bits, double weight)
{
    return -log(((double)bits + 0.5) * 0x1p-53) / weight;
}

// The id that comes with the least time over all threads, of equal times the lowest; every thread gets it.
__device__ int first_of(double time, int id)
{
    __shared__ int first;
    double least = over_block(time, true);
    if (threadIdx.x == 0)
        first = 0x7fffffff;
    __syncthreads();
    if (time == least)
        atomicMin(&first, id);
    __syncthreads();
    return first;
}

// The race of a whole row.  Double arithmetic is slow on most GPUs, so single precision looks first for the few tokens
// that can win: 1 - u <= -log u <= (1 - u) / u, and MARGIN is more than what it may be wrong by.  Where a bound is
// NaN, which takes an absurd temperature, no token is left out.
#define MARGIN 1.001f
__device__ int race_of_all(const float *logits, float top, const Draw &draw)
{
    int count = draw.count;
    float factor = 1 / draw.temperature, low = draw.min_p * MARGIN;
    double bound = INFINITE;
    for (int i = threadIdx.x; i < count; i += COLUMNS) {
        float weight = expf((logits[i] - top) * factor);
        if (weight < low)
            continue;
        unsigned long long bits = random_bits(draw.key, i);
        float u = ((float)bits + 0.5f) * 0x1p-53f, rest = ((float)((1ull << 53) - 1 - bits) + 0.5f) * 0x1p-53f;
        bound = fmin(bound, (double)(rest / (u * weight)));
    }
    float latest = over_block(bound, true) * MARGIN;

    double best = INFINITE;
    int winner = 0x7fffffff;
    for (int i = threadIdx.x; i < count; i += COLUMNS) {
        unsigned long long bits = random_bits(draw.key, i);
        float rest = ((float)((1ull << 53) - 1 - bits) + 0.5f) * 0x1p-53f;
        if (rest > latest * expf((logits[i] - top) * factor) * MARGIN)
            continue;
        double weight = weight_of(logits[i], top, draw.temperature);
        double time = weight < draw.min_p ? (double)INFINITE : arrival(bits, weight);
        if (time < best) {
            best = time;
            winner = i;
        }
    }
    return first_of(best, winner);
}

// The race of those that top-k or top-p leave.  `keys` [ROOM] has the highest of each column, in order.  -1 where it
// would take more than BEST logits, or where too many are in a few columns.
__device__ int race_of_best(const float *logits, float top, const Draw &draw, unsigned long long *keys)
{
    __shared__ double weights[BEST];
    __shared__ int found, kept;
    int count = draw.count, place = threadIdx.x;
    bool all = draw.top_k == 0 || draw.top_k >= count;
    if (!all && draw.top_k > BEST)
        return -1;
    int k = !all ? draw.top_k : count < BEST ? count : BEST;
    // k columns have one that is as high as this, so none under it is among the k best.
    unsigned long long least = keys[k - 1];
    __syncthreads();
    for (int i = threadIdx.x; i < ROOM; i += COLUMNS)
        keys[i] = 0;
    if (place == 0)
        found = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += COLUMNS) {
        unsigned long long key = ranked(logits[i], i);
        int free = key < least ? ROOM : atomicAdd(&found, 1);
        if (free < ROOM)
            keys[free] = key;
    }
    __syncthreads();
    if (found > ROOM)
        return -1;
    sort(keys, ROOM);

    int id = place < k ? id_of(keys[place]) : 0;
    double weight = weight_of(logits[id], top, draw.temperature);
    if (draw.top_p < 1.0) {
        double total = 0.0;
        if (all) {
            for (int i = threadIdx.x; i < count; i += COLUMNS)
                total += weight_of(logits[i], top, draw.temperature);
            total = over_block(total, false);
        }
        if (place < BEST)
            weights[place] = weight;
        __syncthreads();
        if (place == 0) {
            for (int i = 0; i < k && !all; i++)
                total += weights[i];
            int number = 1;
            double sum = weights[0], enough = draw.top_p * total;
            while (number < k && sum < enough)
                sum += weights[number++];
            kept = sum < enough && all && k < count ? -1 : number;
        }
        __syncthreads();
        k = kept;
        if (k < 0)
            return -1;
    }
    bool runs = place < k && weight >= draw.min_p;
    return first_of(runs ? arrival(random_bits(draw.key, id), weight) : (double)INFINITE, id);
}

// chosen [number] = the ids that `draws` [number] choose from their rows of logits [rows, width]; -1 where the host is to
// choose: where a logit is no number, all are -infinity, or it takes more room than there is here.
// One thread block of COLUMNS threads for each draw.
extern "C" __launch_bounds__(COLUMNS) __global__ void choose(const float *logits, const Draw *draws, int width,
                                                             int *chosen)
{
    __shared__ unsigned long long keys[ROOM];
    Draw draw = draws[blockIdx.x];
    logits += draw.row * width;
    unsigned long long highest = 0;
    for (int i = threadIdx.x; i < draw.count; i += COLUMNS) {
        unsigned long long key = ranked(logits[i], i);
        highest = key > highest ? key : highest;
    }
    keys[threadIdx.x] = highest;
    sort(keys, COLUMNS);

    int id = id_of(keys[0]);  // of what is no number 0
    float top = logits[id];
    if (keys[0] == NO_NUMBER || top == -INFINITE)
        id = -1;
    else if (draw.temperature != 0.0)
        id = (draw.top_k == 0 || draw.top_k >= draw.count) && draw.top_p >= 1.0
                 ? race_of_all(logits, top, draw)
                 : race_of_best(logits, top, draw, keys);
    if (threadIdx.x == 0)
        chosen[blockIdx.x] = id;
}
