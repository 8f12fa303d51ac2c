/* What the thread pool asks of a system, on Windows (7 and later). */
#ifndef GPT2FAST_SYSTEM_H
#define GPT2FAST_SYSTEM_H

#define WIN32_LEAN_AND_MEAN
#include <process.h>
#include <stdint.h>
#include <windows.h>

typedef SRWLOCK gf_lock;
typedef CONDITION_VARIABLE gf_condition;
#define GF_LOCK SRWLOCK_INIT
#define GF_CONDITION CONDITION_VARIABLE_INIT

static inline void gf_take(gf_lock *lock) { AcquireSRWLockExclusive(lock); }
/* 1 where nobody else has it. */
static inline int gf_try(gf_lock *lock) { return TryAcquireSRWLockExclusive(lock) != 0; }
static inline void gf_give(gf_lock *lock) { ReleaseSRWLockExclusive(lock); }
static inline void gf_wait(gf_condition *condition, gf_lock *lock) {
    SleepConditionVariableSRW(condition, lock, INFINITE, 0);
}
static inline void gf_wake_all(gf_condition *condition) { WakeAllConditionVariable(condition); }
static inline void gf_yield(void) { SwitchToThread(); }

/* Nanoseconds of a clock that nobody sets. */
static inline int64_t gf_now(void) {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    /* In two parts, as the product of ticks and 10^9 does not fit. */
    const int64_t whole = ticks.QuadPart / per_second.QuadPart, rest = ticks.QuadPart % per_second.QuadPart;
    return whole * 1000000000 + rest * 1000000000 / per_second.QuadPart;
}

/* A thread that nobody waits for; 0 where the system gives none. */
typedef unsigned gf_thread_result;
#define GF_CALL __stdcall
static inline int gf_start(gf_thread_result(GF_CALL *function)(void *), void *argument) {
    const uintptr_t thread = _beginthreadex(NULL, 1 << 20, function, argument, 0, NULL);
    if (thread == 0) return 0;
    CloseHandle((HANDLE)thread);
    return 1;
}

/* Processes of Windows do not fork. */
static inline void gf_after_fork(void (*handler)(void)) { (void)handler; }

#endif
