/* The encoder of a window or of the next chunk of a stream: phases of blocks of positions, but for attention, which is
 * one of heads. A window is a chunk without history, with zeros for the frames around it.
 *
 * Source: openai/whisper, model.py, AudioEncoder. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
    MEL_ROWS = 48,   /* frames of an item */
    QUERY_ROWS = 24, /* queries of an item of attention, whose scores stay in the cache of a core */
    QUERY_LANES = 16 /* the same in 8 bits: one in each lane */
};

/* The working memory of one thread. */
struct scratch {
    struct harken_input input;
    struct harken_input factor; /* products with the first factor of a layer of low rank */
    float *hidden;              /* (48, mlp), and before them those products */
    float *scores;              /* (24, k) */
};

/* A chunk in work; p is the number of its positions, k that of all keys, s the state, h the number of heads. */
struct work {
    const struct harken_encoder *model;
    const struct harken_kernels *kernels;
    const struct harken_chunk *chunk;
    int32_t frames, n_keys, head_size;
    struct harken_blocks blocks, conv_blocks; /* of positions, and of frames of the first convolution */
    int32_t mel_columns;                   /* n_mels rounded up to whole vectors, m */
    float *mel_rows;                       /* (2 p + 3, m) */
    float *conv_rows;                      /* (2 p + 1, s) */
    float *x, *queries, *attended;         /* (p, s) each */
    float *keys_values;                    /* (layers, k, 2 s), or (k, 2 s) for all layers in turn */
    int64_t layer_stride;                  /* of these */
    struct harken_matrix *keys, *values; /* (h) each */
    struct harken_head *heads;           /* (h), instead of these in 8 bits */
    struct scratch *scratch;               /* (threads) */
    struct harken_phase *phases;
};

/* -- Linear layers ------------------------------------------------------------------------------------------------ */

static void read_rows(struct scratch *scratch, const struct harken_linear *layer, const float *x, int64_t stride,
                      int32_t n, int normalise) {
    harken_read_rows(&scratch->input, layer->first.weights ? &layer->first : &layer->matrix, x, stride, n, normalise);
}

/* The rows that were read stay in the input, for another layer. */
static void multiply_rows(struct scratch *scratch, const struct harken_linear *layer, int32_t n,
                          enum harken_output output, float *y, int64_t stride) {
    const struct harken_matrix *first = &layer->first, *matrix = &layer->matrix;
    if (first->weights) {
        harken_multiply_rows(&scratch->input, first, n, HARKEN_STORE, scratch->hidden, first->rows);
        harken_read_rows(&scratch->factor, matrix, scratch->hidden, first->rows, n, 0);
    }
    harken_multiply_rows(first->weights ? &scratch->factor : &scratch->input, matrix, n, output, y, stride);
}

/* -- The phases -------------------------------------------------------------------------------------------------- */

static void transpose_mel(void *context, int32_t unused, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    int32_t n_mels = work->model->n_mels, last = min(end * MEL_ROWS, work->frames);
    (void)unused, (void)thread;
    for (int32_t frame = begin * MEL_ROWS; frame < last; frame++) {
        float *row = work->mel_rows + (int64_t)frame * work->mel_columns;
        for (int32_t mel = 0; mel < work->mel_columns; mel++)
            row[mel] = mel < n_mels ? work->chunk->mel[(int64_t)mel * work->frames + frame] : 0;
    }
}

/* A convolution is a product with rows that overlap: three frames each. */
static void convolve_frames(void *context, int32_t unused, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_encoder *model = work->model;
    struct scratch *scratch = &work->scratch[thread];
    (void)unused;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = harken_first_row(&work->conv_blocks, block);
        int32_t n = harken_first_row(&work->conv_blocks, block + 1) - first;
        float *rows = work->conv_rows + (int64_t)first * model->n_state;
        harken_read_rows(&scratch->input, &model->conv1, work->mel_rows + (int64_t)first * work->mel_columns,
                         work->mel_columns, n, 0);
        harken_multiply_rows(&scratch->input, &model->conv1, n, HARKEN_GELU, rows, model->n_state);
        if (first == 0 && work->chunk->first_position == 0) /* before a recording, the second convolution reads zeros */
            memset(rows, 0, (size_t)model->n_state * sizeof *rows);
    }
}

