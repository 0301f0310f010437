/* The layout of a window's packed keys and values: for each layer and head two matrices of 16-bit integers or of
 * floats, the second in chunks of positions, and then the scales of
 * both if they are integers. */
#ifndef HARKEN_LAYOUT_H
#define HARKEN_LAYOUT_H

#include "decoder.h"

struct harken_head_layout {
    int32_t head_size, padded; /* positions, rounded up to whole groups */
    int64_t size;              /* bytes, a multiple of 64 */
};

static inline struct harken_head_layout harken_head_layout(const harken_decoder *decoder, int32_t capacity,
                                                           int32_t part) {
    struct harken_head_layout head = {.head_size = decoder->model.n_state / decoder->model.n_heads};
    head.padded = parts(capacity, HARKEN_GROUP) * HARKEN_GROUP;
    int64_t number = decoder->kernels->number_bytes;
    int64_t n_scales = number == sizeof(int16_t) ? head.padded + (int64_t)parts(capacity, part) * head.head_size : 0;
    head.size = 2 * number * head.padded * head.head_size + (int64_t)sizeof(float) * n_scales;
    return head;
}

/* The keys of one chunk (a part of the positions) of one head, and the values. */
static inline void harken_chunk_matrices(const harken_decoder *decoder, const struct harken_window *window,
                                         int32_t layer, int32_t head, int32_t chunk, struct harken_matrix *keys,
                                         struct harken_matrix *values) {
    struct harken_head_layout layout = harken_head_layout(decoder, window->capacity, window->part);
    char *place = (char *)window->packed + layout.size * ((int64_t)layer * decoder->model.n_heads + head);
    int64_t row_bytes = (int64_t)decoder->kernels->number_bytes * layout.head_size;
    char *values_place = place + layout.padded * row_bytes;
    float *key_scales = (float *)(values_place + layout.padded * row_bytes);
    int32_t first = chunk * window->part, n = min(window->positions - first, window->part);
    keys->weights = place + first * row_bytes;
    keys->scales = key_scales + first;
    values->weights = values_place + first * row_bytes;
    values->scales = key_scales + layout.padded + (int64_t)chunk * layout.head_size;
    keys->bias = values->bias = NULL;
    keys->rows = n;
    keys->columns = values->rows = layout.head_size;
    values->columns = parts(n, HARKEN_GROUP) * HARKEN_GROUP;
}

#endif
