/* The keys and values of a window for the cross-attention: projected from the encoder's output, and packed. */
#include "decoder.h"
#include "layout.h"

enum { BLOCK_ROWS = 48 }; /* positions of an item: whole tiles of rows and of packed keys */

struct work {
    const harken_decoder *decoder;
    int32_t positions, layer;
    int64_t head_stride;
    const float *keys, *values, *encoder_output;
    struct harken_rows *rows; /* (threads), each (48, n_state) */
    float *projected;         /* (threads, 48, n_state) */
    uint16_t *packed;
};

int64_t harken_window_bytes(const harken_decoder *decoder, int32_t positions) {
    return harken_window_offset(&decoder->model, positions, decoder->model.n_layers, 0) * (int64_t)sizeof(uint16_t);
}

static int32_t head_size(const struct work *work) {
    return work->decoder->model.n_state / work->decoder->model.n_heads;
}

static int32_t blocks(const struct work *work) {
    return (work->positions + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

/* The place of a head's keys, from a position on that begins a tile, and that of its values. */
static uint16_t *packed_keys(const struct work *work, int32_t layer, int32_t head, int32_t position) {
    int64_t offset = harken_window_offset(&work->decoder->model, work->positions, layer, head);
    return work->packed + offset + (int64_t)position * head_size(work);
}

static uint16_t *packed_values(const struct work *work, int32_t layer, int32_t head, int32_t position) {
    return packed_keys(work, layer, head, position) + harken_key_halves(&work->decoder->model, work->positions);
}

static void pack_heads(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_kernels *kernels = work->decoder->kernels;
    int32_t size = head_size(work);
    (void)thread;
    for (int32_t head = begin; head < end; head++) {
        int64_t from = head * work->head_stride;
        kernels->pack_keys(work->keys + from, size, work->positions, size, packed_keys(work, layer, head, 0));
        kernels->pack_values(work->values + from, size, work->positions, size, packed_values(work, layer, head, 0));
    }
}

void harken_pack_window(harken_decoder *decoder, int32_t layer, const float *keys, const float *values,
                        int64_t head_stride, int32_t positions, uint16_t *packed) {
    struct work work = {.decoder = decoder, .positions = positions, .head_stride = head_stride, .packed = packed};
    work.keys = keys;
    work.values = values;
    struct harken_phase phase = {pack_heads, layer, decoder->model.n_heads, 1};
    harken_team_run(decoder->team, &phase, 1, &work);
}

/* Items are blocks of positions. */
static void project_blocks(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread) {
    const struct work *work = context;
    const struct harken_model *model = &work->decoder->model;
    const struct harken_kernels *kernels = work->decoder->kernels;
    const struct harken_layer *layer = &model->layers[number];
    int32_t size = head_size(work);
    int64_t state = model->n_state, columns = layer->cross_key.columns;
    float *projected = work->projected + thread * BLOCK_ROWS * state;
    for (int32_t first = begin * BLOCK_ROWS; first < end * BLOCK_ROWS; first += BLOCK_ROWS) {
        int32_t n = work->positions - first < BLOCK_ROWS ? work->positions - first : BLOCK_ROWS;
        kernels->quantise_rows(work->encoder_output + first * columns, columns, n, layer->cross_key.columns, 0,
                               &work->rows[thread]);
        kernels->multiply(&layer->cross_key, &work->rows[thread], n, HARKEN_STORE, projected, state);
        for (int32_t head = 0; head < model->n_heads; head++)
            kernels->pack_keys(projected + head * size, state, n, size, packed_keys(work, number, head, first));
        kernels->multiply(&layer->cross_value, &work->rows[thread], n, HARKEN_STORE, projected, state);
        for (int32_t head = 0; head < model->n_heads; head++)
            kernels->pack_values(projected + head * size, state, n, size, packed_values(work, number, head, first));
    }
}

static void take_memory(struct work *work, struct harken_arena *arena) {
    const struct harken_model *model = &work->decoder->model;
    size_t threads = (size_t)harken_team_threads(work->decoder->team), state = (size_t)model->n_state;
    size_t columns = (size_t)model->layers[0].cross_key.columns;
    work->rows = harken_take(arena, threads, sizeof *work->rows);
    work->projected = harken_take(arena, threads * BLOCK_ROWS * state, sizeof(float));
    for (size_t thread = 0; thread < threads; thread++) {
        struct harken_rows rows;
        rows.values = harken_take(arena, BLOCK_ROWS * columns, sizeof(int16_t));
        rows.scales = harken_take(arena, BLOCK_ROWS, sizeof(float));
        if (arena->memory)
            work->rows[thread] = rows;
    }
}

int32_t harken_project_window(harken_decoder *decoder, const float *encoder_output, int32_t positions,
                              uint16_t *packed) {
    struct work work = {.decoder = decoder, .positions = positions, .encoder_output = encoder_output};
    work.packed = packed;
    struct harken_arena needed = {0}, arena;
    take_memory(&work, &needed);
    if (harken_arena_grow(&decoder->arena, needed.used, &arena))
        return HARKEN_NO_MEMORY;
    take_memory(&work, &arena);
    for (int32_t layer = 0; layer < decoder->model.n_layers; layer++)
        decoder->phases[layer] = (struct harken_phase){project_blocks, layer, blocks(&work), 1};
    harken_team_run(decoder->team, decoder->phases, decoder->model.n_layers, &work);
    return 0;
}
