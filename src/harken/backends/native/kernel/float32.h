/* The products and attentions of a model in float32: the same functions as for integers, of numbers that are not
 * quantised.
 *
 * Lanes are rows of the matrix here, too, and a sum is one chain of fused multiplications and additions in the order of
 * the columns. So it has the same bits on every processor, whatever is multiplied with it. */
#include "simd.h"

#include "kernels.h"

/* Some groups of the matrix times a tile of vectors, whose sums stay in registers. */
INLINE void float_tile(const struct harken_matrix *matrix, int64_t group, int n_groups, const float *x, int rows,
                       enum harken_output output, void *const *y, int64_t shift) {
    int64_t columns = matrix->columns, group_size = columns * HARKEN_GROUP;
    const float *weights = (const float *)matrix->weights + group * group_size;
    f32x16 sums[ROW_TILE][GROUP_TILE];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int g = 0; g < n_groups; g++)
            sums[i][g] = splat(0);
    for (int64_t column = 0; column < columns; column++) {
        f32x16 lanes[GROUP_TILE];
        UNROLL for (int g = 0; g < n_groups; g++)
            lanes[g] = load(weights + g * group_size + column * HARKEN_GROUP);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int g = 0; g < n_groups; g++)
                sums[i][g] = fma16(lanes[g], splat(x[i * columns + column]), sums[i][g]);
    }
    for (int g = 0; g < n_groups; g++) {
        int64_t row = (group + g) * HARKEN_GROUP;
        f32x16 bias = matrix->bias ? load(matrix->bias + row) : splat(0);
        for (int i = 0; i < rows; i++) {
            float *to = (float *)y[i] + shift + row;
            f32x16 result = sums[i][g] + bias;
            if (output == HARKEN_ADD)
                result = load(to) + result;
            else if (output == HARKEN_GELU)
                result = gelu16(result);
            store(to, result);
        }
    }
}

/* A copy of `float_tile` for some numbers of vectors. */
#define TILE_OF(rows)                                                                                                  \
    static void float_tile_##rows(const struct harken_matrix *matrix, int64_t group, int64_t n_groups, const float *x, \
                                  enum harken_output output, void *const *y, int64_t shift) {                          \
        if (n_groups >= GROUP_TILE)                                                                                    \
            float_tile(matrix, group, GROUP_TILE, x, rows, output, y, shift);                                          \
        else                                                                                                           \
            float_tile(matrix, group, 1, x, rows, output, y, shift);                                                   \
    }
TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)
#if ROW_TILE == 12
TILE_OF(12)
#endif
#undef TILE_OF

static void float_linear(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                         const struct harken_activations *x, int32_t n, enum harken_output output, void *const *y,
                         int64_t shift) {
    typedef void tile_function(const struct harken_matrix *, int64_t, int64_t, const float *, enum harken_output,
                               void *const *, int64_t);
    static tile_function *const tiles[] = {
        float_tile_1, float_tile_2, float_tile_3, float_tile_4, float_tile_5, float_tile_6,
#if ROW_TILE == 12
        float_tile_12,
#endif
    };
    for (int64_t group = first_group; group < end_group; group += end_group - group >= GROUP_TILE ? GROUP_TILE : 1)
        for (int64_t first = 0, size; first < n; first += size) {
            int64_t rest = n - first;
            size = rest >= ROW_TILE ? ROW_TILE : rest < HARKEN_SMALL_TILE ? rest : HARKEN_SMALL_TILE;
            tiles[size <= HARKEN_SMALL_TILE ? size - 1 : HARKEN_SMALL_TILE](
                matrix, group, end_group - group, (const float *)x->values + first * matrix->columns, output, y + first,
                shift);
        }
}

static void float_multiply(const struct harken_matrix *matrix, const struct harken_rows *x, int32_t n,
                           enum harken_output output, float *y, int64_t stride) {
    void *to[HARKEN_BLOCK_ROWS];
    for (int32_t i = 0; i < n; i++)
        to[i] = y + i * stride;
    struct harken_activations activations = {.values = x->values};
    float_linear(matrix, 0, (matrix->rows + HARKEN_GROUP - 1) / HARKEN_GROUP, &activations, n, output, to, 0);
}

