/* Threads, sleep and time of the operating system, and the arithmetic of a thread, as far as the team needs them.
 *
 * `harken_thread_start` starts a thread named "harken" with a small stack that no signal is delivered to; the struct must
 * stay where it is. `harken_thread_join` waits for its end; in a process that was forked later there is no such thread,
 * and nothing to wait for. `harken_yield` lets another thread run that waits for this core, and the clock of
 * `harken_nanoseconds` only goes forward. */
#define _GNU_SOURCE /* pthread_setname_np, syscall */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <pthread.h>
#include <sys/types.h>
#endif

/* A bell that threads sleep by. To sleep without missing it: expect, look whether there is reason to sleep
 * still, wait for what expect returned. Ringing costs one load while nobody expects it. */
struct harken_bell {
    _Atomic uint32_t count; /* odd while somebody expects a ring; a ring makes it the next even number */
#if defined(_WIN32)
    SRWLOCK lock;
    CONDITION_VARIABLE rung;
#elif !defined(__linux__)
    pthread_mutex_t lock;
    pthread_cond_t rung;
    pid_t process;
#endif
};

struct harken_thread {
    void (*work)(void *argument);
    void *argument;
#if defined(_WIN32)
    HANDLE handle;
#else
    pthread_t handle;
    pid_t process;
#endif
};

/* Tell the core that this is a loop that waits: it saves power, and leaves the units to its other hardware
 * thread. */
