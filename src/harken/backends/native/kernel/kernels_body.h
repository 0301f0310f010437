/* All kernels of one instruction set, here those that models of integers and of float32 share. Included by a file that
 * has defined dot products and KERNELS_NAME. */

/* The numbers of vectors, of rows, and of groups of a matrix that share what is read: they change the speed and no bit.
 * With more registers they are larger. */
#ifndef LINEAR_TILE
#define LINEAR_TILE 4
#define ROW_TILE 6
#define GROUP_TILE 1
#endif
#ifndef WIDE_TILE /* of weights of 7 bits, many vectors; blocks of positions are multiples of VECTORS_SHARING */
#define WIDE_GROUPS 1
#define WIDE_TILE LINEAR_TILE
#define VECTORS_SHARING 8
#else
#define VECTORS_SHARING WIDE_TILE
#endif
#ifndef ATTENTION_TILE
#define ATTENTION_TILE LINEAR_TILE /* keys, or channels, whose sums are in work */
#endif

#include "kernels.h"
#include "simd.h"

/* Matrices that are read once in a pass are fetched so many bytes ahead, also what a later call reads: a processor that
 * looks ahead by itself gets only as far as the end of a page, and no further than the products that wait. */
enum { AHEAD = 8 << 10, LINE = 64 /* bytes of a line of the caches */ };

INLINE void fetch(const char *from, int64_t bytes) {
    for (int64_t byte = 0; byte < bytes; byte += LINE)
        __builtin_prefetch(from + byte, 0, 2);
}

/* -- Attention of single queries to the keys of the text so far, and what joins the chunks of cross-attention ---- */

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

/* -- The choice of a token among the logits of a position -------------------------------------------------------- */

/* The last vector of an array, filled up with -inf. */
INLINE f32x16 load_part(const float *from, int32_t n) {
    f32x16 x = splat(-INFINITY);
    memcpy(&x, from, (size_t)n * sizeof(float));
    return x;
}

INLINE f32x16 load_up_to(const float *x, int32_t i, int32_t n) {
    return n - i >= LANES ? load(x + i) : load_part(x + i, n - i);
}

/* -inf if there is none; NaN does not count. */
static float largest(const float *x, int32_t n) {
    f32x16 peaks = splat(-INFINITY);
    for (int32_t i = 0; i < n; i += LANES)
        peaks = max16(load_up_to(x, i, n), peaks);
    return max_lanes(peaks);
}

/* Sums of some vectors are added to sums of sums, so that small terms are not lost beside a large one. */
INLINE double sum_exponentials(const float *x, int32_t n, float peak, float factor) {
    enum { STRETCH = 64 * LANES };
    double total = 0;
    for (int32_t first = 0; first < n; first += STRETCH) {
        int32_t end = n - first < STRETCH ? n : first + STRETCH;
        f32x16 part = splat(0);
        for (int32_t i = first; i < end; i += LANES)
            part = part + exp16((load_up_to(x, i, n) - peak) * factor);
        total += (double)sum_lanes(part);
    }
    return total;
}

static float log_sum_exp(const float *x, int32_t n) {
    float peak = largest(x, n);
    return isinf(peak) ? peak : peak + natural_log(sum_exponentials(x, n, peak, 1));
}

static void top(const float *x, int32_t n, int32_t k, int64_t *best) {
    int32_t found = 0;
    for (int32_t first = 0; first < n; first += LANES) {
        f32x16 values = load_up_to(x, first, n);
        if (found == k && !__builtin_reduce_or(values > x[best[k - 1]]))
            continue;
        int32_t end = n - first < LANES ? n - first : LANES;
        for (int32_t lane = 0; lane < end; lane++) {
            float value = values[lane];
            if (found == k && !(value > x[best[k - 1]]))
                continue;
            int32_t rank = found < k ? found++ : k - 1;
            for (; rank > 0 && value > x[best[rank - 1]]; rank--)
                best[rank] = best[rank - 1];
            best[rank] = first + lane;
        }
    }
}

/* The first index at which the cumulative distribution exceeds `uniform`. */
static int32_t sample(const float *x, int32_t n, float temperature, double uniform) {
    float peak = largest(x, n), factor = 1 / temperature;
    double threshold = uniform * sum_exponentials(x, n, peak, factor), cumulative = 0;
    int32_t last = 0;
    for (int32_t first = 0; first < n; first += LANES) {
        f32x16 weights = exp16((load_up_to(x, first, n) - peak) * factor);
        for (int32_t lane = 0; lane < LANES && first + lane < n; lane++) {
            cumulative += (double)weights[lane];
            if (weights[lane] > 0) {
                last = first + lane;
                if (cumulative > threshold)
                    return last;
            }
        }
    }
    return last; /* the two sums differ in their last bits */
}

/* -- All others -------------------------------------------------------------------------------------------------- */

#include "float32.h"
#include "int16.h"
#include "linear.h"

#include "audio.h"
#include "int8_attention.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

#define OF_BOTH(set, tile)                                                                                             \
    .name = STRING(set), .vectors = tile, .merge_chunks = merge_chunks, .normalise_row = normalise_row,                \
    .log_sum_exp = log_sum_exp, .largest = largest, .top = top, .sample = sample, .log_mel = log_mel,                  \
    .silero_probabilities = silero_probabilities

#define KERNELS(set, tile, linear_of_integers)                                                                         \
    {                                                                                                                  \
        {                                                                                                              \
            OF_BOTH(set, tile),                                                                                        \
            .activation_bytes = sizeof(int8_t),                                                                        \
            .number_bytes = sizeof(int16_t),                                                                           \
            .quantise = quantise,                                                                                      \
            .linear = linear_of_integers,                                                                              \
            .complete = complete,                                                                                      \
            .self_attention = self_attention,                                                                          \
            .cross_attention = cross_attention,                                                                        \
            .pack_keys = pack_keys,                                                                                    \
            .pack_values = pack_values,                                                                                \
            .quantise_rows = quantise_rows,                                                                            \
            .multiply = multiply,                                                                                      \
            .window_attention = window_attention,                                                                      \
            .pack_head_keys = pack_head_keys,                                                                          \
            .pack_head_values = pack_head_values,                                                                      \
            .head_attention = head_attention,                                                                          \
            .embed = embed,                                                                                            \
        },                                                                                                             \
        {                                                                                                              \
            OF_BOTH(set, tile),                                                                                        \
            .activation_bytes = sizeof(float),                                                                         \
            .number_bytes = sizeof(float),                                                                             \
            .quantise = float_vector,                                                                                  \
            .linear = float_linear,                                                                                    \
            .self_attention = float_self_attention,                                                                    \
            .cross_attention = float_cross_attention,                                                                  \
            .pack_keys = float_pack_keys,                                                                              \
            .pack_values = float_pack_values,                                                                          \
            .quantise_rows = float_rows,                                                                               \
            .multiply = float_multiply,                                                                                \
            .window_attention = float_window_attention,                                                                \
            .embed = float_embed,                                                                                      \
        },                                                                                                             \
    }

const struct harken_kernels JOIN(harken_kernels_, KERNELS_NAME)[2] = KERNELS(KERNELS_NAME, VECTORS_SHARING, linear);
#ifdef WITH_TILES
const struct harken_kernels harken_kernels_amx[2] = KERNELS(amx, TILE_VECTORS, tile_linear);
#endif
