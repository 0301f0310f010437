/* Dot products of four columns, for the instruction sets of ARM64 that have them. */
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
