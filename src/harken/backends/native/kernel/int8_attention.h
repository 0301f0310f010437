/* The encoder's attention in 8 bits: the same integers on every processor, and fewer instructions than with 16 bits.
 *
 * Lanes are queries, 16 of them, so what belongs to a query (its largest score, its sum, its scale) is never reduced
 * across lanes. Keys and values come in blocks of 64 positions, whose weights become integers with one scale: a softmax
 * has many small weights, which a scale for all positions would lose. A block that holds a larger score than those
 * before it scales down what they have left.
 *
 * Products are those of linear.h, of weights with 7 bits and vectors: first the queries are the weights and keys the
 * vectors, then the weights of the softmax, 0 to 127, and the values. Scales keep the sums in 16 bits, for AVX2: of a
 * query and a key by limited norms, as in linear.h, of WIDENED positions of a channel by what its values of one sign add
 * up to.
 * Sources: Dao et al., FlashAttention (2022); Zhang et al., SageAttention (2024). */
#include "simd.h"

#include "kernels.h"

/* Rounding adds up to 3 to the norm of half a head, and 140 * 233 < 2^15. */
static const float LARGEST_HALF_QUERY = 137.0f, LARGEST_HALF_KEY = 230.0f;

enum { WIDENED = 8 };                    /* positions whose products are summed in 16 bits, even and odd pairs apart */
static const float LARGEST_SUM = 256.0f; /* of their values of one sign; rounding adds up to 2, and 127 * 258 < 2^15 */

static const float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

/* 127 * 2^-x as an integer, for x of at least 0, also infinite: with x = n - r and n an integer, a polynomial of r,
 * to 0.2 %, whose exponent is lowered by n. */
INLINE i32x16 integer_weights(f32x16 x) {
    i32x16 most = (i32x16)splat(30); /* the result is 0 long before; numbers of at least 0 compare as their bits do */
    x = (f32x16)__builtin_elementwise_min((i32x16)x, most);
    f32x16 shifted = ROUNDER - x, r = (ROUNDER - shifted) - x; /* the low bits of `shifted` are -n */
    f32x16 p = fma16(fma16(splat(30.2804649f), r, splat(89.3379125f)), r, splat(127.056274f));
    return round_to_integer((f32x16)((i32x16)p + ((i32x16)shifted << 23)));
}

/* A query or a key as integers up to `most`, of which the even and the odd pairs have norms up to `largest_half`. Returns
 * their scale; writes the sum of all and that of the even pairs. */
INLINE float quantise_head(const float *x, int32_t head_size, float most, float largest_half, int8_t *to,
                           uint32_t *total, uint32_t *even_total) {
    i32x16 largest = splat_integer(0), sums = splat_integer(0);
    f32x16 squares = splat(0);
    for (int32_t channel = 0; channel < head_size; channel += LANES) {
        f32x16 own = load(x + channel);
        largest = __builtin_elementwise_max(largest, magnitude_bits(own));
        squares = fma16(own, own, squares);
    }
    float peak = float_of_bits(__builtin_reduce_max(largest)), scale = peak / most;
    float even = sum_lanes((f32x16)((i32x16)squares & EVEN_PAIRS)), odd = sum_lanes((f32x16)((i32x16)squares & ~EVEN_PAIRS));
    float factor = peak > SMALLEST_PEAK ? most / peak : 0, norm = sqrtf(even > odd ? even : odd);
    if (norm * factor > largest_half)
        factor = largest_half / norm, scale = norm / largest_half;
    for (int32_t channel = 0; channel < head_size; channel += LANES) {
        i32x16 integers = round_to_integer(load(x + channel) * factor);
        i8x16 narrow = __builtin_convertvector(integers, i8x16);
        memcpy(to + channel, &narrow, LANES);
        sums = sums + integers;
    }
    *total = (uint32_t)__builtin_reduce_add(sums), *even_total = (uint32_t)__builtin_reduce_add(sums & EVEN_PAIRS);
    return peak < INFINITY ? scale : NAN;
}

static void pack_head_keys(const float *keys, int64_t stride, int32_t n, const struct harken_head *to) {
    memset(to->keys + (int64_t)n * to->size, 0, (size_t)(to->padded - n) * (size_t)to->size);
    for (int32_t first = 0; first < to->padded; first += LANES) {
        f32x16 scales = splat(0);
        u32x16 totals = {0}, even_totals = {0};
        for (int32_t i = first; i < n && i < first + LANES; i++) {
            uint32_t total, even_total;
            scales[i - first] = quantise_head(keys + i * stride, to->size, 127, LARGEST_HALF_KEY,
                                              to->keys + (int64_t)i * to->size, &total, &even_total);
            totals[i - first] = total, even_totals[i - first] = even_total;
        }
        totals = offset_7(totals, even_totals);
        store(to->key_scales + first, scales);
        memcpy(to->key_offsets + first, &totals, sizeof totals);
    }
}

