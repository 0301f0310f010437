/* Products of matrices in 16-bit integers, for the many rows of an encoder.
 *
 * A row of floats becomes integers with one scale, chosen so that their Euclidean norm is at most LARGEST_NORM. By the
 * inequality of Cauchy and Schwarz no sum of products of two such rows leaves 32 bits: so sums are exact, and the norm
 * is as large as it can be. The error, some 10^-4 of a result, lies between those of float32 and of bfloat16. On x86 the
 * instructions for it do twice the multiplications of those for float32, on ARM64 as many. */
#include "simd.h"

#include "kernels.h"

static const float LARGEST_NORM = 46000.0f; /* rounding adds up to 100 for 40,000 numbers, and 46,100^2 < 2^31 */
static const float LARGEST_INT16 = 32767.0f, LARGEST_INT8 = 127.0f;

typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef int16_t i16x32 __attribute__((vector_size(64)));
typedef int8_t i8x32 __attribute__((vector_size(32)));

INLINE i16x16 to_int16(f32x16 x) {
    return __builtin_convertvector(round_to_integer(x), i16x16);
}

/* The factor that makes integers, of magnitudes up to `largest`, of numbers with this peak and this sum of squares. */
INLINE float integer_factor(float peak, float squares, float largest) {
    if (!(peak > SMALLEST_PEAK))
        return 0;
    float by_peak = largest / peak, by_norm = LARGEST_NORM / sqrtf(squares);
    return by_peak < by_norm ? by_peak : by_norm;
}

/* The scale of such integers. Numbers that are not finite give NaN. */
INLINE float integer_scale(float factor, float squares) {
    return !(squares < INFINITY) ? NAN : factor > 0 ? 1 / factor : 0;
}

/* x - mean as integers of magnitudes up to `most`; returns their scale, and the sum of the squares. */
INLINE float quantise_row(const float *x, int32_t columns, float mean, float most, int16_t *to,
                          float *sum_of_squares) {
    f32x16 squares = splat(0);
    i32x16 largest = splat_integer(0);
    for (int32_t column = 0; column < columns; column += LANES) {
        f32x16 centred = load(x + column) - mean;
        squares = fma16(centred, centred, squares);
        largest = __builtin_elementwise_max(largest, magnitude_bits(centred));
    }
    *sum_of_squares = sum_lanes(squares);
    float factor = integer_factor(float_of_bits(__builtin_reduce_max(largest)), *sum_of_squares, most);
    for (int32_t column = 0; column < columns; column += LANES) {
        i16x16 integers = to_int16((load(x + column) - mean) * factor);
        memcpy(to + column, &integers, sizeof integers);
    }
    return integer_scale(factor, *sum_of_squares);
}

/* Sets the rows to 0 that complete the last tile. */
INLINE void clear_rest(const struct harken_rows *x, int32_t n, int64_t columns) {
    int32_t last = n % HARKEN_ROWS, rest = last > HARKEN_SMALL_TILE ? HARKEN_ROWS - last : 0;
    memset((int16_t *)x->values + n * columns, 0, (size_t)(rest * columns) * sizeof(int16_t));
}

static void quantise_rows(const float *x, int64_t stride, int32_t n, int32_t columns, int normalise,
                          const struct harken_rows *to) {
    for (int32_t i = 0; i < n; i++) {
        float squares, mean = normalise ? mean_of(x + i * stride, columns) : 0;
        int16_t *values = (int16_t *)to->values + (int64_t)i * columns;
        float scale = quantise_row(x + i * stride, columns, mean, LARGEST_INT16, values, &squares);
        to->scales[i] = normalise ? scale / sqrtf(squares / (float)columns + 1e-5f) : scale;
    }
    clear_rest(to, n, columns);
}

/* Two columns of 16 rows, from integers of 8 or 16 bits. */
INLINE pair_weights load_columns(const char *from, int bits) {
    if (bits == 16)
        return load_pairs((const int16_t *)from);
    i8x32 narrow;
    memcpy(&narrow, from, sizeof narrow);
    i16x32 pairs = __builtin_convertvector(narrow, i16x32);
    return load_pairs((const int16_t *)&pairs);
}

