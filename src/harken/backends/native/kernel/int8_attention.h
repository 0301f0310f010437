/* The encoder's attention in 8 bits: the same integers on every processor, and where there are dot products of bytes at
 * most half of the instructions of 16 bits.
 *
 * Lanes are queries, 16 of them, so what belongs to a query (its largest score, its sum, its scale) is never reduced
 * across lanes. Keys and values come in blocks of 64 positions, whose weights become integers with one scale: a softmax
 * has many small weights, which a scale for all positions would lose. A block that holds a larger score than those
 * before it scales down what they have left.
 *
 * Products are those of linear.h, of weights and vectors: first the queries are the weights and keys the vectors, then
 * the weights of the softmax and the values. Those of the softmax are 0 to 255; a signed byte holds them less 128, and
 * sums start with `value_offsets`, which make up for it. Instructions with unsigned weights add 128 to all: these
 * are right then, and `key_offsets` make up for what it added to the queries.
 * Sources: Dao et al., FlashAttention (2022); Zhang et al., SageAttention (2024). */
#include "simd.h"

#include "kernels.h"

static const float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

/* 255 * 2^-x as an integer, for x of at least 0, also infinite: with x = n - r and n an integer, a polynomial of r,
 * to 0.2 %, whose exponent is lowered by n. */
INLINE i32x16 integer_weights(f32x16 x) {
    i32x16 most = (i32x16)splat(30); /* the result is 0 long before; numbers of at least 0 compare as their bits do */
    x = (f32x16)__builtin_elementwise_min((i32x16)x, most);
    f32x16 shifted = ROUNDER - x, r = (ROUNDER - shifted) - x; /* the low bits of `shifted` are -n */
    f32x16 p = fma16(fma16(splat(60.7993745f), r, splat(179.379243f)), r, splat(255.113001f));
    return round_to_integer((f32x16)((i32x16)p + ((i32x16)shifted << 23)));
}

/* A row of floats as integers of 8 bits; returns their scale, and writes their sum. */
INLINE float quantise_head(const float *x, int32_t head_size, int8_t *to, int32_t *total) {
    i32x16 largest = splat_integer(0), sums = splat_integer(0);
    for (int32_t channel = 0; channel < head_size; channel += LANES)
        largest = __builtin_elementwise_max(largest, magnitude_bits(load(x + channel)));
    float peak = float_of_bits(__builtin_reduce_max(largest)), factor = peak > SMALLEST_PEAK ? 127 / peak : 0;
    for (int32_t channel = 0; channel < head_size; channel += LANES) {
        i32x16 integers = round_to_integer(load(x + channel) * factor);
        i8x16 narrow = __builtin_convertvector(integers, i8x16);
        memcpy(to + channel, &narrow, LANES);
        sums = sums + integers;
    }
    *total = __builtin_reduce_add(sums);
    return peak < INFINITY ? peak * (1.0f / 127) : NAN;
}

static void pack_head_keys(const float *keys, int64_t stride, int32_t n, const struct harken_head *to) {
    for (int32_t i = 0; i < to->padded; i++) {
        int32_t total = 0;
        int8_t *row = to->keys + (int64_t)i * to->size;
        if (i < n)
            to->key_scales[i] = quantise_head(keys + i * stride, to->size, row, &total);
        else
            memset(row, 0, (size_t)to->size), to->key_scales[i] = 0;
        to->key_offsets[i] = WEIGHTS_ARE_UNSIGNED ? (int32_t)(-128u * (uint32_t)total) : 0;
    }
}

static void pack_head_values(const float *values, int64_t stride, int32_t n, const struct harken_head *to) {
    for (int32_t first = 0; first < to->padded; first += HARKEN_KEYS) {
        int32_t end = n - first < HARKEN_KEYS ? n : first + HARKEN_KEYS;
        for (int32_t channel = 0; channel < to->size; channel += LANES) {
            int64_t place = first / HARKEN_KEYS * to->size + channel;
            i32x16 largest = splat_integer(0), totals = splat_integer(0);
            for (int32_t i = first; i < end; i++)
                largest = __builtin_elementwise_max(largest, magnitude_bits(load(values + i * stride + channel)));
            f32x16 peaks = (f32x16)largest, factors = (f32x16)((i32x16)(127.0f / peaks) & (peaks > SMALLEST_PEAK));
            for (int32_t i = first; i < first + HARKEN_KEYS; i += 4) {
                i32x16 four = splat_integer(0); /* positions of a channel in each lane, a byte each */
                for (int32_t j = 0; j < 4 && i + j < end; j++) {
                    i32x16 integers = round_to_integer(load(values + (i + j) * stride + channel) * factors);
                    totals = totals + integers;
                    four |= (integers & 0xff) << 8 * j;
                }
                memcpy(to->values + (int64_t)i * to->size + 4 * channel, &four, sizeof four);
            }
            totals = WEIGHTS_ARE_UNSIGNED ? splat_integer(0) : 128 * totals;
            memcpy(to->value_offsets + place, &totals, sizeof totals);
            store(to->value_scales + place, choose(peaks < INFINITY, peaks * (1.0f / 127), splat(NAN)));
        }
    }
}

