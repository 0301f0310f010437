/* Any processor; on ARM64 the compiler uses what every one of them has. */
#if !defined(__aarch64__)
#define WITHOUT_HALF_INSTRUCTIONS
#define WITHOUT_FMA_INSTRUCTIONS
#endif
#include "simd.h"

INLINE i32x16 dot_7(i32x16 sums, u8x64 weights, const int8_t *x) {
    for (int lane = 0; lane < LANES; lane++)
        for (int column = 0; column < 4; column++)
            sums[lane] += weights[4 * lane + column] * x[column];
    return sums;
}

typedef struct {
    i32x16 even, odd;
} pair_weights;

INLINE pair_weights load_pairs(const int16_t *weights) {
    i32x16 both;
    memcpy(&both, weights, sizeof both);
    return (pair_weights){both << 16 >> 16, both >> 16};
}

INLINE i32x16 dot_pairs(i32x16 sums, pair_weights weights, const int16_t *x) {
    return sums + weights.even * x[0] + weights.odd * x[1];
}

#define KERNELS_NAME portable
#include "kernels_body.h"