static void pack_head_values(const float *values, int64_t stride, int32_t n, const struct harken_head *to) {
    for (int32_t first = 0; first < to->padded; first += HARKEN_KEYS) {
        int32_t end = n - first < HARKEN_KEYS ? n : first + HARKEN_KEYS;
        for (int32_t channel = 0; channel < to->size; channel += LANES) {
            i32x16 largest = splat_integer(0);
            f32x16 most = splat(0), sums[2][2]; /* of even and of odd pairs, of values above and below 0 */
            for (int32_t i = first; i < end; i++) {
                f32x16 own = load(values + i * stride + channel), *pair = sums[i / 2 % 2];
                if (i % WIDENED == 0 || i % WIDENED == 2)
                    pair[0] = pair[1] = splat(0);
                largest = __builtin_elementwise_max(largest, magnitude_bits(own));
                pair[0] = pair[0] + max16(own, splat(0));
                pair[1] = pair[1] + max16(-own, splat(0));
                most = max16(most, max16(pair[0], pair[1])); /* sums only grow */
            }
            f32x16 peaks = (f32x16)largest, scales = peaks * (1.0f / 127);
            f32x16 factors = (f32x16)((i32x16)(127.0f / peaks) & (peaks > SMALLEST_PEAK));
            i32x16 is_large = most * factors > LARGEST_SUM;
            factors = choose(is_large, LARGEST_SUM / most, factors);
            scales = choose(is_large, most * (1 / LARGEST_SUM), scales);
            for (int32_t i = first; i < first + HARKEN_KEYS; i += 4) {
                i32x16 four = splat_integer(0); /* positions of a channel in each lane, a byte each */
                for (int32_t j = 0; j < 4 && i + j < end; j++)
                    four |= (round_to_integer(load(values + (i + j) * stride + channel) * factors) & 0xff) << 8 * j;
                memcpy(to->values + (int64_t)i * to->size + 4 * channel, &four, sizeof four);
            }
            store(to->value_scales + first / HARKEN_KEYS * to->size + channel, choose(peaks < INFINITY, scales, splat(NAN)));
        }
    }
}

/* The scores of a block of keys, times log2 e: weights are powers of 2. Returns the largest of each query. */
INLINE f32x16 score_block(const struct harken_head *head, int32_t size, int32_t first, const u8x64 *queries,
                          f32x16 query_scales, f32x16 *scores) {
    const int8_t *keys = head->keys + (int64_t)first * size;
    for (int32_t key = 0; key < HARKEN_KEYS; key += ATTENTION_TILE) {
        const float *key_scales = head->key_scales + first + key;
        f32x16 *to = scores + key;
        sums_7 sums[ATTENTION_TILE];
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            sums[i] = start_7(head->key_offsets[first + key + i]);
        for (int32_t part = 0; part < size / 4; part++)
            UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
                sums[i] = dot_7(sums[i], queries[part], keys + (key + i) * size + 4 * part);
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            to[i] = __builtin_convertvector(end_7(sums[i]), f32x16) * (query_scales * key_scales[i]);
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

/* The weights of a block, of which that of the largest score is 127; returns their sum. */
INLINE i32x16 weigh_block(const f32x16 *scores, f32x16 largest, u8x64 *weights) {
    i32x16 total = splat_integer(0);
    for (int part = 0; part < HARKEN_KEYS / 4; part++) {
        i32x16 four = splat_integer(0);
        UNROLL for (int j = 0; j < 4; j++) {
            i32x16 integers = integer_weights(largest - scores[4 * part + j]);
            total = total + integers;
            four |= integers << 8 * j;
        }
        weights[part] = (u8x64)four;
    }
    return total;
}

/* totals = totals * kept + the values of a block times their weights * scale. */
INLINE void mix_block(const struct harken_head *head, int32_t size, int32_t first, const u8x64 *weights,
                      f32x16 scale, f32x16 kept, f32x16 *totals) {
    const int8_t *values = head->values + (int64_t)first * size;
    for (int32_t channel = 0; channel < size; channel += ATTENTION_TILE) {
        const float *value_scales = head->value_scales + first / HARKEN_KEYS * size + channel;
        f32x16 *to = totals + channel;
        sums_7 sums[ATTENTION_TILE];
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            sums[i] = start_7(0);
        for (int32_t start = 0; start < HARKEN_KEYS / 4; start += WIDENED / 4) {
            UNROLL for (int32_t part = start; part < start + WIDENED / 4; part++)
                UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
                    sums[i] = dot_7(sums[i], weights[part], values + 4 * (part * size + channel + i));
            UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
                sums[i] = widen_7(sums[i]);
        }
        UNROLL for (int i = 0; i < ATTENTION_TILE; i++)
            to[i] = fma16(__builtin_convertvector(end_7(sums[i]), f32x16), scale * value_scales[i], to[i] * kept);
    }
}

INLINE void head_attention_sized(const float *queries, int64_t stride, int32_t n, const struct harken_head *head,
                                 int32_t size, float *to, int64_t to_stride) {
    int8_t rows[HARKEN_MAX_HEAD_SIZE * LANES] __attribute__((aligned(64))) = {0}; /* (size / 4, 16 queries, 4) */
    u8x64 prepared[HARKEN_MAX_HEAD_SIZE / 4], weights[HARKEN_KEYS / 4];
    f32x16 query_scales = splat(0), scores[HARKEN_KEYS], totals[HARKEN_MAX_HEAD_SIZE];
    for (int32_t i = 0; i < n; i++) {
        int8_t row[HARKEN_MAX_HEAD_SIZE];
        uint32_t unused;
        query_scales[i] =
            quantise_head(queries + i * stride, size, 63, LARGEST_HALF_QUERY, row, &unused, &unused) * LOG2_E;
        for (int32_t channel = 0; channel < size; channel += 4)
            memcpy(rows + channel * LANES + 4 * i, row + channel, 4);
    }
    for (int32_t part = 0; part < size / 4; part++)
        prepared[part] = load_bytes(rows + 4 * part * LANES) + 64;
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
