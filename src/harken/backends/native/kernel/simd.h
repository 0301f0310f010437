/* Vectors of 16 lanes, on every processor: clang maps them to whatever registers there are.
 *
 * Operations on lanes round the same everywhere, products are added by explicit fused multiply-adds, and the lanes of a
 * vector are summed by one fixed tree. So results do not depend on the processor. */
#ifndef HARKEN_SIMD_H
#define HARKEN_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#pragma STDC FP_CONTRACT OFF /* a product and a sum are fused where the source says so, and nowhere else */

#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef _Float16 f16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
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

/* Adding this number leaves an integer in the low bits of the sum, rounded to nearest, ties to even. */
static const float ROUNDER = 12582912.0f;

/* Rounds values between -2^22 and 2^22. */
INLINE i32x16 round_to_integer(f32x16 x) {
    return (i32x16)(x + ROUNDER) - (i32x16)splat(ROUNDER);
}

#ifdef WITHOUT_HALF_INSTRUCTIONS
/* A number below 2^-14 is its mantissa times 2^-24; that of any other gets the exponent of a float. */
INLINE f32x16 half_to_float(u16x16 halves) {
    i32x16 bits = __builtin_convertvector(halves, i32x16), magnitude = bits & 0x7fff, is_small = magnitude < 0x400;
    i32x16 small = (i32x16)(__builtin_convertvector(magnitude, f32x16) * 0x1p-24f);
    i32x16 normal = (magnitude << 13) + (112 << 23);
    return (f32x16)((small & is_small) | (normal & ~is_small) | (bits & 0x8000) << 16);
}

/* To nearest, ties to even, for numbers within the range. */
INLINE u16x16 float_to_half(f32x16 x) {
    i32x16 bits = (i32x16)x, magnitude = bits & 0x7fffffff, is_small = magnitude < 113 << 23;
    i32x16 small = round_to_integer((f32x16)(magnitude & is_small) * 0x1p24f);
    i32x16 normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    i32x16 half = (small & is_small) | (normal & ~is_small) | (bits >> 16 & 0x8000);
    return __builtin_convertvector(half, u16x16);
}
#else
INLINE f32x16 half_to_float(u16x16 halves) {
    return __builtin_convertvector((f16x16)halves, f32x16);
}

INLINE u16x16 float_to_half(f32x16 x) {
    return (u16x16)__builtin_convertvector(x, f16x16);
}
#endif

INLINE f32x16 load_half(const uint16_t *from) {
    u16x16 halves;
    memcpy(&halves, from, sizeof halves);
    return half_to_float(halves);
}

/* bfloat16 is the upper half of a float. */
INLINE f32x16 load_bfloat(const uint16_t *from) {
    u16x16 x;
    memcpy(&x, from, sizeof x);
    return (f32x16)(__builtin_convertvector(x, u32x16) << 16);
}

/* Sums stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("clang loop unroll(full)")

#ifdef WITHOUT_FMA_INSTRUCTIONS
/* In double, where the product is exact. A sum that is not becomes the one of its two neighbours with an odd mantissa: that
 * is never a tie, so rounding it to float rounds the exact sum. (The C library takes 50 times as long.)
 * Source: Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd. */
INLINE f32x8 fma8(f32x8 a, f32x8 b, f32x8 c) {
    f64x8 product = __builtin_convertvector(a, f64x8) * __builtin_convertvector(b, f64x8);
    f64x8 addend = __builtin_convertvector(c, f64x8), sum = product + addend, added = sum - product;
    f64x8 error = (product - (sum - added)) + (addend - added);
    i64x8 bits = (i64x8)sum, is_even = (bits & 1) - 1;
    i64x8 outwards = 1 - 2 * (i64x8)((u64x8)(bits ^ (i64x8)error) >> 63);
    bits += outwards & is_even & (error < 0 | error > 0); /* of an infinite sum it is NaN */
    return __builtin_convertvector((f64x8)bits, f32x8);
}

static __attribute__((noinline)) f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) {
    f32x8 x[2], y[2], z[2];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    memcpy(z, &c, sizeof c);
    UNROLL for (int half = 0; half < 2; half++)
        z[half] = fma8(x[half], y[half], z[half]);
    memcpy(&c, z, sizeof c);
    return c;
}
#else
INLINE f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) {
    return __builtin_elementwise_fma(a, b, c);
}
#endif

/* Lanes of a where the mask has all bits, of b where it has none. */
INLINE f32x16 choose(i32x16 mask, f32x16 a, f32x16 b) {
    return (f32x16)(((i32x16)a & mask) | ((i32x16)b & ~mask));
}

INLINE f32x16 max16(f32x16 a, f32x16 b) {
    return choose(a > b, a, b);
}

