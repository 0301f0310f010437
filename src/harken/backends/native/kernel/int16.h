/* Products of matrices in 16-bit integers, for the many rows of an encoder.
 *
 * A row of floats becomes integers with one scale, chosen so that their Euclidean norm is at most LARGEST_NORM. By the
 * inequality of Cauchy and Schwarz no sum of products of two such rows leaves 32 bits, however long they are: so sums
 * are exact, and the norm is as large as it can be. The error, 10^-4 of a result, lies between those of float32 and of
 * bfloat16. The instructions for it do twice the multiplications of those for float32. */
#include "simd.h"

#include "kernels.h"

static const float LARGEST_NORM = 46000.0f; /* rounding adds less than 100, and 46,100^2 < 2^31 */
static const float LARGEST_INT16 = 32767.0f;

typedef int16_t i16x16 __attribute__((vector_size(32)));

INLINE i16x16 to_int16(f32x16 x) {
    return __builtin_convertvector(round_to_integer(x), i16x16);
}

INLINE i32x16 magnitude_bits(f32x16 x) {
    return (i32x16)x & 0x7fffffff;
}

INLINE float float_of_bits(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The factor that makes integers of numbers with this peak and this sum of squares. */
INLINE float integer_factor(float peak, float squares) {
    if (!(peak > 1e-18f))
        return 0;
    float by_peak = LARGEST_INT16 / peak, by_norm = LARGEST_NORM / sqrtf(squares);
    return by_peak < by_norm ? by_peak : by_norm;
}

/* The scale of such integers. Numbers that are not finite give NaN. */
INLINE float integer_scale(float factor, float squares) {
    return !(squares < INFINITY) ? NAN : factor > 0 ? 1 / factor : 0;
}

INLINE float mean_of(const float *x, int32_t columns) {
    f32x16 total = splat(0);
    for (int32_t column = 0; column < columns; column += LANES)
        total = total + load(x + column);
    return sum_lanes(total) / (float)columns;
}

/* x - mean as integers; returns their scale, and the sum of the squares. */
INLINE float quantise_row(const float *x, int32_t columns, float mean, int16_t *to, float *sum_of_squares) {
    f32x16 squares = splat(0);
    i32x16 largest = splat_integer(0);
    for (int32_t column = 0; column < columns; column += LANES) {
        f32x16 centred = load(x + column) - mean;
        squares = fma16(centred, centred, squares);
        largest = __builtin_elementwise_max(largest, magnitude_bits(centred));
    }
    *sum_of_squares = sum_lanes(squares);
    float factor = integer_factor(float_of_bits(__builtin_reduce_max(largest)), *sum_of_squares);
    for (int32_t column = 0; column < columns; column += LANES) {
        i16x16 integers = to_int16((load(x + column) - mean) * factor);
        memcpy(to + column, &integers, sizeof integers);
    }
    return integer_scale(factor, *sum_of_squares);
}

static void quantise_rows(const float *x, int64_t stride, int32_t n, int32_t columns, int normalise,
                          const struct harken_rows *to) {
    for (int32_t i = 0; i < n; i++) {
        float squares, mean = normalise ? mean_of(x + i * stride, columns) : 0;
        float scale = quantise_row(x + i * stride, columns, mean, to->values + (int64_t)i * columns, &squares);
        to->scales[i] = normalise ? scale / sqrtf(squares / (float)columns + 1e-5f) : scale;
    }
    int32_t padded = (n + HARKEN_ROWS - 1) / HARKEN_ROWS * HARKEN_ROWS;
    memset(to->values + (int64_t)n * columns, 0, (size_t)(padded - n) * (size_t)columns * sizeof *to->values);
}

/* Sums stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("clang loop unroll(full)")

/* Some groups of the matrix times a tile of rows, of which n count. */
INLINE void multiply_tile(const struct harken_matrix16 *matrix, int64_t group, int n_groups,
                          const struct harken_rows *x, int64_t first, int32_t n, enum harken_output output, float *y,
                          int64_t stride) {
    i32x16 sums[ROW_TILE][GROUP_TILE];
    UNROLL for (int i = 0; i < ROW_TILE; i++)
        UNROLL for (int g = 0; g < n_groups; g++)
            sums[i][g] = splat_integer(0);
    int64_t columns = matrix->columns, group_size = columns * HARKEN_GROUP;
    const int16_t *weights = matrix->weights + group * group_size, *values = x->values + first * columns;
    for (int64_t column = 0; column < columns; column += 2) {
        pair_weights pairs[GROUP_TILE];
        UNROLL for (int g = 0; g < n_groups; g++)
            pairs[g] = load_pairs(weights + g * group_size + column * HARKEN_GROUP);
        UNROLL for (int i = 0; i < ROW_TILE; i++)
            UNROLL for (int g = 0; g < n_groups; g++)
                sums[i][g] = dot_pairs(sums[i][g], pairs[g], values + i * columns + column);
    }
    for (int g = 0; g < n_groups; g++) {
        int64_t row = (group + g) * HARKEN_GROUP;
        f32x16 scales = load(matrix->scales + row), bias = matrix->bias ? load(matrix->bias + row) : splat(0);
        for (int i = 0; i < n; i++) {
            f32x16 scale = scales * x->scales[first + i];
            f32x16 result = fma16(__builtin_convertvector(sums[i][g], f32x16), scale, bias);
            float *to = y + (first + i) * stride + row;
            if (output == HARKEN_ADD)
                result = load(to) + result;
            else if (output == HARKEN_GELU)
                result = gelu16(result);
            store(to, result);
        }
    }
}

static void multiply(const struct harken_matrix16 *matrix, const struct harken_rows *x, int32_t n,
                     enum harken_output output, float *y, int64_t stride) {
    int64_t n_groups = (matrix->rows + HARKEN_GROUP - 1) / HARKEN_GROUP, group = 0;
    for (; group + GROUP_TILE <= n_groups; group += GROUP_TILE)
        for (int32_t first = 0; first < n; first += ROW_TILE)
            multiply_tile(matrix, group, GROUP_TILE, x, first, n - first < ROW_TILE ? n - first : ROW_TILE, output, y,
                          stride);
    for (; group < n_groups; group++)
        for (int32_t first = 0; first < n; first += ROW_TILE)
            multiply_tile(matrix, group, 1, x, first, n - first < ROW_TILE ? n - first : ROW_TILE, output, y, stride);
}

/* -- The attention of a window to itself ------------------------------------------------------------------------- */

/* Keys, n rows of floats, as a matrix with a row for each. `row` has room for one. */
static void pack_key_matrix(const float *keys, int64_t stride, int32_t n, int32_t head_size, int16_t *row,
                            int16_t *weights, float *scales) {
    int32_t padded = (n + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    for (int32_t i = 0; i < padded; i++) {
        float squares;
        if (i < n)
            scales[i] = quantise_row(keys + i * stride, head_size, 0, row, &squares);
        else
            memset(row, 0, (size_t)head_size * sizeof *row), scales[i] = 0;
        int16_t *to = weights + (int64_t)(i / HARKEN_GROUP * head_size) * HARKEN_GROUP + i % HARKEN_GROUP * 2;
        for (int32_t channel = 0; channel < head_size; channel += 2)
            memcpy(to + channel * HARKEN_GROUP, row + channel, 2 * sizeof *row);
    }
}

/* Values, n rows of floats, as a matrix with a row for each channel and a column for each of `padded` positions. */
static void pack_value_matrix(const float *values, int64_t stride, int32_t n, int32_t padded, int32_t head_size,
                              int16_t *weights, float *scales) {
    for (int32_t channel = 0; channel < head_size; channel += LANES) {
        f32x16 squares = splat(0), factors, channel_scales;
        i32x16 largest = splat_integer(0);
        for (int32_t i = 0; i < n; i++) {
            f32x16 value = load(values + i * stride + channel);
            squares = fma16(value, value, squares);
            largest = __builtin_elementwise_max(largest, magnitude_bits(value));
        }
        for (int lane = 0; lane < LANES; lane++) {
            factors[lane] = integer_factor(((f32x16)largest)[lane], squares[lane]);
            channel_scales[lane] = integer_scale(factors[lane], squares[lane]);
        }
        store(scales + channel, channel_scales);
        for (int32_t i = 0; i < padded; i += 2, weights += 2 * LANES) {
            i32x16 even = i < n ? round_to_integer(load(values + i * stride + channel) * factors) : splat_integer(0);
            i32x16 odd =
                i + 1 < n ? round_to_integer(load(values + (i + 1) * stride + channel) * factors) : splat_integer(0);
            i32x16 pairs = (even & 0xffff) | odd << 16;
            memcpy(weights, &pairs, sizeof pairs);
        }
    }
}

/* The softmax of n rows of scores, each of so many columns, as integers; the scores are lost. */
static void softmax_rows(float *scores, int64_t stride, int32_t n, int32_t columns, const struct harken_rows *to) {
    for (int32_t i = 0; i < n; i++) {
        float *row = scores + i * stride;
        int16_t *integers = to->values + i * stride;
        for (int32_t column = columns; column < stride; column++)
            row[column] = -INFINITY;
        f32x16 largest = load(row), total = splat(0), squares = splat(0);
        for (int32_t column = LANES; column < stride; column += LANES)
            largest = max16(largest, load(row + column));
        float peak = max_lanes(largest);
        for (int32_t column = 0; column < stride; column += LANES) {
            f32x16 weights = exp16(load(row + column) - peak);
            store(row + column, weights);
            total = total + weights;
            squares = fma16(weights, weights, squares);
        }
        float factor = integer_factor(1, sum_lanes(squares));
        for (int32_t column = 0; column < stride; column += LANES) {
            i16x16 rounded = to_int16(load(row + column) * factor);
            memcpy(integers + column, &rounded, sizeof rounded);
        }
        to->scales[i] = 1 / (factor * sum_lanes(total));
    }
    int32_t padded = (n + HARKEN_ROWS - 1) / HARKEN_ROWS * HARKEN_ROWS;
    memset(to->values + n * stride, 0, (size_t)(padded - n) * (size_t)stride * sizeof *to->values);
}

static void window_attention(const float *queries, int64_t stride, int32_t n, const struct harken_matrix16 *keys,
                             const struct harken_matrix16 *values, const struct harken_rows *rows, float *scores,
                             float *to, int64_t to_stride) {
    quantise_rows(queries, stride, n, keys->columns, 0, rows);
    multiply(keys, rows, n, HARKEN_STORE, scores, values->columns);
    softmax_rows(scores, values->columns, n, keys->rows, rows);
    multiply(values, rows, n, HARKEN_STORE, to, to_stride);
}

/* y = x with mean 0 and variance 1, times gain, plus bias. */
static void normalise_row(const float *x, int32_t columns, const float *gain, const float *bias, float *y) {
    float mean = mean_of(x, columns);
    f32x16 squares = splat(0);
    for (int32_t column = 0; column < columns; column += LANES) {
        f32x16 centred = load(x + column) - mean;
        squares = fma16(centred, centred, squares);
    }
    float factor = 1 / sqrtf(sum_lanes(squares) / (float)columns + 1e-5f);
    for (int32_t column = 0; column < columns; column += LANES)
        store(y + column, fma16((load(x + column) - mean) * factor, load(gain + column), load(bias + column)));
}