/* Some groups of the matrix times a tile of rows, of which n count. Matrices of 8 bits, of which a pass reads each once,
 * are fetched ahead. Few rows have several sums each, as an addition waits for the one before. */
INLINE void multiply_tile(const struct harken_matrix *matrix, int bits, int64_t group, int n_groups,
                          const struct harken_rows *x, int64_t first, int rows, int32_t n, enum harken_output output,
                          float *y, int64_t stride) {
    const int room = ROW_TILE / rows, n_sums = room >= 4 ? 4 : room >= 2 ? 2 : 1;
    i32x16 sums[4][ROW_TILE][GROUP_TILE];
    UNROLL for (int k = 0; k < n_sums; k++)
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int g = 0; g < n_groups; g++)
                sums[k][i][g] = splat_integer(0);
    int64_t columns = matrix->columns, column_size = HARKEN_GROUP * bits / 8, group_size = columns * column_size;
    const char *weights = (const char *)matrix->weights + group * group_size;
    const int16_t *values = (const int16_t *)x->values + first * columns;
    for (int64_t start = 0; start < columns; start += 2 * n_sums)
        UNROLL for (int k = 0; k < n_sums; k++) {
            int64_t column = start + 2 * k;
            pair_weights pairs[GROUP_TILE];
            if (bits == 8 && first == 0 && column % (LINE / HARKEN_GROUP) == 0)
                fetch(weights + AHEAD + column * column_size, LINE);
            UNROLL for (int g = 0; g < n_groups; g++)
                pairs[g] = load_columns(weights + g * group_size + column * column_size, bits);
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int g = 0; g < n_groups; g++)
                    sums[k][i][g] = dot_pairs(sums[k][i][g], pairs[g], values + i * columns + column);
        }
    for (int g = 0; g < n_groups; g++) {
        int64_t row = (group + g) * HARKEN_GROUP;
        f32x16 scales = load((const float *)matrix->scales + row), bias = matrix->bias ? load(matrix->bias + row) : splat(0);
        for (int i = 0; i < n; i++) {
            f32x16 scale = scales * x->scales[first + i];
            i32x16 sum = sums[0][i][g];
            UNROLL for (int k = 1; k < n_sums; k++)
                sum = sum + sums[k][i][g];
            f32x16 result = fma16(__builtin_convertvector(sum, f32x16), scale, bias);
            float *to = y + (first + i) * stride + row;
            store(to, output == HARKEN_ADD ? load(to) + result : result);
        }
    }
}

/* A copy of `multiply_tile` for some numbers of rows; others take the next larger one. */
#define TILE_OF(rows)                                                                                                  \
    static void multiply_##rows(const struct harken_matrix *matrix, int64_t group, int64_t n_groups,                 \
                                const struct harken_rows *x, int64_t first, int32_t n, enum harken_output output,      \
                                float *y, int64_t stride) {                                                            \
        if (matrix->bits == 8)                                                                                         \
            multiply_tile(matrix, 8, group, 1, x, first, rows, n, output, y, stride);                                  \
        else if (n_groups >= GROUP_TILE)                                                                               \
            multiply_tile(matrix, 16, group, GROUP_TILE, x, first, rows, n, output, y, stride);                        \
        else                                                                                                           \
            multiply_tile(matrix, 16, group, 1, x, first, rows, n, output, y, stride);                                 \
    }
TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)
#if ROW_TILE == 12
TILE_OF(8)
TILE_OF(10)
TILE_OF(12)
#endif
#undef TILE_OF

