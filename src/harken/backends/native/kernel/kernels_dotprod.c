/* ARM64 with the dot product instructions of ARMv8.2. */
#if defined(__aarch64__)

#include <arm_neon.h>

#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#include "dot_neon.h"

#define KERNELS_NAME dotprod
#include "kernels_body.h"
#pragma clang attribute pop

#endif