static inline void harken_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` does nothing on most cores; `isb` takes some 10 ns */
#endif
}

/* The mode of a thread's floating-point arithmetic. A library built with -ffast-math switches the thread that loads it
 * to flushing numbers below 2^-126 to 0, for good. Then bits would depend on which thread computes what; so the threads
 * of a team work in the mode of the C language. */
#if defined(__x86_64__)
enum { HARKEN_STANDARD_FLOATS = 0x1f80 }; /* nearest, nothing flushed, exceptions masked */

static inline uint64_t harken_float_mode(void) {
    return __builtin_ia32_stmxcsr();
}

static inline void harken_set_float_mode(uint64_t mode) {
    __builtin_ia32_ldmxcsr((uint32_t)mode);
}
#elif defined(__aarch64__)
enum { HARKEN_STANDARD_FLOATS = 0 };

static inline uint64_t harken_float_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static inline void harken_set_float_mode(uint64_t mode) {
    __asm__ volatile("msr fpcr, %0" ::"r"(mode));
}
#else
enum { HARKEN_STANDARD_FLOATS = 0 };

static inline uint64_t harken_float_mode(void) {
    return HARKEN_STANDARD_FLOATS;
}

static inline void harken_set_float_mode(uint64_t mode) {
    (void)mode;
}
#endif

enum { STACK_BYTES = 256 * 1024 };

static uint32_t harken_bell_expect(struct harken_bell *bell)
{
    return atomic_fetch_or(&bell->count, 1) | 1;
}

/* Make an expected ring the next even number; false if nobody expects one. Load and `expect` are sequentially
 * consistent: either the sleeper sees what was written before the ring, or the ring sees the sleeper. */
static bool count_ring(struct harken_bell *bell)
{
    uint32_t count = atomic_load(&bell->count);
    return count % 2 == 1 && atomic_compare_exchange_strong(&bell->count, &count, count + 1);
}

#if defined(_WIN32)

static bool harken_bell_open(struct harken_bell *bell)
{
    atomic_init(&bell->count, 0);
    InitializeSRWLock(&bell->lock);
    InitializeConditionVariable(&bell->rung);
    return true;
}

static void harken_bell_close(struct harken_bell *bell)
{
    (void)bell;
}

static void harken_bell_wait(struct harken_bell *bell, uint32_t expected)
{
    AcquireSRWLockExclusive(&bell->lock);
    while (atomic_load(&bell->count) == expected)
        SleepConditionVariableSRW(&bell->rung, &bell->lock, INFINITE, 0);
    ReleaseSRWLockExclusive(&bell->lock);
}

static void harken_bell_ring(struct harken_bell *bell)
{
    if (!count_ring(bell))
        return;
    /* A sleeper looks at the count under the lock: it has either seen the ring, or waits for the condition by
     * now. */
    AcquireSRWLockExclusive(&bell->lock);
    ReleaseSRWLockExclusive(&bell->lock);
    WakeAllConditionVariable(&bell->rung);
}

static DWORD WINAPI run_thread(void *argument)
{
    const struct harken_thread *thread = argument;
    thread->work(thread->argument);
    return 0;
}

static bool harken_thread_start(struct harken_thread *thread, void (*work)(void *argument), void *argument)
{
    thread->work = work;
    thread->argument = argument;
    const DWORD flags = STACK_SIZE_PARAM_IS_A_RESERVATION;
    thread->handle = CreateThread(NULL, STACK_BYTES, run_thread, thread, flags, NULL);
    return thread->handle != NULL;
}

static void harken_thread_join(struct harken_thread *thread)
{
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

static void harken_yield(void)
{
    SwitchToThread();
}

static int64_t harken_nanoseconds(void)
{
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency);
    return (int64_t)((double)ticks.QuadPart * (1e9 / (double)frequency.QuadPart));
}

#else /* POSIX */

#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>

static bool harken_bell_open(struct harken_bell *bell)
{
    atomic_init(&bell->count, 0);
    return true;
}

static void harken_bell_close(struct harken_bell *bell)
{
    (void)bell;
}

static void harken_bell_wait(struct harken_bell *bell, uint32_t expected)
{
    while (atomic_load(&bell->count) == expected)
        syscall(SYS_futex, &bell->count, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void harken_bell_ring(struct harken_bell *bell)
{
    if (count_ring(bell))
        syscall(SYS_futex, &bell->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

static bool harken_bell_open(struct harken_bell *bell)
{
    atomic_init(&bell->count, 0);
    bell->process = getpid();
    if (pthread_mutex_init(&bell->lock, NULL) != 0)
        return false;
    if (pthread_cond_init(&bell->rung, NULL) == 0)
        return true;
    pthread_mutex_destroy(&bell->lock);
    return false;
}

static void harken_bell_close(struct harken_bell *bell)
{
    if (bell->process != getpid())
        return; /* a thread of the process before the fork may hold the lock for ever */
    pthread_cond_destroy(&bell->rung);
    pthread_mutex_destroy(&bell->lock);
}

static void harken_bell_wait(struct harken_bell *bell, uint32_t expected)
{
    pthread_mutex_lock(&bell->lock);
    while (atomic_load(&bell->count) == expected)
        pthread_cond_wait(&bell->rung, &bell->lock);
    pthread_mutex_unlock(&bell->lock);
}

static void harken_bell_ring(struct harken_bell *bell)
{
    if (!count_ring(bell) || bell->process != getpid())
        return; /* after a fork nobody sleeps here, and the lock may be held for ever */
    /* A sleeper looks at the count under the lock: it has either seen the ring, or waits for the condition by
     * now. */
    pthread_mutex_lock(&bell->lock);
    pthread_mutex_unlock(&bell->lock);
    pthread_cond_broadcast(&bell->rung);
}

#endif

static void *run_thread(void *argument)
{
    const struct harken_thread *thread = argument;
#if defined(__APPLE__)
    pthread_setname_np("harken");
#elif defined(__linux__)
    pthread_setname_np(pthread_self(), "harken");
#endif
    thread->work(thread->argument);
    return NULL;
}

static bool harken_thread_start(struct harken_thread *thread, void (*work)(void *argument), void *argument)
{
    thread->work = work;
    thread->argument = argument;
    thread->process = getpid();
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setstacksize(&attributes, STACK_BYTES); /* the default stays where that is too small */
    /* The thread inherits the mask: Python's signals belong to Python's main thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread->handle, &attributes, run_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

static void harken_thread_join(struct harken_thread *thread)
{
    if (thread->process == getpid())
        pthread_join(thread->handle, NULL);
}

static void harken_yield(void)
{
    sched_yield();
}

static int64_t harken_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
