/* x86-64 with AVX-512 and its vector neural network instructions, with and without AMX. */
#if defined(__x86_64__)

#include <immintrin.h>

#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8"),         \
                   min_vector_width(512))),                                                                          \
    apply_to = function) /* only `multiply_tiles` uses AMX: no compiler does unasked */
#include "simd.h"

INLINE i32x16 dot_7(i32x16 sums, u8x64 weights, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(four));
}

typedef __m512i pair_weights;

INLINE pair_weights load_pairs(const int16_t *weights) {
    return _mm512_loadu_si512(weights);
}

/* In assembly, because LLVM makes a multiplication and an addition of the intrinsic, which take twice as long. */
INLINE i32x16 dot_pairs(i32x16 sums, pair_weights weights, const int16_t *x) {
    int32_t two;
    memcpy(&two, x, sizeof two);
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(_mm512_set1_epi32(two)));
    return sums;
}

#define LINEAR_TILE 8
#define WIDE_GROUPS 2
#define WIDE_TILE 6
#define ATTENTION_TILE 16
#define ROW_TILE 12
#define GROUP_TILE 2
#define KERNELS_NAME avx512vnni
#define WITH_TILES /* those of AMX, for which there is a pair of kernels more */
#include "kernels_body.h"
#pragma clang attribute pop

#endif