static void project_qkv(struct work *work, int32_t number, int32_t first, int32_t n, struct scratch *scratch) {
    const struct harken_encoder_layer *layer = &work->model->layers[number];
    int64_t state = work->model->n_state, row = work->chunk->n_history + first;
    float *keys_values = work->keys_values + number * work->layer_stride + row * 2 * state;
    read_rows(scratch, &layer->query, work->x + first * state, state, n, 1);
    multiply_rows(scratch, &layer->query, n, HARKEN_STORE, work->queries + first * state, state);
    multiply_rows(scratch, &layer->key, n, HARKEN_STORE, keys_values, 2 * state);
    multiply_rows(scratch, &layer->value, n, HARKEN_STORE, keys_values + state, 2 * state);
}

static void embed_positions(void *context, int32_t unused, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_encoder *model = work->model;
    struct scratch *scratch = &work->scratch[thread];
    int64_t state = model->n_state;
    (void)unused;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = harken_first_row(&work->blocks, block), n = harken_first_row(&work->blocks, block + 1) - first;
        float *x = work->x + first * state;
        const float *embeddings = model->positions + (work->chunk->first_position + first) * state;
        harken_read_rows(&scratch->input, &model->conv2, work->conv_rows + 2 * first * state, 2 * state, n, 0);
        harken_multiply_rows(&scratch->input, &model->conv2, n, HARKEN_GELU, x, state);
        for (int64_t i = 0; i < n * state; i++)
            x[i] += embeddings[i];
        if (model->rotation.weights) {
            harken_read_rows(&scratch->input, &model->rotation, x, state, n, 0);
            harken_multiply_rows(&scratch->input, &model->rotation, n, HARKEN_STORE, x, state);
        }
        project_qkv(work, 0, first, n, scratch);
    }
}

/* Items are the keys of each head, then its values. */
static void pack_heads(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    int32_t heads = work->model->n_heads;
    int64_t state = work->model->n_state;
    (void)thread;
    for (int32_t item = begin; item < end; item++) {
        int32_t head = item % heads;
        int64_t channel = head * work->head_size + (item < heads ? 0 : state);
        float *from = work->keys_values + layer * work->layer_stride + channel;
        if (work->chunk->history)
            for (int64_t row = 0; row < work->chunk->n_history; row++)
                memcpy(from + row * 2 * state,
                       work->chunk->history + layer * work->chunk->layer_stride + row * 2 * state + channel,
                       (size_t)work->head_size * sizeof *from);
        if (work->heads && item < heads)
            work->kernels->pack_head_keys(from, 2 * state, work->n_keys, &work->heads[head]);
        else if (work->heads)
            work->kernels->pack_head_values(from, 2 * state, work->n_keys, &work->heads[head]);
        else if (item < heads)
            work->kernels->pack_keys(from, 2 * state, work->n_keys, &work->keys[head]);
        else
            work->kernels->pack_values(from, 2 * state, work->n_keys, &work->values[head]);
    }
}

static int32_t query_rows(const struct work *work) {
    return work->heads ? QUERY_LANES : QUERY_ROWS;
}

static void attend(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    struct scratch *scratch = &work->scratch[thread];
    int32_t rows = query_rows(work), blocks = parts(work->chunk->positions, rows);
    int64_t state = work->model->n_state;
    (void)layer;
    for (int32_t item = begin; item < end; item++) {
        int32_t head = item / blocks, first = item % blocks * rows, n = min(work->chunk->positions - first, rows);
        int64_t place = first * state + head * work->head_size;
        const float *queries = work->queries + place;
        float *to = work->attended + place;
        if (work->heads)
            work->kernels->head_attention(queries, state, n, &work->heads[head], to, state);
        else
            work->kernels->window_attention(queries, state, n, &work->keys[head], &work->values[head],
                                            &scratch->input.rows, scratch->scores, to, state);
    }
}

