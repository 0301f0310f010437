/* x86-64 with AVX2, which multiplies unsigned by signed bytes and adds pairs of products in 16 bits. */
#if defined(__x86_64__)

#include <immintrin.h>

#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#include "simd.h"

INLINE __m256i four_columns(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

/* With unsigned weights of up to 7 bits, products are summed in 16 bits, the even pairs of columns apart from the odd ones,
 * and later in 32. What leaves 16 bits on the way comes back: with weights that count from 0 the sums fit (see `quantise`). */
typedef struct {
    __m256i halves[2], wide[2];
} sums_7;
#define SUMS_OF_PAIRS
#define COLUMNS_IN_TURN _Pragma("clang loop unroll(disable)") /* else the weights of all columns go to the stack */

/* Two int16, for even pairs of columns and for the others. */
INLINE u32x16 offset_7(u32x16 totals, u32x16 even_totals) {
    return (-64u * even_totals & 0xffff) | -64u * (totals - even_totals) << 16;
}

INLINE sums_7 start_7(int32_t offset) {
    __m256i half = _mm256_set1_epi32(offset);
    return (sums_7){.halves = {half, half}};
}

/* Sums that go on from others. */
INLINE sums_7 resume_7(i32x16 sums) {
    sums_7 resumed = {0};
    memcpy(resumed.wide, &sums, sizeof sums);
    return resumed;
}

INLINE sums_7 dot_7(sums_7 sums, u8x64 weights, const int8_t *x) {
    __m256i bytes[2], columns = four_columns(x);
    memcpy(bytes, &weights, sizeof weights);
    for (int half = 0; half < 2; half++)
        sums.halves[half] = _mm256_add_epi16(sums.halves[half], _mm256_maddubs_epi16(bytes[half], columns));
    return sums;
}

/* Adds what was summed in 16 bits to the sums in 32. */
INLINE sums_7 widen_7(sums_7 sums) {
    for (int half = 0; half < 2; half++) {
        __m256i pairs = _mm256_madd_epi16(sums.halves[half], _mm256_set1_epi16(1));
        sums.wide[half] = _mm256_add_epi32(sums.wide[half], pairs);
        sums.halves[half] = _mm256_setzero_si256();
    }
    return sums;
}

INLINE i32x16 end_7(sums_7 sums) {
    i32x16 totals;
    sums = widen_7(sums);
    memcpy(&totals, sums.wide, sizeof totals);
    return totals;
}

typedef struct {
    __m256i halves[2];
} pair_weights;

INLINE pair_weights load_pairs(const int16_t *weights) {
    pair_weights pairs;
    memcpy(&pairs, weights, sizeof pairs);
    return pairs;
}

INLINE i32x16 dot_pairs(i32x16 sums, pair_weights weights, const int16_t *x) {
    __m256i halves[2];
    int32_t two;
    memcpy(&two, x, sizeof two);
    memcpy(halves, &sums, sizeof sums);
    for (int half = 0; half < 2; half++)
        halves[half] = _mm256_add_epi32(halves[half], _mm256_madd_epi16(weights.halves[half], _mm256_set1_epi32(two)));
    memcpy(&sums, halves, sizeof sums);
    return sums;
}

#define KERNELS_NAME avx2
#include "kernels_body.h"
#pragma clang attribute pop

#endif
