/* A thread pool for loops that last from microseconds to milliseconds, and come in hundreds per token.
 *
 * Design, with its reasons:
 * - Items are taken from a shared counter, a few at a time.  A static split waits for the slowest core; beside a busy
 *   neighbour that is every time.
 * - A worker spins for a bounded time after its last item, then sleeps.  Within a forward pass the next loop comes in
 *   about a microsecond, so workers are still awake; between requests they cost nothing.
 * - The caller never waits for a worker that has not started: it closes the loop, and late workers find it closed.
 *   So a worker that lost its core delays nothing unless it holds an item.
 * - Where one does hold an item and is waited for, loops run on one thread fewer for a while.  Two threads decode
 *   beside a busy process on two cores at 0.85 to 1.0 times the rate of one thread without (float32, int8, int4;
 *   November 2026), at 0.70 to 0.94 times if they always go on together.  That the caller sleeps instead of yielding,
 *   so that the system may move the worker to its core, made no clear difference.
 * - Loops compute with IEEE 754's default rounding and with subnormal numbers, whatever the caller's thread does: other
 *   libraries switch them off for a whole process, and results would differ.  The caller gets its own way back.
 * - After fork() the child starts over with no workers; they are created again on demand.
 *
 * The state of the current loop is one 64-bit word, so that entering, leaving and closing are single atomic steps:
 *   bits 32..63  number of the loop       bit 31  open for workers
 *   bits 16..30  workers that entered     bits 0..15  workers inside now
 */
#include "runtime/pool.h"

#include <stdatomic.h>
#include <stddef.h>

#include "system.h" /* posix/ or windows/ */

/* How this thread's processor rounds, and what it does with subnormal numbers. */
#if defined(__SSE2__)
#include <xmmintrin.h>
typedef unsigned gf_arithmetic;
#define IEEE 0x1f80
static gf_arithmetic get_arithmetic(void) { return _mm_getcsr(); }
static void set_arithmetic(gf_arithmetic to) { _mm_setcsr(to); }
#elif defined(__aarch64__)
typedef uint64_t gf_arithmetic;
#define IEEE 0
static gf_arithmetic get_arithmetic(void) {
    gf_arithmetic now;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(now));
    return now;
}
static void set_arithmetic(gf_arithmetic to) { __asm__ __volatile__("msr fpcr, %0" ::"r"(to)); }
#else
typedef int gf_arithmetic;
#define IEEE 0
static gf_arithmetic get_arithmetic(void) { return IEEE; }
static void set_arithmetic(gf_arithmetic to) { (void)to; }
#endif

#define OPEN (UINT64_C(1) << 31)
#define ENTERED (UINT64_C(1) << 16)
#define LOOP(word) ((word) >> 32)
#define ENTERED_COUNT(word) (((word) >> 16) & 0x7fff)
#define INSIDE_COUNT(word) ((word) & 0xffff)

/* About 100 microseconds: longer than the Python code between two layers, shorter than anything a user notices. */
#define SPINS 4000

/* A worker for which the caller waits longer than LOST, and longer than the rest of the loop took, has lost its core to
 * another process.  Loops then have one worker fewer for a while: PATIENCE times as long as the caller waited, so that a
 * single delay costs little, and twice as long as the last time where it comes again sooner than that.  Beside a busy
 * process it does: both get a few milliseconds in turn, and most of a worker's are spent with an item in hand. */
#define LOST 300000 /* nanoseconds */
#define PATIENCE 4
#define LONGEST_PAUSE 100000000 /* nanoseconds */

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("isb")
#else
#define RELAX() ((void)0)
#endif

static struct {
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) _Atomic int64_t next; /* the first item that nobody has taken */
    _Alignas(64) _Atomic int sleepers;
    /* Written by the caller before it opens the loop, read by workers after they entered. */
    gf_task task;
    void *context;
    int64_t count, grain;
    int limit; /* workers allowed to enter */
    /* So many workers lost their cores, and are left out until that time. */
    _Atomic int lost;
    _Atomic int64_t lost_until;
    /* Held by the caller whose loop it is. */
    gf_lock owner;
    int workers;
    int64_t pause; /* how long a worker was left out last */
    /* For sleeping. */
    gf_lock sleep_lock;
    gf_condition wake;
} pool = {.owner = GF_LOCK, .sleep_lock = GF_LOCK, .wake = GF_CONDITION};

static void take_items(int thread) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&pool.next, pool.grain, memory_order_relaxed);
        if (begin >= pool.count) return;
        int64_t end = begin + pool.grain < pool.count ? begin + pool.grain : pool.count;
        pool.task(pool.context, begin, end, thread);
    }
}

/* Wait until another loop than `seen` is there: spin for a while, then sleep. */
static uint64_t wait_for_loop(uint64_t seen) {
    for (int i = 0; i < SPINS; i++) {
        uint64_t word = atomic_load_explicit(&pool.word, memory_order_acquire);
        if (LOOP(word) != seen) return word;
        RELAX();
    }
    gf_take(&pool.sleep_lock);
    atomic_fetch_add(&pool.sleepers, 1);
    /* The caller stores `word`, then loads `sleepers`; here it is the other way round, all sequentially consistent:
       either the caller sees this sleeper and signals, or this load sees the new loop. */
    uint64_t word;
    while (LOOP(word = atomic_load(&pool.word)) == seen) gf_wait(&pool.wake, &pool.sleep_lock);
    atomic_fetch_sub(&pool.sleepers, 1);
    gf_give(&pool.sleep_lock);
    return word;
}