/* Numbers beyond the range of float16 are clipped. */
INLINE void store_half(uint16_t *to, f32x16 x) {
    u16x16 halves = float_to_half(-max16(-max16(x, splat(-65504.0f)), splat(-65504.0f)));
    memcpy(to, &halves, sizeof halves);
}

INLINE float sum_lanes(f32x16 x) {
    f32x8 y = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    f32x4 z = __builtin_shufflevector(y, y, 0, 1, 2, 3) + __builtin_shufflevector(y, y, 4, 5, 6, 7);
    return (z[0] + z[2]) + (z[1] + z[3]);
}

/* The lanes of 16 vectors joined to one lane each, sums by the tree of `sum_lanes`: every step joins halves of two vectors
 * side by side. */
#define JOIN_LANES_OF_16(name, vector, join)                                                                           \
    INLINE vector name(vector *x) {                                                                                    \
        for (int i = 0; i < 8; i++)                                                                                    \
            x[i] = join(__builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20,    \
                                                21, 22, 23),                                                           \
                        __builtin_shufflevector(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,  \
                                                28, 29, 30, 31));                                                      \
        for (int i = 0; i < 4; i++)                                                                                    \
            x[i] = join(__builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24,  \
                                                25, 26, 27),                                                           \
                        __builtin_shufflevector(x[2 * i], x[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23,    \
                                                28, 29, 30, 31));                                                      \
        for (int i = 0; i < 2; i++)                                                                                    \
            x[i] = join(__builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24,  \
                                                25, 28, 29),                                                           \
                        __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23,    \
                                                26, 27, 30, 31));                                                      \
        return join(__builtin_shufflevector(x[0], x[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),    \
                    __builtin_shufflevector(x[0], x[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31));   \
    }
#define ADD(a, b) ((a) + (b))
JOIN_LANES_OF_16(sum_lanes_of_16, f32x16, ADD)
JOIN_LANES_OF_16(integer_sum_lanes_of_16, i32x16, ADD)
JOIN_LANES_OF_16(integer_max_lanes_of_16, i32x16, __builtin_elementwise_max)
#undef ADD
#undef JOIN_LANES_OF_16

/* Transpose 16 rows of 16 numbers: interleaving each row i with row i + 8, four times, moves them to their places. */
INLINE void transpose(f32x16 *rows) {
    for (int round = 0; round < 4; round++) {
        f32x16 shuffled[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            f32x16 a = rows[i], b = rows[i + LANES / 2];
            shuffled[2 * i] =
                __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            shuffled[2 * i + 1] =
                __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(rows, shuffled, sizeof shuffled);
    }
}

INLINE float max_lanes(f32x16 x) {
    x = max16(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    x = max16(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    x = max16(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    return x[0] > x[1] ? x[0] : x[1];
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

INLINE f32x16 sqrt16(f32x16 x) {
    return __builtin_elementwise_sqrt(x);
}

/* 1 / (1 + e^-x), to 1e-7. */
INLINE f32x16 sigmoid16(f32x16 x) {
    return 1.0f / (1.0f + exp16(-max16(x, splat(-87.0f))));
}

/* To 2e-7; of a small number that is not relative. */
INLINE f32x16 tanh16(f32x16 x) {
    return fma16(sigmoid16(2.0f * x), splat(2.0f), splat(-1.0f));
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

/* Replaces numbers of a row, a multiple of 16. Many in a row keep the processor busy; one behind each product waits. */
INLINE void gelu_row(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        store(x + i, gelu16(load(x + i)));
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

/* Numbers that are all smaller become 0 as integers: the sum of their squares, which bounds these, would lose bits. */
static const float SMALLEST_PEAK = 1e-18f;

/* Magnitudes compare as their bits do, among which those of NaN are the largest. */
INLINE i32x16 magnitude_bits(f32x16 x) {
    return (i32x16)x & 0x7fffffff;
}

INLINE float float_of_bits(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE float mean_of(const float *x, int32_t columns) {
    f32x16 total = splat(0);
    for (int32_t column = 0; column < columns; column += LANES)
        total = total + load(x + column);
    return sum_lanes(total) / (float)columns;
}

/* The mean, and the factor that makes the variance of x - mean 1. */
INLINE float normalising_factor(const float *x, int32_t columns, float *mean) {
    f32x16 squares = splat(0);
    *mean = mean_of(x, columns);
    for (int32_t column = 0; column < columns; column += LANES) {
        f32x16 centred = load(x + column) - *mean;
        squares = fma16(centred, centred, squares);
    }
    return 1 / sqrtf(sum_lanes(squares) / (float)columns + 1e-5f);
}

#endif
