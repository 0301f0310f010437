/* Attention of single queries to the few keys of the text so far, and what joins the chunks of cross-attention. */
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

/* A vector of float16 or float. */
INLINE f32x16 load_number(const void *from, int64_t i, int bytes) {
    return bytes == 2 ? load_half((const uint16_t *)from + i) : load((const float *)from + i);
}

INLINE void self_attention_sized(const float *query, void *const *cached, int64_t key_offset, int64_t value_offset,
                                 int32_t n, int32_t head_size, int bytes, float *scores, float *to) {
    f32x16 q[HARKEN_MAX_HEAD_SIZE / LANES], mixed[HARKEN_MAX_HEAD_SIZE / LANES];
    for (int32_t i = 0; i < head_size / LANES; i++) {
        q[i] = load(query + i * LANES);
        mixed[i] = splat(0);
    }
    for (int32_t first = 0; first < n; first += LANES) {
        f32x16 products[LANES];
        for (int32_t lane = 0; lane < LANES; lane++) {
            const void *key = cached[first + lane < n ? first + lane : n - 1];
            products[lane] = splat(0);
            for (int32_t i = 0; i < head_size / LANES; i++)
                products[lane] = fma16(q[i], load_number(key, key_offset + i * LANES, bytes), products[lane]);
        }
        store(scores + first, sum_lanes_of_16(products));
    }
    float peak, total = exponentials(scores, n, &peak);
    for (int32_t position = 0; position < n; position++) {
        f32x16 weight = splat(scores[position]);
        for (int32_t i = 0; i < head_size / LANES; i++)
            mixed[i] = fma16(load_number(cached[position], value_offset + i * LANES, bytes), weight, mixed[i]);
    }
    for (int32_t i = 0; i < head_size / LANES; i++)
        store(to + i * LANES, mixed[i] / total);
}

#define SELF_ATTENTION(name, bytes)                                                                                    \
    static void name(const float *query, void *const *cached, int64_t key_offset, int64_t value_offset, int32_t n,     \
                     int32_t head_size, float *scores, float *to) {                                                    \
        if (head_size == HARKEN_MAX_HEAD_SIZE)                                                                         \
            self_attention_sized(query, cached, key_offset, value_offset, n, HARKEN_MAX_HEAD_SIZE, bytes, scores, to); \
        else                                                                                                           \
            self_attention_sized(query, cached, key_offset, value_offset, n, head_size, bytes, scores, to);            \
    }
SELF_ATTENTION(self_attention, 2)
SELF_ATTENTION(float_self_attention, 4)
#undef SELF_ATTENTION

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

static void embed(const void *embedding, const float *position, int32_t n, float *x) {
    for (int32_t i = 0; i < n; i += LANES)
        store(x + i, load_number(embedding, i, 2) + load(position + i));
}

static void float_embed(const void *embedding, const float *position, int32_t n, float *x) {
    for (int32_t i = 0; i < n; i += LANES)
        store(x + i, load_number(embedding, i, 4) + load(position + i));
}
