/* ARM64 with the dot product instructions of ARMv8.2: of four columns of bytes, and of two of 16 bits. */
#if defined(__aarch64__)

#include <arm_neon.h>

#include "harken.h"

#ifdef WITH_MATRIX_PRODUCTS
#define KERNELS_NAME i8mm
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#define KERNELS_NAME dotprod
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#endif
#include "simd.h"

/* Unsigned weights of 7 bits are the same with a sign. */
INLINE i32x16 dot_7(i32x16 sums, u8x64 weights, const int8_t *x) {
    int8x16_t bytes[4];
    int32x4_t quarters[4];
    int32_t four;
    memcpy(&four, x, sizeof four);
    memcpy(bytes, &weights, sizeof weights);
    memcpy(quarters, &sums, sizeof sums);
    int8x16_t columns = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int quarter = 0; quarter < 4; quarter++)
        quarters[quarter] = vdotq_s32(quarters[quarter], bytes[quarter], columns);
    memcpy(&sums, quarters, sizeof sums);
    return sums;
}

/* Of each quarter of two, the first columns and then the second ones. */
typedef struct {
    int16x8_t even[2], odd[2];
} pair_weights;

INLINE pair_weights load_pairs(const int16_t *weights) {
    pair_weights pairs;
    for (int half = 0; half < 2; half++) {
        int16x8x2_t columns = vld2q_s16(weights + half * LANES);
        pairs.even[half] = columns.val[0];
        pairs.odd[half] = columns.val[1];
    }
    return pairs;
}

INLINE i32x16 dot_pairs(i32x16 sums, pair_weights weights, const int16_t *x) {
    int32x4_t quarters[4];
    memcpy(quarters, &sums, sizeof sums);
    for (int half = 0; half < 2; half++) {
        int32x4_t *lower = &quarters[2 * half], *upper = lower + 1;
        *lower = vmlal_n_s16(*lower, vget_low_s16(weights.even[half]), x[0]);
        *upper = vmlal_high_n_s16(*upper, weights.even[half], x[0]);
        *lower = vmlal_n_s16(*lower, vget_low_s16(weights.odd[half]), x[1]);
        *upper = vmlal_high_n_s16(*upper, weights.odd[half], x[1]);
    }
    memcpy(&sums, quarters, sizeof sums);
    return sums;
}

#ifdef WITH_MATRIX_PRODUCTS
#define DOT_BLOCK_PAIR

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
#endif

#include "kernels_body.h"
#pragma clang attribute pop

#endif
