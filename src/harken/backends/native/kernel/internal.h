/* What the sources of the decoder and of the encoder share, below the interface of the library. */
#ifndef HARKEN_INTERNAL_H
#define HARKEN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "harken.h"
#include "kernels.h"
#include "team.h"

static inline int32_t min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline int32_t max(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The number of parts of some size, of which the last may be smaller. */
static inline int32_t parts(int32_t n, int32_t size) {
    return (n + size - 1) / size;
}

/* Blocks of rows that threads take in turn: whole tiles, which share each weight that is read, and as many for each. */
struct harken_blocks {
    int32_t rows, tile, count;
};

/* The first row of a block; behind the last it is the number of rows. */
static inline int32_t harken_first_row(const struct harken_blocks *blocks, int64_t block) {
    int64_t tiles = block * parts(blocks->rows, blocks->tile) / blocks->count;
    return min((int32_t)tiles * blocks->tile, blocks->rows);
}

/* Memory that grows and is used again by the next call. */
struct harken_arena {
    char *memory;
    size_t size, used;
};

/* Takes a piece, aligned to 64 bytes; while the arena has no memory it only adds up sizes. */
static inline void *harken_take(struct harken_arena *arena, size_t n, size_t size) {
    void *piece = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (n * size + 63) / 64 * 64;
    return piece;
}

/* Makes room, and writes an empty arena of that memory to `empty`. Returns 0 or HARKEN_NO_MEMORY. */
static inline int32_t harken_arena_grow(struct harken_arena *arena, size_t needed, struct harken_arena *empty) {
    if (needed > arena->size) {
        char *memory = malloc(needed + 63);
        if (!memory)
            return HARKEN_NO_MEMORY;
        free(arena->memory);
        arena->memory = memory;
        arena->size = needed;
    }
    *empty = *arena;
    empty->memory += -(uintptr_t)arena->memory % 64;
    empty->used = 0;
    return 0;
}

struct harken_decoder {
    struct harken_model model; /* with an own copy of `layers` and of `alignment_heads` */
    const struct harken_kernels *kernels;
    harken_team *team;
    struct harken_arena arena;
    struct harken_phase *phases; /* of a pass */
};

static inline struct harken_blocks harken_divide(int32_t rows, int32_t bits, const harken_decoder *decoder) {
    int32_t tile = bits == 7 ? decoder->kernels->vectors : HARKEN_SMALL_TILE;
    int32_t threads = harken_team_threads(decoder->team);
    int32_t count = parts(parts(rows, HARKEN_BLOCK_ROWS), threads) * threads;
    return (struct harken_blocks){rows, tile, min(count, parts(rows, tile))};
}

enum { HARKEN_SLAB = 64 };

/* A slab holds, for each layer, first the keys and then the values of its slots; those of one head lie side by side, as
 * they are read. So a slot of a slab is an address in it, and these are the distances from there, in numbers. */
static inline int64_t harken_key_offset(const struct harken_model *model, int32_t layer, int32_t head) {
    return HARKEN_SLAB * ((int64_t)layer * 2 * model->n_state + head * (model->n_state / model->n_heads));
}

static inline int64_t harken_value_offset(const struct harken_model *model, int32_t layer, int32_t head) {
    return harken_key_offset(model, layer, head) + (int64_t)HARKEN_SLAB * model->n_state;
}

/* Rows of floats as the input of products with a matrix. */
struct harken_input {
    const struct harken_kernels *kernels;
    struct harken_rows rows;
    struct harken_activations activations; /* instead, where the matrix has 7 bits */
};

/* Memory for so many numbers, of HARKEN_BLOCK_ROWS rows and matrices with 16 bits, or for so many columns and matrices
 * with `bits`. */
static inline struct harken_input harken_take_input(struct harken_arena *arena, const struct harken_kernels *kernels,
                                                    int32_t bits, int32_t columns, size_t numbers) {
    struct harken_input input = {.kernels = kernels};
    input.rows.values = harken_take(arena, numbers, (size_t)kernels->number_bytes);
    input.rows.scales = harken_take(arena, HARKEN_BLOCK_ROWS, sizeof(float));
    if (bits == 7) {
        size_t values = HARKEN_BLOCK_ROWS * (size_t)columns;
        input.activations.values = harken_take(arena, values, sizeof(int8_t));
        input.activations.scales = harken_take(arena, values / HARKEN_BLOCK, sizeof(float));
        input.activations.offsets = harken_take(arena, values / HARKEN_BLOCK, sizeof(int32_t));
    }
    return input;
}

static inline void harken_read_rows(struct harken_input *input, const struct harken_matrix *matrix, const float *x,
                                    int64_t stride, int32_t n, int normalise) {
    if (matrix->bits == 7)
        for (int32_t i = 0; i < n; i++)
            input->kernels->quantise(x + i * stride, matrix->columns, normalise, 7, &input->activations, i);
    else
        input->kernels->quantise_rows(x, stride, n, matrix->columns, normalise, &input->rows);
}

static inline void harken_multiply_rows(const struct harken_input *input, const struct harken_matrix *matrix, int32_t n,
                                        enum harken_output output, float *y, int64_t stride) {
    if (matrix->bits == 7) {
        void *rows[HARKEN_BLOCK_ROWS];
        for (int32_t i = 0; i < n; i++)
            rows[i] = y + i * stride;
        input->kernels->linear(matrix, 0, parts(matrix->rows, HARKEN_GROUP), &input->activations, n, output, rows, 0);
    } else
        input->kernels->multiply(matrix, &input->rows, n, output, y, stride);
}

/* The packed keys and values of a window: for each layer and head a matrix of keys and one of values for each chunk of
 * positions in turn, of integers or of floats, and then the scales of all keys and of all values if they are integers. */
struct harken_head_layout {
    int32_t head_size, padded; /* positions, rounded up to whole groups */
    int64_t size;              /* bytes, a multiple of 64 */
};

static inline struct harken_head_layout harken_head_layout(const harken_decoder *decoder, int32_t capacity,
                                                           int32_t part) {
    struct harken_head_layout head = {.head_size = decoder->model.n_state / decoder->model.n_heads};
    head.padded = parts(capacity, HARKEN_GROUP) * HARKEN_GROUP;
    int64_t number = decoder->model.window_bits / 8;
    int64_t n_scales = number < (int64_t)sizeof(float) ? head.padded + (int64_t)parts(capacity, part) * head.head_size : 0;
    head.size = 2 * number * head.padded * head.head_size + (int64_t)sizeof(float) * n_scales;
    return head;
}

/* The keys of one chunk (a part of the positions) of one head, and the values. */
static inline void harken_chunk_matrices(const harken_decoder *decoder, const struct harken_window *window,
                                         int32_t layer, int32_t head, int32_t chunk, struct harken_matrix *keys,
                                         struct harken_matrix *values) {
    struct harken_head_layout layout = harken_head_layout(decoder, window->capacity, window->part);
    char *place = (char *)window->packed + layout.size * ((int64_t)layer * decoder->model.n_heads + head);
    int64_t row_bytes = decoder->model.window_bits / 8 * (int64_t)layout.head_size;
    float *key_scales = (float *)(place + 2 * layout.padded * row_bytes);
    int32_t first = chunk * window->part, n = min(window->positions - first, window->part);
    char *keys_place = place + 2 * first * row_bytes;
    keys->weights = keys_place;
    keys->scales = key_scales + first;
    values->weights = keys_place + min(layout.padded - first, window->part) * row_bytes;
    values->scales = key_scales + layout.padded + (int64_t)chunk * layout.head_size;
    keys->bits = values->bits = decoder->model.window_bits;
    keys->bias = values->bias = NULL;
    keys->rows = n;
    keys->columns = values->rows = layout.head_size;
    values->columns = parts(n, HARKEN_GROUP) * HARKEN_GROUP;
}

harken_decoder *harken_session_decoder(const harken_session *session);
int32_t harken_session_rows(const harken_session *session);

#endif