/* The rest of a layer, and the queries, keys and values of the next. */
static void transform(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_encoder *model = work->model;
    const struct harken_encoder_layer *layer = &model->layers[number];
    struct scratch *scratch = &work->scratch[thread];
    int64_t state = model->n_state, mlp = layer->mlp_in.matrix.rows;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = harken_first_row(&work->blocks, block), n = harken_first_row(&work->blocks, block + 1) - first;
        float *x = work->x + first * state;
        read_rows(scratch, &layer->out, work->attended + first * state, state, n, 0);
        multiply_rows(scratch, &layer->out, n, HARKEN_ADD, x, state);
        read_rows(scratch, &layer->mlp_in, x, state, n, 1);
        multiply_rows(scratch, &layer->mlp_in, n, HARKEN_GELU, scratch->hidden, mlp);
        read_rows(scratch, &layer->mlp_out, scratch->hidden, mlp, n, 0);
        multiply_rows(scratch, &layer->mlp_out, n, HARKEN_ADD, x, state);
        float *output = work->chunk->encoder_output + first * state;
        if (number + 1 < model->n_layers)
            project_qkv(work, number + 1, first, n, scratch);
        else if (model->restoration.weights) {
            harken_read_rows(&scratch->input, &model->restoration, x, state, n, 1);
            harken_multiply_rows(&scratch->input, &model->restoration, n, HARKEN_STORE, output, state);
        } else
            for (int32_t i = 0; i < n; i++)
                work->kernels->normalise_row(x + i * state, model->n_state, model->last_gain, model->last_bias,
                                             output + i * state);
    }
}

/* -- Their order, and the working memory ------------------------------------------------------------------------- */

enum { FIRST_PHASES = 3, PHASES_A_LAYER = 3 };

static int32_t list_phases(struct work *work) {
    int32_t blocks = work->blocks.count, heads = work->model->n_heads, n = 0;
    work->phases[n++] = (struct harken_phase){transpose_mel, 0, parts(work->frames, MEL_ROWS), 4};
    work->phases[n++] = (struct harken_phase){convolve_frames, 0, work->conv_blocks.count, 1};
    work->phases[n++] = (struct harken_phase){embed_positions, 0, blocks, 1};
    for (int32_t layer = 0; layer < work->model->n_layers; layer++) {
        work->phases[n++] = (struct harken_phase){pack_heads, layer, 2 * heads, 1};
        work->phases[n++] = (struct harken_phase){attend, layer, heads * parts(work->chunk->positions, query_rows(work)), 1};
        work->phases[n++] = (struct harken_phase){transform, layer, blocks, 1};
    }
    return n;
}

static void take_heads(struct work *work, struct harken_arena *arena) {
    size_t padded = (size_t)parts(work->n_keys, HARKEN_KEYS) * HARKEN_KEYS, size = (size_t)work->head_size;
    work->heads = harken_take(arena, (size_t)work->model->n_heads, sizeof *work->heads);
    for (int32_t i = 0; i < work->model->n_heads; i++) {
        struct harken_head head = {.n = work->n_keys, .padded = (int32_t)padded, .size = work->head_size};
        head.keys = harken_take(arena, padded * size, sizeof *head.keys);
        head.key_scales = harken_take(arena, padded, sizeof *head.key_scales);
        head.values = harken_take(arena, padded * size, sizeof *head.values);
        head.value_scales = harken_take(arena, padded / HARKEN_KEYS * size, sizeof *head.value_scales);
        head.key_offsets = harken_take(arena, padded, sizeof *head.key_offsets);
        head.bias = work->chunk->key_bias;
        if (arena->memory)
            work->heads[i] = head;
    }
}

