// Runs the kernels of a .cu file on a CPU, thread block by thread block, exactly as they are written.
//
// The threads of a block are coroutines: each runs until it waits for its warp (a shuffle, __syncwarp) or for its block
// (__syncthreads), and goes on when all others have come to the same place.  Where they do not, the kernel would hang or
// be undefined on a GPU; here the run fails.  Threads and thread blocks take their turns in ascending or in descending
// order: a result that depends on it shows that a barrier is missing, or that shared memory is read before it is written,
// in which case a block finds what the one before it has left.
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__ static
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

enum State { RUNNING, AT_WARP, AT_BLOCK, DONE };
const unsigned WARP = 32, STACK = 1 << 16;

struct Thread {
    ucontext_t start;  // swapcontext asks the kernel for its signal mask each time, so it only begins a thread
    jmp_buf place;
    bool begun;
    State state;
    unsigned shuffles;
    double given[2];  // to a shuffle; by turns, as a thread may be at the next one before its neighbour has read this one
    std::unique_ptr<char[]> stack{new char[STACK]};
};

static std::vector<Thread> threads;
static jmp_buf scheduler;
static unsigned current;
static bool descending;
static std::function<void()> body;

static void wait(State place)
{
    threads[current].state = place;
    if (!_setjmp(threads[current].place))
        _longjmp(scheduler, 1);
}

static void run_thread()
{
    body();
    threads[current].state = DONE;
    _longjmp(scheduler, 1);
}

static void resume(unsigned thread)
{
    current = thread;
    threadIdx = {thread, 0, 0};
    threads[thread].state = RUNNING;
    if (_setjmp(scheduler))
        return;
    if (threads[thread].begun)
        _longjmp(threads[thread].place, 1);
    threads[thread].begun = true;
    setcontext(&threads[thread].start);
}

static double shuffle(double value, unsigned source)
{
    unsigned turn = threads[current].shuffles++ % 2, first = current / WARP * WARP;
    threads[current].given[turn] = value;
    wait(AT_WARP);
    return threads[first + source].given[turn];
}

// Runs the threads from `first` on until they wait for the block or have ended; false where they part.
static bool run_warp(unsigned first)
{
    do {
        for (unsigned i = 0; i < WARP; i++)
            resume(first + (descending ? WARP - 1 - i : i));
        for (unsigned i = first + 1; i < first + WARP; i++)
            if (threads[i].state != threads[first].state || threads[i].shuffles != threads[first].shuffles)
                return false;
    } while (threads[first].state == AT_WARP);
    return true;
}

static bool run_block()
{
    unsigned count = threads.size();
    for (Thread &thread : threads) {
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.get();
        thread.start.uc_stack.ss_size = STACK;
        makecontext(&thread.start, run_thread, 0);
        thread.begun = false;
        thread.shuffles = 0;
    }
    do {
        for (unsigned i = 0; i < count; i += WARP)
            if (!run_warp(descending ? count - WARP - i : i))
                return false;
        for (Thread &thread : threads)
            if (thread.state != threads[0].state)
                return false;
    } while (threads[0].state == AT_BLOCK);
    return true;
}

static bool run_grid(const unsigned *grid, const unsigned *block)
{
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    if (blockDim.x % WARP || blockDim.y != 1 || blockDim.z != 1)
        return false;
    threads.resize(blockDim.x);
    unsigned plane = grid[0] * grid[1], count = plane * grid[2];
    for (unsigned i = 0; i < count; i++) {
        unsigned number = descending ? count - 1 - i : i;
        blockIdx = {number % grid[0], number % plane / grid[0], number / plane};
        if (!run_block())
            return false;
    }
    return true;
}

template <typename... A, size_t... i>
static void call(void (*kernel)(A...), void **values, std::index_sequence<i...>)
{
    kernel(*static_cast<A *>(values[i])...);
}

// Arguments come as the driver takes them, by address and without their types.
template <typename... A>
static bool run(void (*kernel)(A...), const unsigned *grid, const unsigned *block, void **values, bool backwards)
{
    descending = backwards;
    body = [=] { call(kernel, values, std::index_sequence_for<A...>()); };
    return run_grid(grid, block);
}

// What a kernel takes: "p8i4f4" is a pointer, an int and a float.
template <typename... A> static std::string signature(void (*)(A...))
{
    std::string text;
    ((text += std::is_pointer<A>::value ? "p" : std::is_floating_point<A>::value ? "f" : "i",
      text += std::to_string(sizeof(A))), ...);
    return text;
}

}  // namespace emulation

#define EMULATE(name)                                                                                                  \
    extern "C" bool run_##name(const unsigned *grid, const unsigned *block, void **values, bool backwards)             \
    {                                                                                                                  \
        return emulation::run(name, grid, block, values, backwards);                                                   \
    }                                                                                                                  \
    extern "C" const char *signature_##name()                                                                          \
    {                                                                                                                  \
        static std::string text = emulation::signature(name);                                                         \
        return text.c_str();                                                                                           \
    }

// What the CUDA compiler knows by itself.

static inline void __syncthreads() { emulation::wait(emulation::AT_BLOCK); }
static inline void __syncwarp() { emulation::wait(emulation::AT_WARP); }
template <typename T> static inline T __shfl_xor_sync(unsigned, T value, unsigned lanes)
{
    static_assert(std::is_floating_point<T>::value, "a shuffle here takes what fits into a double");
    return emulation::shuffle(value, emulation::current % emulation::WARP ^ lanes);
}

static inline int atomicAdd(int *place, int value)
{
    int before = *place;
    *place += value;
    return before;
}

static inline int atomicMin(int *place, int value)
{
    int before = *place;
    *place = value < before ? value : before;
    return before;
}

static inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline float half_as_float(unsigned short bits)
{
    unsigned magnitude = bits & 0x7fff;
    float value = magnitude >= 0x7c00 ? __uint_as_float(0x7f800000 | (magnitude & 0x3ff) << 13)
                                      : __uint_as_float(magnitude << 13) * 0x1p112f;
    return bits & 0x8000 ? -value : value;
}

static inline unsigned short float_as_half(float value)
{
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return sign | 0x7e00;
    if (bits >= 0x477ff000)  // 65520, half way to the power of two that there is no more
        return sign | 0x7c00;
    if (bits < 0x38800000)  // subnormal: adding half an ulp's worth of power of two rounds at the right place
        return sign | (__float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000);
    return sign | ((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}
