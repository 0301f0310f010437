/* x86-64 with AVX-512 and its vector neural network instructions. */
#if defined(__x86_64__)

#include <immintrin.h>

#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"), min_vector_width(512))),   \
    apply_to = function)
#include "simd.h"

enum { WEIGHTS_ARE_UNSIGNED = 1 }; /* as the instruction takes them: w + 128 */

typedef __m512i dot_weights;

INLINE dot_weights prepare_signed(i8x64 weights) {
    return (__m512i)(weights ^ -128);
}

INLINE i32x16 dot_signed(i32x16 sums, dot_weights weights, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, weights, _mm512_set1_epi32(four));
}

INLINE i32x16 dot_unsigned(i32x16 sums, u8x64 weights, const int8_t *x) {
    return dot_signed(sums, (__m512i)weights, x);
}

#define LINEAR_TILE 8
#define QUERY_TILE 6
#define KERNELS_NAME avx512vnni
#include "kernels_body.h"
#pragma clang attribute pop

#endif
