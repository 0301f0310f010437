/* One pass of the decoder, which a session prepares. */
#ifndef HARKEN_PASS_H
#define HARKEN_PASS_H

#include "internal.h"

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
