/* The keys and values of a window for the cross-attention: projected from the encoder's output, and packed. */
#include "internal.h"

struct work {
    const harken_decoder *decoder;
    const struct harken_window *window;
    const struct harken_known *known;
    int32_t first, n, n_known;   /* the first position, the number to project, and of those known behind them */
    struct harken_blocks blocks; /* of those to project */
    const float *encoder_output; /* of these */
    float *keys_values;          /* (layers, n + n_known, 2 n_state), or for all layers in turn */
    int64_t layer_stride;        /* of these */
    struct harken_input *inputs; /* (threads), each (48, n_audio_state) */
};

int64_t harken_window_bytes(const harken_decoder *decoder, int32_t capacity, int32_t part) {
    return harken_head_layout(decoder, capacity, part).size * decoder->model.n_layers * decoder->model.n_heads;
}

/* Items are the chunks of each head, from the first that changes on. */
static void pack_chunks(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_kernels *kernels = work->decoder->kernels;
    int64_t state = work->decoder->model.n_state;
    int32_t part = work->window->part, chunks = parts(work->n + work->n_known, part), first_chunk = work->first / part;
    (void)thread;
    for (int32_t item = begin; item < end; item++) {
        int32_t head = item / chunks, chunk = item % chunks;
        struct harken_matrix keys, values;
        harken_chunk_matrices(work->decoder, work->window, layer, head, first_chunk + chunk, &keys, &values);
        const float *from = work->keys_values + (int64_t)chunk * part * 2 * state + head * keys.columns;
        kernels->pack_keys(from, 2 * state, keys.rows, &keys);
        kernels->pack_values(from + state, 2 * state, keys.rows, &values);
    }
}

/* Items are blocks of positions: those to project, then those known. */
static void project_blocks(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_layer *layer = &work->decoder->model.layers[number];
    struct harken_input *input = &work->inputs[thread];
    int64_t columns = layer->cross_key.columns, state = work->decoder->model.n_state;
    float *keys_values = work->keys_values + number * work->layer_stride;
    for (int32_t block = begin; block < end; block++) {
        if (block >= work->blocks.count) {
            int64_t row = (int64_t)(block - work->blocks.count) * HARKEN_BLOCK_ROWS;
            int32_t n = min(work->n_known - (int32_t)row, HARKEN_BLOCK_ROWS);
            memcpy(keys_values + (work->n + row) * 2 * state,
                   work->known->keys_values + number * work->known->layer_stride + row * 2 * state,
                   (size_t)n * 2 * (size_t)state * sizeof *keys_values);
            continue;
        }
        int32_t first = harken_first_row(&work->blocks, block), n = harken_first_row(&work->blocks, block + 1) - first;
        float *to = keys_values + first * 2 * state;
        harken_read_rows(input, &layer->cross_key, work->encoder_output + first * columns, columns, n, 0);
        harken_multiply_rows(input, &layer->cross_key, n, HARKEN_STORE, to, 2 * state);
        harken_multiply_rows(input, &layer->cross_value, n, HARKEN_STORE, to + state, 2 * state);
    }
}

static void take_memory(struct work *work, struct harken_arena *arena) {
    const struct harken_model *model = &work->decoder->model;
    size_t threads = (size_t)harken_team_threads(work->decoder->team);
    if (!work->layer_stride)
        work->keys_values =
            harken_take(arena, (size_t)(work->n + work->n_known) * 2 * (size_t)model->n_state, sizeof(float));
    work->inputs = harken_take(arena, threads, sizeof *work->inputs);
    const struct harken_matrix *matrix = &model->layers[0].cross_key;
    for (size_t thread = 0; thread < threads; thread++) {
        struct harken_input input = harken_take_input(arena, work->decoder->kernels, matrix->bits, matrix->columns,
                                                      HARKEN_BLOCK_ROWS * (size_t)matrix->columns);
        if (arena->memory)
            work->inputs[thread] = input;
    }
}

/* Projects, and packs if there is a window. */
static int32_t run(harken_decoder *decoder, struct work *work) {
    const struct harken_model *model = &decoder->model;
    work->decoder = decoder;
    work->blocks = harken_divide(work->n, model->layers[0].cross_key.bits, decoder);
    struct harken_arena needed = {0}, arena;
    take_memory(work, &needed);
    if (harken_arena_grow(&decoder->arena, needed.used, &arena))
        return HARKEN_NO_MEMORY;
    take_memory(work, &arena);
    int32_t phases = 0, blocks = work->blocks.count + parts(work->n_known, HARKEN_BLOCK_ROWS);
    for (int32_t layer = 0; layer < model->n_layers; layer++) {
        decoder->phases[phases++] = (struct harken_phase){project_blocks, layer, blocks, 1};
        if (work->window) {
            int32_t chunks = model->n_heads * parts(work->n + work->n_known, work->window->part);
            decoder->phases[phases++] = (struct harken_phase){pack_chunks, layer, chunks, 1};
        }
    }
    harken_team_run(decoder->team, decoder->phases, phases, work);
    return 0;
}

int32_t harken_project_rows(harken_decoder *decoder, const float *encoder_output, int32_t n, float *keys_values) {
    struct work work = {.n = n, .encoder_output = encoder_output, .keys_values = keys_values};
    work.layer_stride = (int64_t)n * 2 * decoder->model.n_state;
    return run(decoder, &work);
}

int32_t harken_project_window(harken_decoder *decoder, const float *encoder_output, int32_t first,
                              const struct harken_known *known, const struct harken_window *window) {
    struct work work = {.window = window, .known = known, .first = first / window->part * window->part};
    work.n_known = known ? known->n : 0;
    work.n = window->positions - work.first - work.n_known;
    work.encoder_output = encoder_output + (int64_t)work.first * decoder->model.layers[0].cross_key.columns;
    return run(decoder, &work);
}
