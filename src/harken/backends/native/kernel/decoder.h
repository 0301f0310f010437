/* The inside of a decoder and of its sessions. */
#ifndef HARKEN_DECODER_H
#define HARKEN_DECODER_H

#include <stddef.h>

#include "arena.h"
#include "harken.h"
#include "kernels.h"
#include "team.h"

struct harken_decoder {
    struct harken_model model; /* with an own copy of `layers` and of `alignment_heads` */
    const struct harken_kernels *kernels;
    harken_team *team;
    struct harken_arena arena;
    struct harken_phase *phases; /* of a pass */
};

enum { HARKEN_SLAB = 64 };

/* A slab holds, for each layer, first the keys and then the values of its slots; those of one head lie side by side, as
 * they are read. So a slot of a slab is an address in it, and these are the distances from there, in numbers. */
static inline int64_t harken_key_offset(const struct harken_model *model, int32_t layer, int32_t head) {
    return HARKEN_SLAB * ((int64_t)layer * 2 * model->n_state + head * (model->n_state / model->n_heads));
}

static inline int64_t harken_value_offset(const struct harken_model *model, int32_t layer, int32_t head) {
    return harken_key_offset(model, layer, head) + (int64_t)HARKEN_SLAB * model->n_state;
}

/* A token of a pass: it is embedded, its keys and values are cached, and it attends to all slots of its row up to its
 * own. */
struct harken_query {
    int32_t token, position, window;
    void *const *cached; /* position + 1 slots */
    float *attention;    /* (n_alignment_heads, positions), or NULL */
};

/* Queries that follow one another and attend to one window. */
struct harken_run {
    int32_t window, first, n;
};

/* One pass of the decoder over some queries, those of one window together. */
struct harken_pass {
    harken_decoder *decoder;
    const struct harken_window *windows;
    const struct harken_query *queries;
    const struct harken_run *runs;
    int32_t n_queries, n_runs;
    int32_t attention_stride;      /* floats from one alignment head to the next in `attention` of a query */
    const int32_t *logit_queries;  /* queries that get logits */
    int32_t n_logits;
    float *const *logits; /* one row for each */
};

/* The number of phases of a pass. */
int32_t harken_pass_phases(const struct harken_model *model);

/* Returns 0 or HARKEN_NO_MEMORY. */
int32_t harken_pass_run(const struct harken_pass *pass);

#endif
