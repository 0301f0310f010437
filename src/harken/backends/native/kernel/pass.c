/* One pass of the decoder: the phases of every layer, in the order in which they depend on one another.
 *
 * Source: openai/whisper, model.py, TextDecoder. */
#define _GNU_SOURCE /* pread */
#include <stdlib.h>
#include <string.h>

#if !defined(_WIN32)
#include <unistd.h>
#endif

#include "pass.h"

/* A pass with its working memory; n is the number of queries, s the state, h the number of heads. */
struct work {
    const struct harken_pass *pass;
    const struct harken_model *model;
    const struct harken_kernels *kernels;
    int32_t head_size, max_chunks, max_slots;
    float *x, *projected, *attended, *hidden; /* (n, s) each; hidden (n, mlp) */
    float **x_rows, **projected_rows, **hidden_rows;
    void **cached; /* (n), the slot of each query */
    struct harken_activations activations, hidden_activations;
    struct harken_partial *partials; /* (n, h, max_chunks) */
    float *scores;                   /* (threads, max_slots) */
    int32_t *run_items;              /* (n_runs + 1), the first item of cross-attention of each run */
    float *thresholds;               /* (n_logits), the least logit at which a group is completed, for each position */
};

static int32_t groups(const struct harken_matrix *matrix) {
    return parts(matrix->rows, HARKEN_GROUP);
}

static int32_t chunks(const struct harken_window *window) {
    return parts(window->positions, window->part);
}

/* -- The phases: functions of a range of items ------------------------------------------------------------------- */

/* Reads an embedding from the file, if there is one, into the row, which has room for floats. Of a mapped file the system
 * keeps 64 KB around each row that is read, until all of it counts as memory of the process. */
static const void *embedding_of(const struct work *work, int32_t token, float *row) {
    const struct harken_model *model = work->model;
    size_t bytes = (size_t)model->n_state * (size_t)work->kernels->number_bytes, start = (size_t)token * bytes;
#if !defined(_WIN32)
    if (model->embedding_file >= 0 &&
        pread(model->embedding_file, row, bytes, (off_t)start) == (ssize_t)bytes)
        return row;
#else
    (void)row;
#endif
    return (const char *)model->embedding + start;
}

static void embed(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    int64_t state = work->model->n_state;
    (void)layer, (void)thread;
    for (int32_t i = begin; i < end; i++) {
        const struct harken_query *query = &work->pass->queries[i];
        work->kernels->embed(embedding_of(work, query->token, work->projected_rows[i]),
                             work->model->positions + query->position * state, work->model->n_state, work->x_rows[i]);
    }
}

static void normalise(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    int32_t bits = work->model->layers[layer].query.bits;
    (void)thread;
    for (int32_t i = begin; i < end; i++)
        work->kernels->quantise(work->x_rows[i], work->model->n_state, 1, bits, &work->activations, i);
}

static void normalise_last(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    (void)layer, (void)thread;
    for (int32_t i = begin; i < end; i++)
        work->kernels->quantise(work->x_rows[work->pass->logit_queries[i]], work->model->n_state, 1,
                                work->model->head.bits, &work->activations, i);
}

static void quantise_attended(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    int32_t state = work->model->n_state, bits = work->model->layers[layer].out.bits;
    (void)thread;
    for (int32_t i = begin; i < end; i++)
        work->kernels->quantise(work->attended + (int64_t)i * state, state, 0, bits, &work->activations, i);
}

static void quantise_hidden(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_matrix *matrix = &work->model->layers[layer].mlp_out;
    (void)thread;
    for (int32_t i = begin; i < end; i++)
        work->kernels->quantise(work->hidden_rows[i], matrix->columns, 0, matrix->bits, &work->hidden_activations, i);
}

/* The keys or values of some groups, to their slots; those of one head after the other. */
static void project_to_cache(const struct work *work, const struct harken_matrix *matrix, int32_t begin, int32_t end,
                             int64_t offset) {
    int32_t head_groups = work->head_size / HARKEN_GROUP;
    for (int32_t head = begin / head_groups; head * head_groups < end; head++) {
        int32_t first = head * head_groups, last = first + head_groups;
        /* from where the head would lie in a vector to where it lies in the cache */
        int64_t shift = offset + (int64_t)head * work->head_size * (HARKEN_SLAB - 1);
        work->kernels->linear(matrix, first > begin ? first : begin, min(last, end), &work->activations,
                              work->pass->n_queries, HARKEN_CACHE, work->cached, shift);
    }
}

