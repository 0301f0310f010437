/* Dot products of four columns of bytes, for the instruction sets of ARM64 that have them, and of two of 16 bits. */
#include "simd.h"

enum { WEIGHTS_ARE_UNSIGNED = 0 };

typedef int8x16x4_t dot_weights;

INLINE dot_weights prepare_signed(i8x64 weights) {
    dot_weights quarters;
    memcpy(&quarters, &weights, sizeof quarters);
    return quarters;
}

INLINE i32x16 dot_signed(i32x16 sums, dot_weights weights, const int8_t *x) {
    int32x4_t quarters[4];
    int32_t four;
    memcpy(&four, x, sizeof four);
    memcpy(quarters, &sums, sizeof sums);
    int8x16_t columns = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int quarter = 0; quarter < 4; quarter++)
        quarters[quarter] = vdotq_s32(quarters[quarter], weights.val[quarter], columns);
    memcpy(&sums, quarters, sizeof sums);
    return sums;
}

INLINE i32x16 dot_unsigned(i32x16 sums, u8x64 weights, const int8_t *x) {
    return dot_signed(sums, prepare_signed((i8x64)weights), x); /* 0 to 15 are the same with a sign */
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
