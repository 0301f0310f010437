/* The arithmetic of one instruction set: functions of arrays, without threads and without state. */
#ifndef HARKEN_KERNELS_H
#define HARKEN_KERNELS_H

#include "harken.h"

enum {
    HARKEN_MAX_HEAD_SIZE = 64, /* that of every published Whisper */
    HARKEN_ROWS = 12,          /* rows of the largest tile of any processor */
    HARKEN_SMALL_TILE = 6,     /* there is a tile for every number of rows up to it */
    HARKEN_KEYS = 64,          /* of a block of the encoder's attention in 8 bits */
    HARKEN_BLOCK_ROWS = 48,    /* positions of an item: whole tiles of rows, which share each weight that is read */
};

/* Vectors of `columns` floats each, quantised: a block of 32 has one scale. In float32 there are only the values. */
struct harken_activations {
    void *values;     /* (n, columns), int8 in -127..127 */
    float *scales;    /* (n, columns / 32) */
    /* (n, columns / 32). For weights of 4 bits, -8 times the sum of the values of each block. For weights of 7 bits what
     * the sums of the instruction set start with, for most -64 times that sum. */
    int32_t *offsets;
};

/* Rows of floats as integers, each with one scale (int16.h); there is memory for whole tiles of HARKEN_ROWS rows. In
 * float32 there are only the values. */
struct harken_rows {
    void *values;  /* (n, columns), int16 */
    float *scales; /* (n) */
};

/* The keys and values of one head of the encoder in 8 bits: int8 in -127..127. */
struct harken_head {
    int32_t n, padded, size; /* positions, the same rounded up to a multiple of HARKEN_KEYS, and channels */
    int8_t *keys;            /* (padded, size) */
    float *key_scales;       /* (padded) */
    int8_t *values;          /* (padded / 4, size, 4 positions) */
    float *value_scales;     /* (padded / HARKEN_KEYS, size) */
    int32_t *key_offsets;    /* (padded): what the sums of products start with */
    const float *bias;       /* (n): added to the scores of each key; or NULL */
};

/* What becomes of a result: stored, added to what is there, stored after a GELU, or stored as a number of the KV cache. */
enum harken_output { HARKEN_STORE, HARKEN_ADD, HARKEN_GELU, HARKEN_CACHE };

/* The attention of one query to a chunk of positions; softmax over all chunks follows from these. */
struct harken_partial {
    float peak, total;
    float values[HARKEN_MAX_HEAD_SIZE];
};

/* There are two for each instruction set, of integers and of float32. */
struct harken_kernels {
    const char *name;
    int32_t activation_bytes; /* of a number of harken_activations */
    int32_t vectors;          /* that share what is read of weights with 7 bits */
    int32_t number_bytes;     /* of a number of harken_rows, of the encoder's packed keys and values, and of the KV cache */

    /* y = x, or x with mean 0 and variance 1, quantised for weights of so many bits or as it is, as vector i of `to`. */
    void (*quantise)(const float *x, int32_t columns, int normalise, int bits, struct harken_activations *to, int32_t i);

    /* y[i] (+)= W x[i] + b for the rows of some groups and n vectors; row 0 is `shift` numbers behind y[i]. */
    void (*linear)(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                   const struct harken_activations *x, int32_t n, enum harken_output output, void *const *y,
                   int64_t shift);

    /* Adds W x[i], of a matrix of 4 bits, to the groups of y[i] of which a number is at least thresholds[i], and to all
     * behind the first n_partial groups. */
    void (*complete)(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                     const struct harken_activations *x, int32_t n, int32_t n_partial, const float *thresholds,
                     float *const *y);

    /* Attention of one query to n keys; those of slot i lie at cached[i] + key_offset, its values at cached[i] +
     * value_offset, numbers of the cache. `scores` has room for n rounded up to whole vectors. */
    void (*self_attention)(const float *query, void *const *cached, int64_t key_offset, int64_t value_offset,
                           int32_t n, int32_t head_size, float *scores, float *to);

    /* Attention of n queries, at most HARKEN_ROWS, to one chunk of positions of one head: a row of `keys` and a column of
     * `values` for each. weights[i], if not NULL, receives exp(score - peak). */
    void (*cross_attention)(const float *queries, int64_t stride, int32_t n, const struct harken_matrix *keys,
                            const struct harken_matrix *values, struct harken_partial *const *to,
                            float *const *weights);

    /* The attention over all chunks; chunks that were weighted get their factor in `factors`. */
    void (*merge_chunks)(const struct harken_partial *chunks, int32_t n_chunks, int32_t head_size, float *to,
                         float *factors);

    /* n rows of x, each `stride` floats behind the one before, or the same with mean 0 and variance 1, as integers or as they
     * are. */
    void (*quantise_rows)(const float *x, int64_t stride, int32_t n, int32_t columns, int normalise,
                          const struct harken_rows *to);

    /* y[i] (+)= W x[i] + b for n rows, at most HARKEN_BLOCK_ROWS; not to the cache. */
    void (*multiply)(const struct harken_matrix *matrix, const struct harken_rows *x, int32_t n,
                     enum harken_output output, float *y, int64_t stride);

    /* Keys of one head, n rows of floats, as a matrix with a row for each; values as one with a row for each channel,
     * and a column for each of the positions, rounded up to whole groups. The matrix says where, and of how many bits. */
    void (*pack_keys)(const float *keys, int64_t stride, int32_t n, const struct harken_matrix *to);
    void (*pack_values)(const float *values, int64_t stride, int32_t n, const struct harken_matrix *to);

    /* Attention of n queries to all positions of a window. `rows` and `scores` have room for n rows of them. */
    void (*window_attention)(const float *queries, int64_t stride, int32_t n, const struct harken_matrix *keys,
                             const struct harken_matrix *values, const struct harken_rows *rows, float *scores,
                             float *to, int64_t to_stride);

    /* The same in 8 bits: keys or values, n rows of floats, as those of a head, and attention of at most 16 queries. */
    void (*pack_head_keys)(const float *keys, int64_t stride, int32_t n, const struct harken_head *to);
    void (*pack_head_values)(const float *values, int64_t stride, int32_t n, const struct harken_head *to);
    void (*head_attention)(const float *queries, int64_t stride, int32_t n, const struct harken_head *head, float *to,
                           int64_t to_stride);

    /* y = gain * (x with mean 0 and variance 1) + bias. */
    void (*normalise_row)(const float *x, int32_t columns, const float *gain, const float *bias, float *y);

    /* x = embedding + position. */
    void (*embed)(const void *embedding, const float *position, int32_t n, float *x);

    float (*log_sum_exp)(const float *x, int32_t n); /* -inf if all are */
    float (*largest)(const float *x, int32_t n);
    /* The k largest, largest first, the lower index first among equals. */
    void (*top)(const float *x, int32_t n, int32_t k, int64_t *best);
    int32_t (*sample)(const float *x, int32_t n, float temperature, double uniform);

    void (*log_mel)(const struct harken_mel_tables *tables, const float *samples, int32_t n_frames, float *to,
                    int64_t stride); /* harken_log_mel */
    void (*silero_probabilities)(const struct harken_silero *weights, const float *samples, int32_t n_chunks,
                                 float *state, float *probabilities); /* harken_silero_probabilities */
};

/* The pairs of kernels that this processor can run, best first; the last are portable. */
struct harken_supported {
    const struct harken_kernels *list[5];
    int32_t n;
};

struct harken_supported harken_supported_kernels(void);

#endif