static void take_head_matrices(struct work *work, struct harken_arena *arena) {
    int32_t padded = parts(work->n_keys, HARKEN_GROUP) * HARKEN_GROUP, bits = work->model->attention_bits;
    size_t number = (size_t)work->kernels->number_bytes, keys = (size_t)padded, numbers = keys * (size_t)work->head_size;
    work->keys = harken_take(arena, (size_t)work->model->n_heads, sizeof *work->keys);
    work->values = harken_take(arena, (size_t)work->model->n_heads, sizeof *work->values);
    for (int32_t head = 0; head < work->model->n_heads; head++) {
        struct harken_matrix head_keys = {
            .rows = work->n_keys, .columns = work->head_size, .bits = bits, .bias = work->chunk->key_bias};
        struct harken_matrix head_values = {.rows = work->head_size, .columns = padded, .bits = bits};
        head_keys.weights = harken_take(arena, numbers, number);
        head_keys.scales = harken_take(arena, keys, sizeof(float));
        head_values.weights = harken_take(arena, numbers, number);
        head_values.scales = harken_take(arena, (size_t)work->head_size, sizeof(float));
        if (arena->memory)
            work->keys[head] = head_keys, work->values[head] = head_values;
    }
}

static void take_memory(struct work *work, struct harken_arena *arena, int32_t threads) {
    const struct harken_encoder *model = work->model;
    size_t frames = (size_t)work->frames, positions = (size_t)work->chunk->positions, state = (size_t)model->n_state;
    int32_t mlp = model->layers[0].mlp_in.matrix.rows, bits = model->layers[0].mlp_in.matrix.bits;
    work->mel_rows = harken_take(arena, frames * (size_t)work->mel_columns, sizeof(float));
    work->conv_rows = harken_take(arena, (frames - 2) * state, sizeof(float));
    work->x = harken_take(arena, positions * state, sizeof(float));
    work->queries = harken_take(arena, positions * state, sizeof(float));
    work->attended = work->conv_rows; /* which are read no more by then, and twice as many */
    if (!work->chunk->keys_values)
        work->keys_values = harken_take(arena, (size_t)work->n_keys * 2 * state, sizeof(float));
    work->phases = harken_take(arena, FIRST_PHASES + PHASES_A_LAYER * (size_t)model->n_layers, sizeof *work->phases);
    int32_t columns = max(max(model->conv1.columns, model->conv2.columns), mlp), scores = 0;
    if (model->attention_bits == 8)
        take_heads(work, arena);
    else {
        take_head_matrices(work, arena);
        scores = QUERY_ROWS * parts(work->n_keys, HARKEN_GROUP) * HARKEN_GROUP;
    }
    work->scratch = harken_take(arena, (size_t)threads, sizeof *work->scratch);
    for (int32_t thread = 0; thread < threads; thread++) {
        struct scratch scratch = {0};
        size_t numbers = (size_t)max(HARKEN_BLOCK_ROWS * columns, scores);
        scratch.input = harken_take_input(arena, work->kernels, bits, mlp, numbers);
        scratch.factor = harken_take_input(arena, work->kernels, bits, model->n_state, HARKEN_BLOCK_ROWS * state);
        scratch.hidden = harken_take(arena, HARKEN_BLOCK_ROWS * (size_t)mlp, sizeof(float));
        scratch.scores = harken_take(arena, (size_t)scores, sizeof(float));
        if (arena->memory)
            work->scratch[thread] = scratch;
    }
}

int32_t harken_encode(harken_decoder *decoder, const struct harken_encoder *encoder, const struct harken_chunk *chunk) {
    struct work work = {.model = encoder, .kernels = decoder->kernels, .chunk = chunk};
    work.frames = 2 * chunk->positions + 3;
    work.n_keys = chunk->n_history + chunk->positions;
    work.head_size = encoder->n_state / encoder->n_heads;
    work.mel_columns = encoder->conv1.columns / 3;
    work.keys_values = chunk->keys_values;
    work.layer_stride = chunk->keys_values ? chunk->layer_stride : 0;
    int32_t threads = harken_team_threads(decoder->team);
    work.blocks = harken_divide(chunk->positions, encoder->layers[0].mlp_in.matrix.bits, decoder);
    work.conv_blocks = harken_divide(work.frames - 2, encoder->conv1.bits, decoder);
    struct harken_arena needed = {0}, arena;
    take_memory(&work, &needed, threads);
    if (harken_arena_grow(&decoder->arena, needed.used, &arena))
        return HARKEN_NO_MEMORY;
    take_memory(&work, &arena, threads);
    harken_team_run(decoder->team, work.phases, list_phases(&work), &work);
    return 0;
}
