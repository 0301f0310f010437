/* x86-64 with AVX2 and the 256-bit form of the vector neural network instructions. */
#if defined(__x86_64__)

#include <immintrin.h>

#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#include "simd.h"

typedef struct {
    __m256i lower, upper;
} halves_of_vector;

INLINE i32x16 dot_7(i32x16 sums, u8x64 weights, const int8_t *x) {
    halves_of_vector halves, bytes;
    int32_t four;
    memcpy(&four, x, sizeof four);
    memcpy(&halves, &sums, sizeof halves);
    memcpy(&bytes, &weights, sizeof bytes);
    __m256i columns = _mm256_set1_epi32(four);
    halves.lower = _mm256_dpbusd_avx_epi32(halves.lower, bytes.lower, columns);
    halves.upper = _mm256_dpbusd_avx_epi32(halves.upper, bytes.upper, columns);
    memcpy(&sums, &halves, sizeof sums);
    return sums;
}

typedef halves_of_vector pair_weights;

INLINE pair_weights load_pairs(const int16_t *weights) {
    pair_weights halves;
    memcpy(&halves, weights, sizeof halves);
    return halves;
}

/* In assembly, because LLVM makes a multiplication and an addition of the intrinsic. */
INLINE i32x16 dot_pairs(i32x16 sums, pair_weights weights, const int16_t *x) {
    halves_of_vector halves;
    int32_t two;
    memcpy(&two, x, sizeof two);
    memcpy(&halves, &sums, sizeof halves);
    __m256i columns = _mm256_set1_epi32(two);
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(halves.lower) : "x"(weights.lower), "x"(columns));
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(halves.upper) : "x"(weights.upper), "x"(columns));
    memcpy(&sums, &halves, sizeof sums);
    return sums;
}

#define KERNELS_NAME avxvnni
#include "kernels_body.h"
#pragma clang attribute pop

#endif
