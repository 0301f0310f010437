/* Vectors of 16 lanes, on every processor: clang maps them to whatever registers there are.
 *
 * Operations on lanes round the same everywhere, products are added by explicit fused multiply-adds, and the lanes of a
 * vector are summed by one fixed tree. So results do not depend on the processor. */
#ifndef HARKEN_SIMD_H
#define HARKEN_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef _Float16 f16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef int8_t i8x64 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));

enum { LANES = 16 };

INLINE f32x16 splat(float x) {
    return (f32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE i32x16 splat_integer(int32_t x) {
    return (i32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE f32x16 load(const float *from) {
    f32x16 x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, f32x16 x) {
    memcpy(to, &x, sizeof x);
}

INLINE f32x16 load_half(const uint16_t *from) {
    f16x16 x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, f32x16);
}

/* bfloat16 is the upper half of a float. */
INLINE f32x16 load_bfloat(const uint16_t *from) {
    u16x16 x;
    memcpy(&x, from, sizeof x);
    return (f32x16)(__builtin_convertvector(x, u32x16) << 16);
}

INLINE f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) {
    return __builtin_elementwise_fma(a, b, c);
}

INLINE f32x16 max16(f32x16 a, f32x16 b) {
    i32x16 larger = a > b;
    return (f32x16)(((i32x16)a & larger) | ((i32x16)b & ~larger));
}

INLINE f32x16 abs16(f32x16 x) {
    return (f32x16)((i32x16)x & 0x7fffffff);
}

INLINE float sum_lanes(f32x16 x) {
    f32x8 y = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    f32x4 z = __builtin_shufflevector(y, y, 0, 1, 2, 3) + __builtin_shufflevector(y, y, 4, 5, 6, 7);
    return (z[0] + z[2]) + (z[1] + z[3]);
}

INLINE float max_lanes(f32x16 x) {
    float largest = x[0];
    for (int lane = 1; lane < LANES; lane++)
        largest = x[lane] > largest ? x[lane] : largest;
    return largest;
}

/* Adding this number leaves an integer in the low bits of the sum, rounded to nearest, ties to even. */
static const float ROUNDER = 12582912.0f;

/* Rounds values between -2^22 and 2^22. */
INLINE i32x16 round_to_integer(f32x16 x) {
    return (i32x16)(x + ROUNDER) - (i32x16)splat(ROUNDER);
}

/* e^x for x up to 88, and exactly 0 below -87.
 * Source: Cephes, expf: x = n ln 2 + r, and a polynomial of degree 5 for e^r. */
INLINE f32x16 exp16(f32x16 x) {
    i32x16 representable = x > -87.0f;
    x = max16(x, splat(-87.0f));
    f32x16 shifted = fma16(x, splat(1.44269504088896341f), splat(ROUNDER));
    f32x16 n = shifted - ROUNDER;
    f32x16 r = fma16(n, splat(-0.693359375f), x);
    r = fma16(n, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    p = fma16(p, r, splat(1.3981999507e-3f));
    p = fma16(p, r, splat(8.3334519073e-3f));
    p = fma16(p, r, splat(4.1665795894e-2f));
    p = fma16(p, r, splat(1.6666665459e-1f));
    p = fma16(p, r, splat(5.0000001201e-1f));
    p = fma16(p, r * r, r) + 1.0f;
    return (f32x16)(((i32x16)p + ((i32x16)shifted << 23)) & representable);
}

/* x / 2 (1 + erf(x / sqrt 2)).
 * Source: Eigen, generic_fast_erf_float: a rational function of x^2, for |x| up to 4. */
INLINE f32x16 gelu16(f32x16 x) {
    f32x16 y = x * 0.70710678118654752f;
    y = -max16(-max16(y, splat(-4.0f)), splat(-4.0f));
    f32x16 y2 = y * y;
    f32x16 p = splat(-2.72614225801306e-10f);
    p = fma16(p, y2, splat(2.77068142495902e-08f));
    p = fma16(p, y2, splat(-2.10102402082508e-06f));
    p = fma16(p, y2, splat(-5.69250639462346e-05f));
    p = fma16(p, y2, splat(-7.34990630326855e-04f));
    p = fma16(p, y2, splat(-2.95459980854025e-03f));
    p = fma16(p, y2, splat(-1.60960333262415e-02f));
    f32x16 q = splat(-1.45660718464996e-05f);
    q = fma16(q, y2, splat(-2.13374055278905e-04f));
    q = fma16(q, y2, splat(-1.68282697438203e-03f));
    q = fma16(q, y2, splat(-7.37332916720468e-03f));
    q = fma16(q, y2, splat(-1.42647390514189e-02f));
    return 0.5f * x * (1.0f + y * p / q);
}

/* The natural logarithm of a positive number. The libraries of different systems differ in its last bit.
 * Source: log m = 2 artanh((m - 1) / (m + 1)), as a series, for m between 1/sqrt 2 and sqrt 2. */
INLINE float natural_log(double x) {
    int exponent;
    double m = frexp(x, &exponent);
    if (m < 0.70710678118654752) {
        m *= 2;
        exponent--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, series = 0;
    for (int odd = 15; odd >= 1; odd -= 2)
        series = series * s2 + 1.0 / odd;
    return (float)(exponent * 0.69314718055994531 + 2 * s * series);
}

#endif
