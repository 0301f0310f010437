/* Threads, sleep and time of the operating system, and the arithmetic of a thread, as far as the team needs them. */
#ifndef HARKEN_OS_THREADS_H
#define HARKEN_OS_THREADS_H

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

bool harken_bell_open(struct harken_bell *bell);
void harken_bell_close(struct harken_bell *bell);
uint32_t harken_bell_expect(struct harken_bell *bell);
void harken_bell_wait(struct harken_bell *bell, uint32_t expected);
void harken_bell_ring(struct harken_bell *bell);

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

/* Start a thread named "harken" with a small stack that no signal is delivered to. The struct must stay where
 * it is. */
bool harken_thread_start(struct harken_thread *thread, void (*work)(void *argument), void *argument);
/* Wait for its end. In a process that was forked later there is no such thread, and nothing to wait for. */
void harken_thread_join(struct harken_thread *thread);

/* Let another thread run that waits for this core. */
void harken_yield(void);
/* Return the time of a clock that only goes forward. */
int64_t harken_nanoseconds(void);

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

#endif
