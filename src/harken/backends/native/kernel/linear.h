/* Linear layers: integers in, integers summed, floats out.
 *
 * Each lane holds one row of the matrix, so nothing is summed across lanes. The products of a block are summed as
 * integers, exactly; only the sums of blocks are added as floats, in the order of the blocks. Weights are read once for
 * a tile of vectors. The file that includes this one multiplies: four columns of 16 rows at a time, the layout of the
 * processors' own instructions. */
#include "simd.h"

#include "kernels.h"

static const float LARGEST_HALF_NORM = 231.0f; /* rounding adds up to 2, and 233 * 140 < 2^15 */

INLINE i8x64 load_bytes(const int8_t *from) {
    i8x64 x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Adds the products of one block of some groups' rows and of n vectors to `sums`. */
INLINE void dot_block_8(const int8_t *const *weights, int n_groups, const int8_t *x, int64_t stride, int n,
                        i32x16 (*sums)[LINEAR_TILE]) {
    int first = 0;
#ifdef DOT_BLOCK_PAIR
    for (; first + 2 <= n; first += 2)
        for (int g = 0; g < n_groups; g++)
            dot_block_pair(weights[g], x + first * stride, stride, sums[g] + first);
#endif
    for (int column = 0; column < HARKEN_BLOCK; column += 4) {
        dot_weights prepared[LINEAR_GROUPS];
        for (int g = 0; g < n_groups; g++)
            prepared[g] = prepare_signed(load_bytes(weights[g] + column * HARKEN_GROUP));
        for (int i = first; i < n; i++)
            for (int g = 0; g < n_groups; g++)
                sums[g][i] = dot_signed(sums[g][i], prepared[g], x + i * stride + column);
    }
}

#ifndef SUMS_OF_PAIRS
/* The sums of a block with weights of 7 bits. They start so that weights count from 0; `pair_sums` are those of
 * harken_activations. */
typedef i32x16 sums_7;
#define COLUMNS_IN_TURN

INLINE sums_7 start_7(int32_t pair_sums) {
    return splat_integer(-64 * ((int16_t)pair_sums + (pair_sums >> 16)));
}

INLINE sums_7 dot_7(sums_7 sums, u8x64 weights, const int8_t *x) {
    return dot_unsigned(sums, weights, x);
}

INLINE i32x16 end_7(sums_7 sums) {
    return sums;
}
#endif

/* The products of one block with weights of 7 bits, stored as unsigned numbers. */
INLINE void dot_block_7(const int8_t *const *weights, int n_groups, const int8_t *x, int64_t stride,
                        const int32_t *pair_sums, int64_t n_blocks, int n, i32x16 (*sums)[LINEAR_TILE]) {
    sums_7 own[LINEAR_GROUPS][LINEAR_TILE];
    int first = 0;
    for (int g = 0; g < n_groups; g++)
        for (int i = 0; i < n; i++)
            own[g][i] = start_7(pair_sums[i * n_blocks]);
#ifdef DOT_BLOCK_PAIR
    for (; first + 2 <= n; first += 2)
        for (int g = 0; g < n_groups; g++)
            dot_block_pair(weights[g], x + first * stride, stride, own[g] + first);
#endif
    COLUMNS_IN_TURN for (int column = 0; column < HARKEN_BLOCK; column += 4) {
        u8x64 loaded[LINEAR_GROUPS];
        for (int g = 0; g < n_groups; g++)
            loaded[g] = (u8x64)load_bytes(weights[g] + column * HARKEN_GROUP);
        for (int i = first; i < n; i++)
            for (int g = 0; g < n_groups; g++)
                own[g][i] = dot_7(own[g][i], loaded[g], x + i * stride + column);
    }
    for (int g = 0; g < n_groups; g++)
        for (int i = 0; i < n; i++)
            sums[g][i] = end_7(own[g][i]);
}

INLINE void dot_block_4(const int8_t *weights, const int8_t *x, int64_t stride, int n, i32x16 *sums) {
    for (int column = 0; column < HARKEN_BLOCK; column += 8) {
        u8x64 both = (u8x64)load_bytes(weights + column * HARKEN_GROUP / 2);
        u8x64 lower = both & 15, upper = both >> 4;
        for (int i = 0; i < n; i++) {
            sums[i] = dot_unsigned(sums[i], lower, x + i * stride + column);
            sums[i] = dot_unsigned(sums[i], upper, x + i * stride + column + 4);
        }
    }
}

/* The sum of a block starts so that weights count from 0, where they are stored as unsigned numbers. */
INLINE int32_t first_sum(int32_t offset, int bits) {
    return bits == 4 ? offset / (128 / 8) : WEIGHTS_ARE_UNSIGNED ? offset : 0;
}

/* The rows of some groups times vectors `first` to `first + n`. */
INLINE void linear_tile(const struct harken_matrix *matrix, int64_t group, int n_groups,
                        const struct harken_activations *x, int64_t first, int n, int bits, enum harken_output output,
                        void *const *y, int64_t shift) {
    int64_t n_blocks = matrix->columns / HARKEN_BLOCK;
    int64_t block_bytes = HARKEN_BLOCK * HARKEN_GROUP / (bits == 4 ? 2 : 1);
    const int8_t *weights[LINEAR_GROUPS];
    const uint16_t *scales[LINEAR_GROUPS];
    const int8_t *values = (const int8_t *)x->values + first * matrix->columns;
    const float *x_scales = x->scales + first * n_blocks;
    const int32_t *offsets = x->offsets + first * n_blocks;
    f32x16 totals[LINEAR_GROUPS][LINEAR_TILE];
    for (int g = 0; g < n_groups; g++) {
        weights[g] = (const int8_t *)matrix->weights + (group + g) * n_blocks * block_bytes;
        scales[g] = (const uint16_t *)matrix->scales + (group + g) * n_blocks * HARKEN_GROUP;
        for (int i = 0; i < n; i++)
            totals[g][i] = splat(0);
    }
    for (int64_t block = 0; block < n_blocks; block++) {
        i32x16 sums[LINEAR_GROUPS][LINEAR_TILE];
        for (int g = 0; bits != 7 && g < n_groups; g++)
            for (int i = 0; i < n; i++)
                sums[g][i] = splat_integer(first_sum(offsets[i * n_blocks + block], bits));
        if (bits == 8)
            dot_block_8(weights, n_groups, values + block * HARKEN_BLOCK, matrix->columns, n, sums);
        else if (bits == 7)
            dot_block_7(weights, n_groups, values + block * HARKEN_BLOCK, matrix->columns, offsets + block, n_blocks, n,
                        sums);
        else
            for (int g = 0; g < n_groups; g++)
                dot_block_4(weights[g], values + block * HARKEN_BLOCK, matrix->columns, n, sums[g]);
        for (int g = 0; g < n_groups; g++) {
            f32x16 scale = load_bfloat(scales[g]);
            for (int i = 0; i < n; i++) {
                f32x16 both = scale * x_scales[i * n_blocks + block];
                totals[g][i] = fma16(__builtin_convertvector(sums[g][i], f32x16), both, totals[g][i]);
            }
            weights[g] += block_bytes;
            scales[g] += HARKEN_GROUP;
        }
    }
    for (int g = 0; g < n_groups; g++) {
        int64_t row = (group + g) * HARKEN_GROUP, place = shift + row;
        f32x16 bias = matrix->bias ? load(matrix->bias + row) : splat(0);
        for (int i = 0; i < n; i++) {
            float *to = y[first + i];
            f32x16 result = totals[g][i] + bias;
            if (output == HARKEN_CACHE)
                store_half((uint16_t *)y[first + i] + place, result);
            else if (output == HARKEN_ADD)
                store(to + place, load(to + place) + result);
            else
                store(to + place, result);
        }
    }
}

/* A copy of `linear_tile` for every number of vectors, so that the sums stay in registers. */
#define TILE_OF(n)                                                                                                     \
    static void linear_##n(const struct harken_matrix *matrix, int64_t group, int n_groups,                            \
                           const struct harken_activations *x, int64_t first, enum harken_output output,               \
                           void *const *y, int64_t shift) {                                                            \
        if (matrix->bits == 4)                                                                                         \
            linear_tile(matrix, group, 1, x, first, n, 4, output, y, shift);                                           \
        else if (matrix->bits == 7 && n_groups == 1)                                                                   \
            linear_tile(matrix, group, 1, x, first, n, 7, output, y, shift);                                           \
        else if (matrix->bits == 7)                                                                                    \
            linear_tile(matrix, group, LINEAR_GROUPS, x, first, n, 7, output, y, shift);                               \
        else if (n_groups == 1)                                                                                        \
            linear_tile(matrix, group, 1, x, first, n, 8, output, y, shift);                                           \
        else                                                                                                           \
            linear_tile(matrix, group, LINEAR_GROUPS, x, first, n, 8, output, y, shift);                               \
    }
TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
#if LINEAR_TILE == 8
TILE_OF(5)
TILE_OF(6)
TILE_OF(7)
TILE_OF(8)
#endif
#undef TILE_OF

static void linear(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                   const struct harken_activations *x, int32_t n, enum harken_output output, void *const *y,
                   int64_t shift) {
    typedef void tile_function(const struct harken_matrix *, int64_t, int, const struct harken_activations *, int64_t,
                               enum harken_output, void *const *, int64_t);
    static tile_function *const tiles[] = {
        linear_1, linear_2, linear_3, linear_4,
#if LINEAR_TILE == 8
        linear_5, linear_6, linear_7, linear_8,
#endif
    };
    for (int64_t group = first_group; group < end_group;) {
        int n_groups = matrix->bits == 4 || end_group - group < LINEAR_GROUPS ? 1 : LINEAR_GROUPS;
        for (int64_t first = 0; first < n; first += LINEAR_TILE) {
            int64_t size = n - first < LINEAR_TILE ? n - first : LINEAR_TILE;
            tiles[size - 1](matrix, group, n_groups, x, first, output, y, shift);
        }
        for (int32_t i = 0; output == HARKEN_GELU && i < n; i++)
            gelu_row((float *)y[i] + shift + group * HARKEN_GROUP, n_groups * HARKEN_GROUP);
        group += n_groups;
    }
}