static void float_row(const float *x, int32_t columns, int normalise, float *to) {
    float mean = 0, factor = 1;
    if (normalise)
        factor = normalising_factor(x, columns, &mean);
    for (int32_t column = 0; column < columns; column += LANES)
        store(to + column, (load(x + column) - mean) * factor);
}

static void float_vector(const float *x, int32_t columns, int normalise, int bits, struct harken_activations *to,
                         int32_t i) {
    (void)bits;
    float_row(x, columns, normalise, (float *)to->values + (int64_t)i * columns);
}

static void float_rows(const float *x, int64_t stride, int32_t n, int32_t columns, int normalise,
                       const struct harken_rows *to) {
    for (int32_t i = 0; i < n; i++)
        float_row(x + i * stride, columns, normalise, (float *)to->values + (int64_t)i * columns);
}

static void float_pack_keys(const float *keys, int64_t stride, int32_t n, const struct harken_matrix *matrix) {
    int32_t head_size = matrix->columns, padded = (n + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    for (int32_t i = 0; i < padded; i++) {
        float *to = (float *)matrix->weights + (int64_t)(i / HARKEN_GROUP * head_size) * HARKEN_GROUP + i % HARKEN_GROUP;
        for (int32_t channel = 0; channel < head_size; channel++)
            to[channel * HARKEN_GROUP] = i < n ? keys[i * stride + channel] : 0;
    }
}

static void float_pack_values(const float *values, int64_t stride, int32_t n, const struct harken_matrix *matrix) {
    int32_t padded = (n + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    float *to = (float *)matrix->weights;
    for (int32_t channel = 0; channel < matrix->rows; channel += LANES)
        for (int32_t i = 0; i < padded; i++, to += LANES)
            store(to, i < n ? load(values + i * stride + channel) : splat(0));
}

static void float_window_attention(const float *queries, int64_t stride, int32_t n, const struct harken_matrix *keys,
                                   const struct harken_matrix *values, const struct harken_rows *rows, float *scores,
                                   float *to, int64_t to_stride) {
    float totals[HARKEN_BLOCK_ROWS], peak;
    int64_t padded = values->columns;
    float_rows(queries, stride, n, keys->columns, 0, rows);
    float_multiply(keys, rows, n, HARKEN_STORE, scores, padded);
    for (int64_t i = 0; i < n; i++)
        totals[i] = exponentials(scores + i * padded, keys->rows, &peak);
    float_multiply(values, &(struct harken_rows){.values = scores}, n, HARKEN_STORE, to, to_stride);
    for (int64_t i = 0; i < n; i++)
        for (int32_t channel = 0; channel < values->rows; channel += LANES)
            store(to + i * to_stride + channel, load(to + i * to_stride + channel) / totals[i]);
}

static void float_cross_attention(const float *queries, int64_t stride, int32_t n, const struct harken_matrix *keys,
                                  const struct harken_matrix *values, struct harken_partial *const *to,
                                  float *const *weights) {
    float numbers[HARKEN_ROWS * HARKEN_MAX_HEAD_SIZE] __attribute__((aligned(64)));
    float scores[HARKEN_ROWS * HARKEN_MOST_IN_A_PART] __attribute__((aligned(64)));
    int64_t padded = values->columns;
    struct harken_rows rows = {.values = numbers};
    float_rows(queries, stride, n, keys->columns, 0, &rows);
    float_multiply(keys, &rows, n, HARKEN_STORE, scores, padded);
    for (int64_t i = 0; i < n; i++) {
        to[i]->total = exponentials(scores + i * padded, keys->rows, &to[i]->peak);
        if (weights[i])
            memcpy(weights[i], scores + i * padded, (size_t)keys->rows * sizeof *scores);
    }
    rows.values = scores;
    float_multiply(values, &rows, n, HARKEN_STORE, numbers, values->rows);
    for (int64_t i = 0; i < n; i++)
        memcpy(to[i]->values, numbers + i * values->rows, (size_t)values->rows * sizeof *numbers);
}
