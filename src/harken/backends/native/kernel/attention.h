/* Attention of single queries: to the few keys of the text so far, and to the many positions of a window. */
#include "simd.h"

#include "kernels.h"

/* Turns n scores into exp(score - peak), with 0 up to a whole vector, and returns their sum. */
INLINE float exponentials(float *scores, int32_t n, float *peak) {
    int32_t padded = (n + LANES - 1) / LANES * LANES;
    for (int32_t i = n; i < padded; i++)
        scores[i] = -INFINITY;
    f32x16 largest = load(scores);
    for (int32_t i = LANES; i < padded; i += LANES)
        largest = max16(largest, load(scores + i));
    *peak = max_lanes(largest);
    f32x16 total = splat(0);
    for (int32_t i = 0; i < padded; i += LANES) {
        f32x16 weights = exp16(load(scores + i) - *peak);
        store(scores + i, weights);
        total = total + weights;
    }
    return sum_lanes(total);
}

INLINE void self_attention_sized(const float *query, uint16_t *const *cached, int64_t key_offset, int64_t value_offset,
                                 int32_t n, int32_t head_size, float *scores, float *to) {
    f32x16 q[HARKEN_MAX_HEAD_SIZE / LANES], mixed[HARKEN_MAX_HEAD_SIZE / LANES];
    for (int32_t i = 0; i < head_size / LANES; i++) {
        q[i] = load(query + i * LANES);
        mixed[i] = splat(0);
    }
    for (int32_t first = 0; first < n; first += LANES) {
        f32x16 products[LANES];
        for (int32_t lane = 0; lane < LANES; lane++) {
            const uint16_t *key = cached[first + lane < n ? first + lane : n - 1] + key_offset;
            products[lane] = splat(0);
            for (int32_t i = 0; i < head_size / LANES; i++)
                products[lane] = fma16(q[i], load_half(key + i * LANES), products[lane]);
        }
        store(scores + first, sum_lanes_of_16(products));
    }
    float peak, total = exponentials(scores, n, &peak);
    for (int32_t position = 0; position < n; position++) {
        f32x16 weight = splat(scores[position]);
        for (int32_t i = 0; i < head_size / LANES; i++)
            mixed[i] = fma16(load_half(cached[position] + value_offset + i * LANES), weight, mixed[i]);
    }
    for (int32_t i = 0; i < head_size / LANES; i++)
        store(to + i * LANES, mixed[i] / total);
}

static void self_attention(const float *query, uint16_t *const *cached, int64_t key_offset, int64_t value_offset,
                           int32_t n, int32_t head_size, float *scores, float *to) {
    if (head_size == HARKEN_MAX_HEAD_SIZE)
        self_attention_sized(query, cached, key_offset, value_offset, n, HARKEN_MAX_HEAD_SIZE, scores, to);
    else
        self_attention_sized(query, cached, key_offset, value_offset, n, head_size, scores, to);
}

/* Scores of some queries against one tile of 16 positions. Four sums, of every fourth channel each, hide the latency of
 * additions. */
INLINE void score_tile(const float *const *queries, int n, const uint16_t *tile, int32_t head_size,
                       float (*scores)[HARKEN_CHUNK], int32_t position) {
    f32x16 sums[QUERY_TILE][4];
    for (int i = 0; i < n; i++)
        for (int part = 0; part < 4; part++)
            sums[i][part] = splat(0);
    for (int32_t channel = 0; channel < head_size; channel += 4)
        for (int part = 0; part < 4; part++) {
            f32x16 keys = load_half(tile + (channel + part) * LANES);
            for (int i = 0; i < n; i++)
                sums[i][part] = fma16(keys, splat(queries[i][channel + part]), sums[i][part]);
        }
    for (int i = 0; i < n; i++)
        store(&scores[i][position], (sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]));
}

/* Weighted sums of the values. */
INLINE void mix_values(float (*weights)[HARKEN_CHUNK], int n, const uint16_t *values, int32_t n_positions,
                       int32_t head_size, struct harken_partial *const *to) {
    f32x16 sums[QUERY_TILE][HARKEN_MAX_HEAD_SIZE / LANES];
    for (int i = 0; i < n; i++)
        for (int part = 0; part < head_size / LANES; part++)
            sums[i][part] = splat(0);
    for (int32_t position = 0; position < n_positions; position++)
        for (int part = 0; part < head_size / LANES; part++) {
            f32x16 value = load_half(values + (int64_t)position * head_size + part * LANES);
            for (int i = 0; i < n; i++)
                sums[i][part] = fma16(value, splat(weights[i][position]), sums[i][part]);
        }
    for (int i = 0; i < n; i++)
        for (int part = 0; part < head_size / LANES; part++)
            store(to[i]->values + part * LANES, sums[i][part]);
}