/* x, or x with mean 0 and variance 1, as integers with a scale for every block. Magnitudes are compared by their bits,
 * among which NaN is the largest: a block with a number that is not finite gets the scale NaN.
 *
 * For weights of 7 bits each half of a block, its even or its odd pairs of columns, has a norm of at most
 * LARGEST_HALF_NORM. That of the weights is at most 140. By the inequality of Cauchy and Schwarz the sum of the products
 * of a half then stays within 16 bits, in which AVX2 can sum them. */
static void quantise(const float *x, int32_t columns, int normalise, int bits, struct harken_activations *to,
                     int32_t i) {
    const i32x16 even = {-1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0}; /* lanes of even pairs */
    float mean = 0, factor = 1;
    if (normalise)
        factor = normalising_factor(x, columns, &mean);
    int32_t n_blocks = columns / HARKEN_BLOCK;
    for (int32_t block = 0; block < n_blocks; block++) {
        f32x16 parts[HARKEN_BLOCK / LANES];
        i32x16 largest = splat_integer(0);
        for (int part = 0; part < HARKEN_BLOCK / LANES; part++) {
            parts[part] = (load(x + block * HARKEN_BLOCK + part * LANES) - mean) * factor;
            largest = __builtin_elementwise_max(largest, magnitude_bits(parts[part]));
        }
        float peak = float_of_bits(__builtin_reduce_max(largest));
        float inverse = peak > 1e-30f ? 127 / peak : 0, scale = peak * (1.0f / 127);
        if (bits == 7 && inverse > 0) {
            f32x16 squares = parts[0] * parts[0] + parts[1] * parts[1];
            float even_squares = sum_lanes((f32x16)((i32x16)squares & even));
            float odd_squares = sum_lanes((f32x16)((i32x16)squares & ~even));
            float norm = sqrtf(even_squares > odd_squares ? even_squares : odd_squares);
            if (norm * inverse > LARGEST_HALF_NORM)
                inverse = LARGEST_HALF_NORM / norm, scale = norm * (1 / LARGEST_HALF_NORM);
        }
        int8_t *bytes = (int8_t *)to->values + (int64_t)i * columns + block * HARKEN_BLOCK;
        i32x16 sums = splat_integer(0);
        for (int part = 0; part < HARKEN_BLOCK / LANES; part++) {
            i32x16 integers = round_to_integer(parts[part] * inverse);
            i8x16 narrow = __builtin_convertvector(integers, i8x16);
            memcpy(bytes + part * LANES, &narrow, LANES);
            sums = sums + integers;
        }
        uint32_t total = (uint32_t)__builtin_reduce_add(sums), even_total = (uint32_t)__builtin_reduce_add(sums & even);
        to->scales[(int64_t)i * n_blocks + block] = peak < INFINITY ? scale : NAN;
        to->offsets[(int64_t)i * n_blocks + block] =
            (int32_t)(bits == 7 ? (even_total & 0xffff) | (total - even_total) << 16 : -128u * total);
    }
}
