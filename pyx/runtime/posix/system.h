/* What the thread pool asks of a system, on POSIX. */
#ifndef GPT2FAST_SYSTEM_H
#define GPT2FAST_SYSTEM_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

typedef pthread_mutex_t gf_lock;
typedef pthread_cond_t gf_condition;
#define GF_LOCK PTHREAD_MUTEX_INITIALIZER
#define GF_CONDITION PTHREAD_COND_INITIALIZER

static inline void gf_take(gf_lock *lock) { pthread_mutex_lock(lock); }
/* 1 where nobody else has it. */
static inline int gf_try(gf_lock *lock) { return pthread_mutex_trylock(lock) == 0; }
static inline void gf_give(gf_lock *lock) { pthread_mutex_unlock(lock); }
static inline void gf_wait(gf_condition *condition, gf_lock *lock) { pthread_cond_wait(condition, lock); }
static inline void gf_wake_all(gf_condition *condition) { pthread_cond_broadcast(condition); }
static inline void gf_yield(void) { sched_yield(); }

/* Nanoseconds of a clock that nobody sets. */
static inline int64_t gf_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* A thread that nobody waits for; 0 where the system gives none. */
typedef void *gf_thread_result;
#define GF_CALL
static inline int gf_start(gf_thread_result (*function)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    const int failed = pthread_create(&thread, &attributes, function, argument);
    pthread_attr_destroy(&attributes);
    return !failed;
}

/* Have `handler` called in the child of each fork, however often this is called itself. */
static inline void gf_after_fork(void (*handler)(void)) {
    static int registered = 0; /* under the pool's lock */
    if (!registered) registered = pthread_atfork(NULL, NULL, handler) == 0;
}

#endif
