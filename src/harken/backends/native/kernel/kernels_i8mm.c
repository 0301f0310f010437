/* ARM64 with the matrix multiplication instructions of ARMv8.6: two rows times two vectors, eight columns at a time. */
#if defined(__aarch64__)

#include <arm_neon.h>

#include "harken.h"

#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#include "dot_neon.h"

/* Adds to the sums of two vectors: pairs of rows are multiplied together, and sorted by vector at the end of the block. */
INLINE void dot_block_pair(const int8_t *weights, const int8_t *x, int64_t stride, i32x16 *sums) {
    int32x4_t upper[4], lower[4], first[4], second[4];
    for (int quarter = 0; quarter < 4; quarter++)
        upper[quarter] = lower[quarter] = vdupq_n_s32(0);
    for (int column = 0; column < HARKEN_BLOCK; column += 8) {
        int8x16_t columns = vcombine_s8(vld1_s8(x + column), vld1_s8(x + stride + column));
        for (int quarter = 0; quarter < 4; quarter++) {
            const int8_t *from = weights + column * HARKEN_GROUP + quarter * 16;
            int32x4_t four = vreinterpretq_s32_s8(vld1q_s8(from));
            int32x4_t next_four = vreinterpretq_s32_s8(vld1q_s8(from + 4 * HARKEN_GROUP));
            int8x16_t rows_0_1 = vreinterpretq_s8_s32(vzip1q_s32(four, next_four));
            int8x16_t rows_2_3 = vreinterpretq_s8_s32(vzip2q_s32(four, next_four));
            upper[quarter] = vmmlaq_s32(upper[quarter], rows_0_1, columns);
            lower[quarter] = vmmlaq_s32(lower[quarter], rows_2_3, columns);
        }
    }
    for (int quarter = 0; quarter < 4; quarter++) {
        first[quarter] = vuzp1q_s32(upper[quarter], lower[quarter]);
        second[quarter] = vuzp2q_s32(upper[quarter], lower[quarter]);
    }
    i32x16 products[2];
    memcpy(&products[0], first, sizeof first);
    memcpy(&products[1], second, sizeof second);
    sums[0] = sums[0] + products[0];
    sums[1] = sums[1] + products[1];
}

#define DOT_BLOCK_PAIR
#define KERNELS_NAME i8mm
#include "kernels_body.h"
#pragma clang attribute pop

#endif
