#define _GNU_SOURCE /* pthread_setname_np, syscall */
#include "os_threads.h"

enum { STACK_BYTES = 256 * 1024 };

uint32_t harken_bell_expect(struct harken_bell *bell)
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

bool harken_bell_open(struct harken_bell *bell)
{
    atomic_init(&bell->count, 0);
    InitializeSRWLock(&bell->lock);
    InitializeConditionVariable(&bell->rung);
    return true;
}

void harken_bell_close(struct harken_bell *bell)
{
    (void)bell;
}

void harken_bell_wait(struct harken_bell *bell, uint32_t expected)
{
    AcquireSRWLockExclusive(&bell->lock);
    while (atomic_load(&bell->count) == expected)
        SleepConditionVariableSRW(&bell->rung, &bell->lock, INFINITE, 0);
    ReleaseSRWLockExclusive(&bell->lock);
}

void harken_bell_ring(struct harken_bell *bell)
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

bool harken_thread_start(struct harken_thread *thread, void (*work)(void *argument), void *argument)
{
    thread->work = work;
    thread->argument = argument;
    const DWORD flags = STACK_SIZE_PARAM_IS_A_RESERVATION;
    thread->handle = CreateThread(NULL, STACK_BYTES, run_thread, thread, flags, NULL);
    return thread->handle != NULL;
}

void harken_thread_join(struct harken_thread *thread)
{
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

void harken_yield(void)
{
    SwitchToThread();
}

int64_t harken_nanoseconds(void)
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

bool harken_bell_open(struct harken_bell *bell)
{
    atomic_init(&bell->count, 0);
    return true;
}

void harken_bell_close(struct harken_bell *bell)
{
    (void)bell;
}

void harken_bell_wait(struct harken_bell *bell, uint32_t expected)
{
    while (atomic_load(&bell->count) == expected)
        syscall(SYS_futex, &bell->count, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void harken_bell_ring(struct harken_bell *bell)
{
    if (count_ring(bell))
        syscall(SYS_futex, &bell->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

bool harken_bell_open(struct harken_bell *bell)
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

void harken_bell_close(struct harken_bell *bell)
{
    if (bell->process != getpid())
        return; /* a thread of the process before the fork may hold the lock for ever */
    pthread_cond_destroy(&bell->rung);
    pthread_mutex_destroy(&bell->lock);
}

void harken_bell_wait(struct harken_bell *bell, uint32_t expected)
{
    pthread_mutex_lock(&bell->lock);
    while (atomic_load(&bell->count) == expected)
        pthread_cond_wait(&bell->rung, &bell->lock);
    pthread_mutex_unlock(&bell->lock);
}

void harken_bell_ring(struct harken_bell *bell)
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

bool harken_thread_start(struct harken_thread *thread, void (*work)(void *argument), void *argument)
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

void harken_thread_join(struct harken_thread *thread)
{
    if (thread->process == getpid())
        pthread_join(thread->handle, NULL);
}

void harken_yield(void)
{
    sched_yield();
}

int64_t harken_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
