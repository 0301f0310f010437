/* The mode of a thread's floating-point arithmetic.
 *
 * A library built with -ffast-math switches the thread that loads it to flushing numbers below 2^-126 to 0, for good.
 * Then bits would depend on which thread computes what; so the threads of a team work in the mode of the C language. */
#ifndef HARKEN_FLOAT_MODE_H
#define HARKEN_FLOAT_MODE_H

#include <stdint.h>

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