static void multiply(const struct harken_matrix *matrix, const struct harken_rows *x, int32_t n,
                     enum harken_output output, float *y, int64_t stride) {
    typedef void tile_function(const struct harken_matrix *, int64_t, int64_t, const struct harken_rows *, int64_t,
                               int32_t, enum harken_output, float *, int64_t);
    static tile_function *const tiles[] = {
        multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
#if ROW_TILE == 12
        multiply_8, multiply_8, multiply_10, multiply_10, multiply_12, multiply_12,
#endif
    };
    int64_t n_groups = (matrix->rows + HARKEN_GROUP - 1) / HARKEN_GROUP;
    for (int64_t group = 0, taken; group < n_groups; group += taken) {
        /* few rows wait for memory, and matrices of 8 bits never have more */
        taken = matrix->bits == 16 && n > ROW_TILE && n_groups - group >= GROUP_TILE ? GROUP_TILE : 1;
        for (int32_t first = 0; first < n; first += ROW_TILE) {
            int32_t size = n - first < ROW_TILE ? n - first : ROW_TILE;
            tiles[size - 1](matrix, group, taken, x, first, size, output, y, stride);
        }
        for (int32_t i = 0; output == HARKEN_GELU && i < n; i++)
            gelu_row(y + i * stride + group * HARKEN_GROUP, taken * HARKEN_GROUP);
    }
}

/* -- Attention to the positions of a window ---------------------------------------------------------------------- */