INLINE void cross_attention_tile(const float *const *queries, int n, const uint16_t *keys, const uint16_t *values,
                                 int32_t n_positions, int32_t head_size, struct harken_partial *const *to,
                                 float *const *weights) {
    float scores[QUERY_TILE][HARKEN_CHUNK] __attribute__((aligned(64)));
    for (int32_t position = 0; position < n_positions; position += LANES)
        score_tile(queries, n, keys + (int64_t)position * head_size, head_size, scores, position);
    for (int i = 0; i < n; i++)
        to[i]->total = exponentials(scores[i], n_positions, &to[i]->peak);
    mix_values(scores, n, values, n_positions, head_size, to);
    for (int i = 0; i < n; i++)
        if (weights[i])
            memcpy(weights[i], scores[i], (size_t)n_positions * sizeof(float));
}

/* A copy of `cross_attention_tile` for every number of queries, so that the sums stay in registers. */
#define TILE_OF(n)                                                                                                     \
    static void cross_attention_##n(const float *const *queries, const uint16_t *keys, const uint16_t *values,         \
                                    int32_t n_positions, int32_t head_size, struct harken_partial *const *to,          \
                                    float *const *weights) {                                                           \
        if (head_size == HARKEN_MAX_HEAD_SIZE)                                                                         \
            cross_attention_tile(queries, n, keys, values, n_positions, HARKEN_MAX_HEAD_SIZE, to, weights);            \
        else                                                                                                           \
            cross_attention_tile(queries, n, keys, values, n_positions, head_size, to, weights);                       \
    }
TILE_OF(1)
TILE_OF(2)
#if QUERY_TILE == 6
TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)
#endif
#undef TILE_OF

static void cross_attention(const float *const *queries, int32_t n_queries, const uint16_t *keys,
                            const uint16_t *values, int32_t n, int32_t head_size, struct harken_partial *const *to,
                            float *const *weights) {
    typedef void tile_function(const float *const *, const uint16_t *, const uint16_t *, int32_t, int32_t,
                               struct harken_partial *const *, float *const *);
    static tile_function *const tiles[] = {
        cross_attention_1, cross_attention_2,
#if QUERY_TILE == 6
        cross_attention_3, cross_attention_4, cross_attention_5, cross_attention_6,
#endif
    };
    for (int32_t i = 0; i < n_queries; i += QUERY_TILE) {
        int32_t size = n_queries - i < QUERY_TILE ? n_queries - i : QUERY_TILE;
        tiles[size - 1](queries + i, keys, values, n, head_size, to + i, weights + i);
    }
}

static void merge_chunks(const struct harken_partial *chunks, int32_t n_chunks, int32_t head_size, float *to,
                         float *factors) {
    float peak = chunks[0].peak, total = 0;
    for (int32_t chunk = 1; chunk < n_chunks; chunk++)
        peak = chunks[chunk].peak > peak ? chunks[chunk].peak : peak;
    for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
        factors[chunk] = exp16(splat(chunks[chunk].peak - peak))[0];
        total += factors[chunk] * chunks[chunk].total;
    }
    for (int32_t chunk = 0; chunk < n_chunks; chunk++)
        factors[chunk] /= total;
    for (int32_t channel = 0; channel < head_size; channel += LANES) {
        f32x16 mixed = splat(0);
        for (int32_t chunk = 0; chunk < n_chunks; chunk++)
            mixed = fma16(load(chunks[chunk].values + channel), splat(factors[chunk]), mixed);
        store(to + channel, mixed);
    }
}

static void pack_keys(const float *keys, int64_t stride, int32_t n, int32_t head_size, uint16_t *to) {
    for (int32_t first = 0; first < n; first += LANES)
        for (int32_t channel = 0; channel < head_size; channel++) {
            f32x16 column = splat(0);
            for (int32_t lane = 0; lane < LANES && first + lane < n; lane++)
                column[lane] = keys[(first + lane) * stride + channel];
            store_half(to, column);
            to += LANES;
        }
}

static void pack_values(const float *values, int64_t stride, int32_t n, int32_t head_size, uint16_t *to) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t channel = 0; channel < head_size; channel += LANES, to += LANES)
            store_half(to, load(values + i * stride + channel));
}

static void embed(const uint16_t *embedding, const float *position, int32_t n, float *x) {
    for (int32_t i = 0; i < n; i += LANES)
        store(x + i, load_half(embedding + i) + load(position + i));
}