/* The scores of a block of keys, times log2 e: weights are powers of 2. Returns the largest of each query. */
INLINE f32x16 score_block(const struct harken_head *head, int32_t size, int32_t first, const dot_weights *queries,
                          f32x16 query_scales, f32x16 *scores) {
    const int8_t *keys = head->keys + (int64_t)first * size;
    for (int32_t key = 0; key < HARKEN_KEYS; key += ATTENTION_TILE) {
        const float *key_scales = head->key_scales + first + key;
        f32x16 *to = scores + key;
        i32x16 sums[ATTENTION_TILE];
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            sums[i] = splat_integer(head->key_offsets[first + key + i]);
        for (int32_t part = 0; part < size / 4; part++)
            UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
                sums[i] = dot_signed(sums[i], queries[part], keys + (key + i) * size + 4 * part);
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            to[i] = __builtin_convertvector(sums[i], f32x16) * (query_scales * key_scales[i]);
    }
    for (int32_t key = 0; head->bias && key < HARKEN_KEYS && first + key < head->n; key++)
        scores[key] = scores[key] + head->bias[first + key] * LOG2_E;
    for (int32_t key = head->n - first; key < HARKEN_KEYS; key++)
        scores[key] = splat(-INFINITY);
    f32x16 largest[4] = {scores[0], scores[1], scores[2], scores[3]}; /* a comparison waits for the one before */
    for (int32_t key = 4; key < HARKEN_KEYS; key += 4)
        UNROLL for (int i = 0; i < 4; i++)
            largest[i] = max16(scores[key + i], largest[i]);
    return max16(max16(largest[0], largest[1]), max16(largest[2], largest[3]));
}

/* The weights of a block, of which that of the largest score is 255; returns their sum. */
INLINE i32x16 weigh_block(const f32x16 *scores, f32x16 largest, dot_weights *weights) {
    i32x16 total = splat_integer(0);
    for (int part = 0; part < HARKEN_KEYS / 4; part++) {
        i32x16 four = splat_integer(0);
        UNROLL for (int j = 0; j < 4; j++) {
            i32x16 integers = integer_weights(largest - scores[4 * part + j]);
            total = total + integers;
            four |= integers << 8 * j;
        }
        weights[part] = prepare_signed((i8x64)four ^ -128); /* each less 128 */
    }
    return total;
}

/* totals = totals * kept + the values of a block times their weights * scale. */
INLINE void mix_block(const struct harken_head *head, int32_t size, int32_t first, const dot_weights *weights,
                      f32x16 scale, f32x16 kept, f32x16 *totals) {
    const int8_t *values = head->values + (int64_t)first * size;
    int32_t block = first / HARKEN_KEYS;
    for (int32_t channel = 0; channel < size; channel += ATTENTION_TILE) {
        const float *value_scales = head->value_scales + block * size + channel;
        f32x16 *to = totals + channel;
        i32x16 sums[ATTENTION_TILE];
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            sums[i] = splat_integer(head->value_offsets[block * size + channel + i]);
        for (int part = 0; part < HARKEN_KEYS / 4; part++)
            UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
                sums[i] = dot_signed(sums[i], weights[part], values + 4 * (part * size + channel + i));
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            to[i] = fma16(__builtin_convertvector(sums[i], f32x16), scale * value_scales[i], to[i] * kept);
    }
}

INLINE void head_attention_sized(const float *queries, int64_t stride, int32_t n, const struct harken_head *head,
                                 int32_t size, float *to, int64_t to_stride) {
    int8_t rows[HARKEN_MAX_HEAD_SIZE * LANES] __attribute__((aligned(64))) = {0}; /* (size / 4, 16 queries, 4) */
    dot_weights prepared[HARKEN_MAX_HEAD_SIZE / 4], weights[HARKEN_KEYS / 4];
    f32x16 query_scales = splat(0), scores[HARKEN_KEYS], totals[HARKEN_MAX_HEAD_SIZE];
    for (int32_t i = 0; i < n; i++) {
        int8_t row[HARKEN_MAX_HEAD_SIZE];
        int32_t unused;
        query_scales[i] = quantise_head(queries + i * stride, size, row, &unused) * LOG2_E;
        for (int32_t channel = 0; channel < size; channel += 4)
            memcpy(rows + channel * LANES + 4 * i, row + channel, 4);
    }
    for (int32_t part = 0; part < size / 4; part++)
        prepared[part] = prepare_signed(load_bytes(rows + 4 * part * LANES));
    for (int32_t channel = 0; channel < size; channel++)
        totals[channel] = splat(0);
    f32x16 total = splat(0), peak = splat(-INFINITY); /* `total` and `totals` are relative to 2^peak */
    for (int32_t first = 0; first < head->n; first += HARKEN_KEYS) {
        f32x16 largest = score_block(head, size, first, prepared, query_scales, scores), before = peak;
        peak = max16(largest, before);
        f32x16 kept = exp16((before - peak) * LN_2), scale = exp16((largest - peak) * LN_2);
        i32x16 sum = weigh_block(scores, largest, weights);
        total = fma16(__builtin_convertvector(sum, f32x16), scale, total * kept);
        mix_block(head, size, first, weights, scale, kept, totals);
    }
    for (int32_t channel = 0; channel < size; channel += LANES) {
        for (int i = 0; i < LANES; i++)
            totals[channel + i] = totals[channel + i] / total;
        transpose(totals + channel);
        for (int32_t i = 0; i < n; i++)
            store(to + i * to_stride + channel, totals[channel + i]);
    }
}

static void head_attention(const float *queries, int64_t stride, int32_t n, const struct harken_head *head, float *to,
                           int64_t to_stride) {
    if (head->size == HARKEN_MAX_HEAD_SIZE)
        head_attention_sized(queries, stride, n, head, HARKEN_MAX_HEAD_SIZE, to, to_stride);
    else
        head_attention_sized(queries, stride, n, head, head->size, to, to_stride);
}
