/* The keys and values of a window for the cross-attention: projected from the encoder's output, and packed. */
#include "decoder.h"

struct work {
    const harken_decoder *decoder;
    const struct harken_window *window;
    int32_t first, n;            /* the positions to project, from the first of a chunk on */
    struct harken_blocks blocks; /* of these */
    const float *encoder_output; /* of these */
    float *keys, *values;        /* of one layer, (n, n_state) each */
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
    int32_t part = work->window->part, chunks = parts(work->n, part), first_chunk = work->first / part;
    (void)thread;
    for (int32_t item = begin; item < end; item++) {
        int32_t head = item / chunks, chunk = item % chunks;
        struct harken_matrix keys, values;
        harken_chunk_matrices(work->decoder, work->window, layer, head, first_chunk + chunk, &keys, &values);
        int64_t from = (int64_t)chunk * part * state + head * keys.columns;
        kernels->pack_keys(work->keys + from, state, keys.rows, keys.columns, (void *)keys.weights,
                           (float *)keys.scales);
        kernels->pack_values(work->values + from, state, keys.rows, keys.columns, (void *)values.weights,
                             (float *)values.scales);
    }
}

/* Items are blocks of positions. */
static void project_blocks(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_layer *layer = &work->decoder->model.layers[number];
    struct harken_input *input = &work->inputs[thread];
    int64_t columns = layer->cross_key.columns, state = work->decoder->model.n_state;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = harken_first_row(&work->blocks, block), n = harken_first_row(&work->blocks, block + 1) - first;
        harken_read_rows(input, &layer->cross_key, work->encoder_output + first * columns, columns, n, 0);
        harken_multiply_rows(input, &layer->cross_key, n, HARKEN_STORE, work->keys + first * state, state);
        harken_multiply_rows(input, &layer->cross_value, n, HARKEN_STORE, work->values + first * state, state);
    }
}

static void take_memory(struct work *work, struct harken_arena *arena) {
    const struct harken_model *model = &work->decoder->model;
    size_t threads = (size_t)harken_team_threads(work->decoder->team);
    size_t projected = (size_t)work->n * (size_t)model->n_state;
    work->keys = harken_take(arena, projected, sizeof(float));
    work->values = harken_take(arena, projected, sizeof(float));
    work->inputs = harken_take(arena, threads, sizeof *work->inputs);
    const struct harken_matrix *matrix = &model->layers[0].cross_key;
    for (size_t thread = 0; thread < threads; thread++) {
        struct harken_input input = harken_take_input(arena, work->decoder->kernels, matrix->bits, matrix->columns,
                                                      HARKEN_BLOCK_ROWS * (size_t)matrix->columns);
        if (arena->memory)
            work->inputs[thread] = input;
    }
}

int32_t harken_project_window(harken_decoder *decoder, const float *encoder_output, int32_t first,
                              const struct harken_window *window) {
    const struct harken_model *model = &decoder->model;
    int32_t begin = first / window->part * window->part;
    struct work work = {.decoder = decoder, .window = window, .first = begin, .n = window->positions - begin};
    work.encoder_output = encoder_output + (int64_t)begin * model->layers[0].cross_key.columns;
    work.blocks = harken_divide(work.n, model->layers[0].cross_key.bits, harken_team_threads(decoder->team));
    struct harken_arena needed = {0}, arena;
    take_memory(&work, &needed);
    if (harken_arena_grow(&decoder->arena, needed.used, &arena))
        return HARKEN_NO_MEMORY;
    take_memory(&work, &arena);
    int32_t n = 0, chunk_items = model->n_heads * parts(work.n, window->part);
    for (int32_t layer = 0; layer < model->n_layers; layer++) {
        decoder->phases[n++] = (struct harken_phase){project_blocks, layer, work.blocks.count, 1};
        decoder->phases[n++] = (struct harken_phase){pack_chunks, layer, chunk_items, 1};
    }
    harken_team_run(decoder->team, decoder->phases, n, &work);
    return 0;
}
