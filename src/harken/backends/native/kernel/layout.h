/* The layout of a window's packed keys and values: for each layer and head the keys, then the values. */
#ifndef HARKEN_LAYOUT_H
#define HARKEN_LAYOUT_H

#include "harken.h"

/* The number of float16 values of the keys, and of the values, of one head: whole tiles of positions. */
static inline int64_t harken_key_halves(const struct harken_model *model, int32_t positions) {
    int64_t padded = (positions + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    return padded * (model->n_state / model->n_heads);
}

static inline int64_t harken_window_offset(const struct harken_model *model, int32_t positions, int32_t layer,
                                           int32_t head) {
    return 2 * harken_key_halves(model, positions) * ((int64_t)layer * model->n_heads + head);
}

#endif
