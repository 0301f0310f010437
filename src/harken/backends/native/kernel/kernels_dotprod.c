/* ARM64 with the dot product instructions of ARMv8.2. */
#if defined(__aarch64__)

#include <arm_neon.h>

#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#include "dot_neon.h"

#define LINEAR_TILE 4
#define LINEAR_GROUPS 1
#define ROW_TILE 6
#define GROUP_TILE 1
#define KERNELS_NAME dotprod
#include "kernels_body.h"
#pragma clang attribute pop

#endif