static gf_thread_result GF_CALL worker(void *argument) {
    uint64_t seen = (uint64_t)(uintptr_t)argument;
    set_arithmetic(IEEE);
    for (;;) {
        uint64_t word = wait_for_loop(seen);
        seen = LOOP(word);
        for (;;) {
            if (LOOP(word) != seen || !(word & OPEN) || (int)ENTERED_COUNT(word) >= pool.limit) break;
            if (atomic_compare_exchange_weak_explicit(&pool.word, &word, word + ENTERED + 1, memory_order_acq_rel,
                                                      memory_order_acquire)) {
                take_items(1 + (int)ENTERED_COUNT(word));
                atomic_fetch_sub_explicit(&pool.word, 1, memory_order_release);
                break;
            }
        }
    }
    return 0;
}

static void start_over_in_child(void) {
    /* Only the forking thread lives on: whatever the pool held in the parent is gone. */
    pool.owner = pool.sleep_lock = (gf_lock)GF_LOCK;
    pool.wake = (gf_condition)GF_CONDITION;
    pool.workers = 0;
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.word, LOOP(atomic_load(&pool.word)) << 32);
}

/* Have `wanted` workers, or as many as the system gives. */
static void grow(int wanted) {
    if (pool.workers < wanted) gf_after_fork(start_over_in_child);
    while (pool.workers < wanted) {
        if (!gf_start(worker, (void *)(uintptr_t)LOOP(atomic_load(&pool.word)))) return;
        pool.workers++;
    }
}

/* How many workers are to be left out for now, as other processes take their cores. */
static int lost_workers(void) {
    int lost = atomic_load_explicit(&pool.lost, memory_order_relaxed);
    if (lost == 0 || gf_now() < atomic_load_explicit(&pool.lost_until, memory_order_relaxed)) return lost;
    atomic_store_explicit(&pool.lost, 0, memory_order_relaxed);
    return 0;
}

/* Leave one worker more out for a while; the caller, who owns the pool, waited for it so many nanoseconds. */
static void leave_out_a_worker(int64_t waited) {
    int64_t time = gf_now(), since = time - atomic_load_explicit(&pool.lost_until, memory_order_relaxed);
    pool.pause = since < pool.pause ? 2 * pool.pause : PATIENCE * waited;
    if (pool.pause > LONGEST_PAUSE) pool.pause = LONGEST_PAUSE;
    atomic_store_explicit(&pool.lost_until, time + pool.pause, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool.lost, 1, memory_order_relaxed);
}

/* Wait until no worker is inside the loop, which began at `start` and is closed. */
static void wait_for_workers(int64_t start) {
    int64_t waiting = 0;
    for (int i = 0; INSIDE_COUNT(atomic_load_explicit(&pool.word, memory_order_acquire)) != 0; i++) {
        if (i < SPINS) {
            RELAX();
            continue;
        }
        if (waiting == 0) waiting = gf_now();
        gf_yield(); /* a worker lost its core with an item in hand: let it have this one */
    }
    if (waiting == 0) return;
    int64_t waited = gf_now() - waiting;
    if (waited > LOST + (waiting - start)) leave_out_a_worker(waited);
}

static void run_loop(gf_task task, void *context, int64_t count, int64_t grain, int num_threads) {
    if (grain < 1) grain = 1;
    if (num_threads > GPT2FAST_MAX_THREADS) num_threads = GPT2FAST_MAX_THREADS;
    int64_t pieces = (count - 1) / grain + 1;
    if (num_threads > pieces) num_threads = (int)pieces;
    if (num_threads > 1) num_threads -= lost_workers();
    if (num_threads <= 1 || !gf_try(&pool.owner)) {
        task(context, 0, count, 0);
        return;
    }
    grow(num_threads - 1);
    int64_t start = gf_now();
    pool.task = task;
    pool.context = context;
    pool.count = count;
    pool.grain = grain;
    pool.limit = num_threads - 1;
    atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
    uint64_t loop = (LOOP(atomic_load_explicit(&pool.word, memory_order_relaxed)) + 1) & UINT32_MAX;
    atomic_store(&pool.word, loop << 32 | OPEN);
    if (atomic_load(&pool.sleepers) > 0) {
        gf_take(&pool.sleep_lock);
        gf_wake_all(&pool.wake);
        gf_give(&pool.sleep_lock);
    }
    take_items(0);
    atomic_fetch_and_explicit(&pool.word, ~OPEN, memory_order_acq_rel);
    wait_for_workers(start);
    gf_give(&pool.owner);
}

void gf_parallel_for(gf_task task, void *context, int64_t count, int64_t grain, int num_threads) {
    if (count <= 0) return;
    const gf_arithmetic callers = get_arithmetic();
    if (callers == IEEE) {
        run_loop(task, context, count, grain, num_threads);
        return;
    }
    set_arithmetic(IEEE);
    run_loop(task, context, count, grain, num_threads);
    set_arithmetic(callers);
}