static void pack_keys(const float *keys, int64_t stride, int32_t n, const struct harken_matrix *to) {
    int16_t row[HARKEN_MAX_HEAD_SIZE] __attribute__((aligned(64)));
    int32_t head_size = to->columns, padded = (n + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    float squares, most = to->bits == 8 ? LARGEST_INT8 : LARGEST_INT16, *scales = (float *)to->scales;
    for (int32_t i = 0; i < padded; i++) {
        if (i < n)
            scales[i] = quantise_row(keys + i * stride, head_size, 0, most, row, &squares);
        else
            memset(row, 0, (size_t)head_size * sizeof *row), scales[i] = 0;
        int64_t place = (int64_t)(i / HARKEN_GROUP * head_size) * HARKEN_GROUP + i % HARKEN_GROUP * 2;
        for (int32_t channel = 0; channel < head_size; channel += 2, place += 2 * HARKEN_GROUP) {
            int8_t narrow[2] = {(int8_t)row[channel], (int8_t)row[channel + 1]};
            if (to->bits == 8)
                memcpy((int8_t *)to->weights + place, narrow, sizeof narrow);
            else
                memcpy((int16_t *)to->weights + place, row + channel, 2 * sizeof *row);
        }
    }
}

static void pack_values(const float *values, int64_t stride, int32_t n, const struct harken_matrix *to) {
    char *weights = (char *)to->weights;
    int32_t padded = (n + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    float most = to->bits == 8 ? LARGEST_INT8 : LARGEST_INT16;
    for (int32_t channel = 0; channel < to->rows; channel += LANES) {
        f32x16 squares = splat(0), factors, channel_scales;
        i32x16 largest = splat_integer(0);
        for (int32_t i = 0; i < n; i++) {
            f32x16 value = load(values + i * stride + channel);
            squares = fma16(value, value, squares);
            largest = __builtin_elementwise_max(largest, magnitude_bits(value));
        }
        for (int lane = 0; lane < LANES; lane++) {
            factors[lane] = integer_factor(((f32x16)largest)[lane], squares[lane], most);
            channel_scales[lane] = integer_scale(factors[lane], squares[lane]);
        }
        store((float *)to->scales + channel, channel_scales);
        for (int32_t i = 0; i < padded; i += 2) {
            i32x16 even = i < n ? round_to_integer(load(values + i * stride + channel) * factors) : splat_integer(0);
            i32x16 odd =
                i + 1 < n ? round_to_integer(load(values + (i + 1) * stride + channel) * factors) : splat_integer(0);
            i32x16 pairs = (even & 0xffff) | odd << 16;
            i16x16 narrow_pairs = __builtin_convertvector((even & 0xff) | odd << 8, i16x16);
            memcpy(weights, to->bits == 8 ? (const void *)&narrow_pairs : &pairs, (size_t)(to->bits * 2 * LANES / 8));
            weights += to->bits * 2 * LANES / 8;
        }
    }
}

/* One row of scores, `padded` of them of which n count, becomes exp(score - peak) and the same as integers, whose scale
 * is returned; `total` is the sum of these. */
INLINE float exponentials_row(float *scores, int32_t n, int32_t padded, int16_t *integers, float *peak, float *total) {
    for (int32_t i = n; i < padded; i++)
        scores[i] = -INFINITY;
    f32x16 largest = load(scores), squares = splat(0);
    i32x16 sums = splat_integer(0);
    for (int32_t i = LANES; i < padded; i += LANES)
        largest = max16(largest, load(scores + i));
    *peak = max_lanes(largest);
    for (int32_t i = 0; i < padded; i += LANES) {
        f32x16 weights = exp16(load(scores + i) - *peak);
        store(scores + i, weights);
        squares = fma16(weights, weights, squares);
    }
    float factor = integer_factor(1, sum_lanes(squares), LARGEST_INT16);
    for (int32_t i = 0; i < padded; i += LANES) {
        i32x16 rounded = round_to_integer(load(scores + i) * factor);
        i16x16 narrow = __builtin_convertvector(rounded, i16x16);
        memcpy(integers + i, &narrow, sizeof narrow);
        sums = sums + rounded;
    }
    *total = (float)__builtin_reduce_add(sums) / factor;
    return 1 / factor;
}

static void window_attention(const float *queries, int64_t stride, int32_t n, const struct harken_matrix *keys,
                             const struct harken_matrix *values, const struct harken_rows *rows, float *scores,
                             float *to, int64_t to_stride) {
    int32_t padded = values->columns;
    quantise_rows(queries, stride, n, keys->columns, 0, rows);
    multiply(keys, rows, n, HARKEN_STORE, scores, padded);
    for (int64_t i = 0; i < n; i++) {
        float peak, total;
        int16_t *integers = (int16_t *)rows->values + i * padded;
        rows->scales[i] = exponentials_row(scores + i * padded, keys->rows, padded, integers, &peak, &total) / total;
    }
    clear_rest(rows, n, padded);
    multiply(values, rows, n, HARKEN_STORE, to, to_stride);
}

static void cross_attention(const float *queries, int64_t stride, int32_t n, const struct harken_matrix *keys,
                            const struct harken_matrix *values, struct harken_partial *const *to,
                            float *const *weights) {
    int16_t integers[HARKEN_ROWS * HARKEN_MOST_IN_A_PART] __attribute__((aligned(64)));
    float scales[HARKEN_ROWS], scores[HARKEN_ROWS * HARKEN_MOST_IN_A_PART] __attribute__((aligned(64)));
    float mixed[HARKEN_ROWS * HARKEN_MAX_HEAD_SIZE] __attribute__((aligned(64)));
    struct harken_rows rows = {integers, scales};
    int32_t padded = values->columns;
    quantise_rows(queries, stride, n, keys->columns, 0, &rows);
    multiply(keys, &rows, n, HARKEN_STORE, scores, padded);
    for (int64_t i = 0; i < n; i++) {
        int16_t *row = integers + i * padded;
        scales[i] = exponentials_row(scores + i * padded, keys->rows, padded, row, &to[i]->peak, &to[i]->total);
        for (int32_t position = 0; weights[i] && position < keys->rows; position++)
            weights[i][position] = row[position] * scales[i];
    }
    clear_rest(&rows, n, padded);
    multiply(values, &rows, n, HARKEN_STORE, mixed, values->rows);
    for (int64_t i = 0; i < n; i++)
        memcpy(to[i]->values, mixed + i * values->rows, (size_t)values->rows * sizeof *mixed);
}

/* y = x with mean 0 and variance 1, times gain, plus bias. */
static void normalise_row(const float *x, int32_t columns, const float *gain, const float *bias, float *y) {
    float mean, factor = normalising_factor(x, columns, &mean);
    for (int32_t column = 0; column < columns; column += LANES)
        store(y + column, fma16((load(x + column) - mean) * factor, load(gain + column), load(bias + column)));
}