/* Queries, keys and values of self-attention. */
static void project_qkv(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_layer *layer = &work->model->layers[number];
    int32_t size = groups(&layer->query);
    (void)thread;
    if (begin < size)
        work->kernels->linear(&layer->query, begin, min(end, size), &work->activations, work->pass->n_queries,
                              HARKEN_STORE, (void *const *)work->projected_rows, 0);
    if (begin < 2 * size && end > size)
        project_to_cache(work, &layer->key, max(begin - size, 0), min(end - size, size),
                         harken_key_offset(work->model, number, 0));
    if (end > 2 * size)
        project_to_cache(work, &layer->value, max(begin - 2 * size, 0), end - 2 * size,
                         harken_value_offset(work->model, number, 0));
}

static void self_attention(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_model *model = work->model;
    float *scores = work->scores + (int64_t)thread * work->max_slots;
    for (int32_t item = begin; item < end; item++) {
        int32_t i = item / model->n_heads, head = item % model->n_heads, channel = head * work->head_size;
        const struct harken_query *query = &work->pass->queries[i];
        work->kernels->self_attention(work->projected_rows[i] + channel, query->cached,
                                      harken_key_offset(model, layer, head),
                                      harken_value_offset(model, layer, head), query->position + 1,
                                      work->head_size, scores, work->attended + (int64_t)i * model->n_state + channel);
    }
}

/* The place of a head among the alignment heads, or -1. */
static int32_t find_alignment_head(const struct harken_model *model, int32_t layer, int32_t head) {
    for (int32_t i = 0; i < model->n_alignment_heads; i++)
        if (model->alignment_heads[2 * i] == layer && model->alignment_heads[2 * i + 1] == head)
            return i;
    return -1;
}

/* Where the attention of a query by a head is kept, or NULL. */
static float *kept_attention(const struct work *work, int32_t query, int32_t layer, int32_t head) {
    float *attention = work->pass->queries[query].attention;
    int32_t place = attention ? find_alignment_head(work->model, layer, head) : -1;
    return place < 0 ? NULL : attention + (int64_t)place * work->pass->attention_stride;
}

/* One chunk of positions of one window, for one head and all queries of the window. */
static void attend_to_chunk(const struct work *work, const struct harken_run *run, int32_t layer, int32_t head,
                            int32_t chunk) {
    const struct harken_window *window = &work->pass->windows[run->window];
    int64_t state = work->model->n_state;
    struct harken_matrix keys, values;
    harken_chunk_matrices(work->pass->decoder, window, layer, head, chunk, &keys, &values);
    if (window->key_bias)
        keys.bias = window->key_bias + chunk * window->part;
    for (int32_t start = 0; start < run->n; start += HARKEN_ROWS) {
        struct harken_partial *partials[HARKEN_ROWS];
        float *weights[HARKEN_ROWS];
        int32_t first = run->first + start, n = min(run->n - start, HARKEN_ROWS);
        for (int32_t i = 0; i < n; i++) {
            float *kept = kept_attention(work, first + i, layer, head);
            partials[i] =
                work->partials + ((int64_t)(first + i) * work->model->n_heads + head) * work->max_chunks + chunk;
            weights[i] = kept ? kept + chunk * window->part : NULL;
        }
        work->kernels->cross_attention(work->projected + first * state + head * work->head_size, state, n, &keys,
                                       &values, partials, weights);
    }
}

static void cross_attention(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    int32_t run = 0;
    (void)thread;
    for (int32_t item = begin; item < end; item++) {
        while (item >= work->run_items[run + 1])
            run++;
        int32_t within = item - work->run_items[run];
        int32_t n_chunks = chunks(&work->pass->windows[work->pass->runs[run].window]);
        attend_to_chunk(work, &work->pass->runs[run], layer, within / n_chunks, within % n_chunks);
    }
}

static void merge_chunks(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_model *model = work->model;
    float *factors = work->scores + (int64_t)thread * work->max_slots;
    for (int32_t i = begin; i < end; i++) {
        const struct harken_window *window = &work->pass->windows[work->pass->queries[i].window];
        float *attended = work->attended + (int64_t)i * model->n_state;
        for (int32_t head = 0; head < model->n_heads; head++) {
            const struct harken_partial *partials =
                work->partials + ((int64_t)i * model->n_heads + head) * work->max_chunks;
            work->kernels->merge_chunks(partials, chunks(window), work->head_size,
                                        attended + head * work->head_size, factors);
            float *weights = kept_attention(work, i, layer, head);
            for (int32_t position = 0; weights && position < window->positions; position++)
                weights[position] *= factors[position / window->part];
        }
        work->kernels->quantise(attended, model->n_state, 0, model->layers[layer].cross_out.bits, &work->activations, i);
    }
}

