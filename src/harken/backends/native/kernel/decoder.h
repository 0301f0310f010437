/* The inside of a decoder and of its sessions. */
#ifndef HARKEN_DECODER_H
#define HARKEN_DECODER_H

#include <stddef.h>

#include "harken.h"
#include "kernels.h"
#include "team.h"

/* Memory that grows and is used again in the next call. */
struct harken_arena {
    char *memory;
    size_t size, used;
};

struct harken_decoder {
    struct harken_model model; /* with an own copy of `layers` and of `alignment_heads` */
    const struct harken_kernels *kernels;
    harken_team *team;
    struct harken_arena arena;
    struct harken_phase *phases; /* of a pass */
};

/* A token of a pass: it is embedded, written into its slot of the KV cache, and attends to all slots of its row up to
 * that one. */
struct harken_query {
    int32_t token, position, window;
    const int32_t *slots; /* position + 1 of them */
    float *attention;     /* (n_alignment_heads, positions), or NULL */
};

/* Queries that follow one another and attend to one window. */
struct harken_run {
    int32_t window, first, n;
};

/* The keys and values of a slot of a layer. */
struct harken_cache {
    float **slabs; /* of HARKEN_SLAB slots each: (n_layers, 2, HARKEN_SLAB, n_state) */
    int32_t n_slabs;
};

enum { HARKEN_SLAB = 64, HARKEN_KEY = 0, HARKEN_VALUE = 1 };

static inline float *harken_cached(const struct harken_cache *cache, const struct harken_model *model, int32_t layer,
                                   int key_or_value, int32_t slot) {
    size_t row = ((size_t)layer * 2 + (size_t)key_or_value) * HARKEN_SLAB + (size_t)(slot % HARKEN_SLAB);
    return cache->slabs[slot / HARKEN_SLAB] + row * (size_t)model->n_state;
}

/* One pass of the decoder over some queries, those of one window together. */
struct harken_pass {
    harken_decoder *decoder;
    const struct harken_cache *cache;
    const struct harken_window *windows;
    const struct harken_query *queries;
    const struct harken_run *runs;
    int32_t n_queries, n_runs;
    int32_t attention_stride;      /* floats from one alignment head to the next in `attention` of a query */
    const int32_t *logit_queries;  /* queries that get logits */
    int32_t n_logits;
    float *const *logits; /* one row for each */
};

/* Returns 0 or HARKEN_NO_MEMORY. */
int32_t harken_pass_run(const struct harken_pass *pass);

#endif