/* A phase that multiplies by a matrix of a layer; items are its groups. */
#define PROJECTION(matrix, input, output, rows)                                                                        \
    static void project_##matrix(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {           \
        const struct work *work = context;                                                                             \
        (void)thread;                                                                                                  \
        work->kernels->linear(&work->model->layers[layer].matrix, begin, end, &work->input, work->pass->n_queries,     \
                              output, (void *const *)work->rows, 0);                                                   \
    }
PROJECTION(out, activations, HARKEN_ADD, x_rows)
PROJECTION(cross_query, activations, HARKEN_STORE, projected_rows)
PROJECTION(cross_out, activations, HARKEN_ADD, x_rows)
PROJECTION(mlp_in, activations, HARKEN_GELU, hidden_rows)
PROJECTION(mlp_out, hidden_activations, HARKEN_ADD, x_rows)
#undef PROJECTION

static void project_to_logits(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    (void)layer, (void)thread;
    work->kernels->linear(&work->model->head, begin, end, &work->activations, work->pass->n_logits, HARKEN_STORE,
                          (void *const *)work->pass->logits, 0);
}

/* Tokens of text whose logits are so far below the largest of them lack the products of the lower halves, a few tenths:
 * each is e^10 times less probable, so it is not picked unless rules forbid the likelier ones. */
static const float COMPLETE_WITHIN = 10.0f;

static void find_thresholds(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    (void)layer, (void)thread;
    for (int32_t i = begin; i < end; i++)
        work->thresholds[i] =
            work->kernels->largest(work->pass->logits[i], work->model->n_partial) - COMPLETE_WITHIN;
}

static void complete_logits(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    (void)layer, (void)thread;
    work->kernels->complete(&work->model->head_rest, begin, end, &work->activations, work->pass->n_logits,
                            work->model->n_partial / HARKEN_GROUP, work->thresholds, work->pass->logits);
}

/* -- Their order, and the number of items of each ----------------------------------------------------------------- */

/* Groups that a thread takes at once: few enough to balance, and many, as what lies behind the last is fetched in vain. */
static int32_t linear_chunk(int32_t n_groups, int32_t threads) {
    return max(n_groups / (threads * 8), 1);
}

enum { PHASES_A_LAYER = 14, OTHER_PHASES = 5 };

int32_t harken_pass_phases(const struct harken_model *model) {
    return model->n_layers * PHASES_A_LAYER + OTHER_PHASES;
}

static int32_t list_phases(const struct work *work, struct harken_phase *phases) {
    const struct harken_model *model = work->model;
    int32_t threads = harken_team_threads(work->pass->decoder->team);
    int32_t n = work->pass->n_queries, n_attended = work->run_items[work->pass->n_runs], count = 0;
    phases[count++] = (struct harken_phase){embed, 0, n, 1};
    for (int32_t i = 0; i < model->n_layers; i++) {
        const struct harken_layer *layer = &model->layers[i];
        int32_t state_groups = groups(&layer->out), mlp_groups = groups(&layer->mlp_in);
        int32_t chunk = linear_chunk(state_groups, threads);
        const struct harken_phase of_layer[PHASES_A_LAYER] = {
            {normalise, i, n, 1},
            {project_qkv, i, 3 * state_groups, linear_chunk(3 * state_groups, threads)},
            {self_attention, i, n * model->n_heads, max(n * model->n_heads / (4 * threads), 1)},
            {quantise_attended, i, n, 1},
            {project_out, i, state_groups, chunk},
            {normalise, i, n, 1},
            {project_cross_query, i, state_groups, chunk},
            {cross_attention, i, n_attended, max(n_attended / (6 * threads), 1)},
            {merge_chunks, i, n, 1},
            {project_cross_out, i, state_groups, chunk},
            {normalise, i, n, 1},
            {project_mlp_in, i, mlp_groups, linear_chunk(mlp_groups, threads)},
            {quantise_hidden, i, n, 1},
            {project_mlp_out, i, state_groups, chunk},
        };
        memcpy(phases + count, of_layer, sizeof of_layer);
        count += PHASES_A_LAYER;
    }
    int32_t head_groups = work->pass->n_logits ? groups(&model->head) : 0;
    phases[count++] = (struct harken_phase){normalise_last, 0, work->pass->n_logits, 1};
    phases[count++] = (struct harken_phase){project_to_logits, 0, head_groups, linear_chunk(head_groups, threads)};
    if (model->head_rest.weights) {
        phases[count++] = (struct harken_phase){find_thresholds, 0, work->pass->n_logits, 1};
        phases[count++] = (struct harken_phase){complete_logits, 0, head_groups, linear_chunk(head_groups, threads)};
    }
    return count;
}

/* -- The working memory ------------------------------------------------------------------------------------------- */

static void take_memory(struct work *work, struct harken_arena *arena) {
    const struct harken_model *model = work->model;
    size_t n = (size_t)work->pass->n_queries, state = (size_t)model->n_state;
    size_t mlp = (size_t)model->layers[0].mlp_in.rows, threads = (size_t)harken_team_threads(work->pass->decoder->team);
    size_t slots = (size_t)work->max_slots;
    work->x = harken_take(arena, n * state, sizeof(float));
    work->projected = harken_take(arena, n * state, sizeof(float));
    work->attended = harken_take(arena, n * state, sizeof(float));
    work->hidden = harken_take(arena, n * mlp, sizeof(float));
    work->x_rows = harken_take(arena, n, sizeof(float *));
    work->projected_rows = harken_take(arena, n, sizeof(float *));
    work->hidden_rows = harken_take(arena, n, sizeof(float *));
    work->cached = harken_take(arena, n, sizeof(void *));
    struct harken_activations *activations[] = {&work->activations, &work->hidden_activations};
    for (int i = 0; i < 2; i++) {
        size_t columns = i ? mlp : state;
        activations[i]->values = harken_take(arena, n * columns, (size_t)work->kernels->activation_bytes);
        activations[i]->scales = harken_take(arena, n * columns / HARKEN_BLOCK, sizeof(float));
        activations[i]->offsets = harken_take(arena, n * columns / HARKEN_BLOCK, sizeof(int32_t));
    }
    work->partials =
        harken_take(arena, n * (size_t)model->n_heads * (size_t)work->max_chunks, sizeof(struct harken_partial));
    work->scores = harken_take(arena, threads * slots, sizeof(float));
    work->run_items = harken_take(arena, (size_t)work->pass->n_runs + 1, sizeof(int32_t));
    work->thresholds = harken_take(arena, (size_t)work->pass->n_logits, sizeof(float));
}

static int32_t allocate(struct work *work, struct harken_arena *arena) {
    struct harken_arena needed = {0}, aligned;
    take_memory(work, &needed);
    if (harken_arena_grow(arena, needed.used, &aligned))
        return HARKEN_NO_MEMORY;
    take_memory(work, &aligned);
    return 0;
}

static void point_to_rows(struct work *work) {
    const struct harken_pass *pass = work->pass;
    const struct harken_model *model = work->model;
    for (int64_t i = 0; i < pass->n_queries; i++) {
        work->x_rows[i] = work->x + i * model->n_state;
        work->projected_rows[i] = work->projected + i * model->n_state;
        work->hidden_rows[i] = work->hidden + i * model->layers[0].mlp_in.rows;
        work->cached[i] = pass->queries[i].cached[pass->queries[i].position];
    }
    work->run_items[0] = 0;
    for (int32_t run = 0; run < pass->n_runs; run++)
        work->run_items[run + 1] =
            work->run_items[run] + model->n_heads * chunks(&pass->windows[pass->runs[run].window]);
}

int32_t harken_pass_run(const struct harken_pass *pass) {
    harken_decoder *decoder = pass->decoder;
    struct work work = {.pass = pass, .model = &decoder->model, .kernels = decoder->kernels};
    work.head_size = decoder->model.n_state / decoder->model.n_heads;
    for (int32_t i = 0; i < pass->n_runs; i++) {
        work.max_chunks = max(work.max_chunks, chunks(&pass->windows[pass->runs[i].window]));
    }
    /* scores of self-attention, or factors of chunks */
    int32_t slots = max(decoder->model.n_context, work.max_chunks);
    work.max_slots = (slots + HARKEN_GROUP - 1) / HARKEN_GROUP * HARKEN_GROUP;
    if (allocate(&work, &decoder->arena))
        return HARKEN_NO_MEMORY;
    point_to_rows(&work);
    harken_team_run(decoder->team, decoder->phases, list_phases(&work, decoder->phases), &work);
    return 0;
}
