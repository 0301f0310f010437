/* The encoder of a window: phases of blocks of positions, but for attention, which is one of heads.
 *
 * Source: openai/whisper, model.py, AudioEncoder. */
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum {
    BLOCK_ROWS = 48, /* positions of an item: a weight that was read multiplies so many rows */
    QUERY_ROWS = 24, /* queries of an item of attention, whose scores stay in the cache of a core */
};

/* The working memory of one thread. */
struct scratch {
    struct harken_rows rows; /* the input of a product */
    float *hidden;           /* (48, mlp) */
    float *scores;           /* (24, p) */
};

/* A window in work; f is the number of frames, p that of positions, s the state, h the number of heads. */
struct work {
    const struct harken_encoder *model;
    const struct harken_kernels *kernels;
    int32_t frames, positions, head_size;
    int32_t mel_columns;                   /* n_mels rounded up to whole vectors, m */
    const float *mel;                      /* (n_mels, f) */
    float *encoder_output;                 /* (p, s) */
    float *mel_rows;                       /* (f + 2, m), a row of zeros before and behind */
    float *conv_rows;                      /* (f + 1, s), a row of zeros before */
    float *x, *attended;                   /* (p, s) each */
    float *qkv;                            /* (p, 3 s) */
    struct harken_matrix16 *keys, *values; /* (h) each */
    struct scratch *scratch;               /* (threads) */
    struct harken_phase *phases;
};

static int32_t min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t count(int32_t n, int32_t size) {
    return (n + size - 1) / size;
}

/* -- The phases -------------------------------------------------------------------------------------------------- */

static void transpose_mel(void *context, int32_t unused, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    int32_t n_mels = work->model->n_mels, last = min(end * BLOCK_ROWS, work->frames);
    (void)unused, (void)thread;
    for (int32_t frame = begin * BLOCK_ROWS; frame < last; frame++) {
        float *row = work->mel_rows + (int64_t)(frame + 1) * work->mel_columns;
        for (int32_t mel = 0; mel < work->mel_columns; mel++)
            row[mel] = mel < n_mels ? work->mel[(int64_t)mel * work->frames + frame] : 0;
    }
}

/* A convolution is a product with rows that overlap: three frames each. */
static void convolve_frames(void *context, int32_t unused, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_encoder *model = work->model;
    struct scratch *scratch = &work->scratch[thread];
    (void)unused;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = block * BLOCK_ROWS, n = min(work->frames - first, BLOCK_ROWS);
        work->kernels->quantise_rows(work->mel_rows + (int64_t)first * work->mel_columns, work->mel_columns, n,
                                     model->conv1.columns, 0, &scratch->rows);
        work->kernels->multiply(&model->conv1, &scratch->rows, n, HARKEN_GELU,
                                work->conv_rows + (int64_t)(first + 1) * model->n_state, model->n_state);
    }
}

static void project_qkv(struct work *work, int32_t layer, int32_t first, int32_t n, struct scratch *scratch) {
    int64_t state = work->model->n_state;
    work->kernels->quantise_rows(work->x + first * state, state, n, work->model->n_state, 1, &scratch->rows);
    work->kernels->multiply(&work->model->layers[layer].qkv, &scratch->rows, n, HARKEN_STORE,
                            work->qkv + first * 3 * state, 3 * state);
}

static void embed_positions(void *context, int32_t unused, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_encoder *model = work->model;
    struct scratch *scratch = &work->scratch[thread];
    int64_t state = model->n_state;
    (void)unused;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = block * BLOCK_ROWS, n = min(work->positions - first, BLOCK_ROWS);
        float *x = work->x + first * state;
        work->kernels->quantise_rows(work->conv_rows + 2 * first * state, 2 * state, n, model->conv2.columns, 0,
                                     &scratch->rows);
        work->kernels->multiply(&model->conv2, &scratch->rows, n, HARKEN_GELU, x, state);
        for (int64_t i = 0; i < n * state; i++)
            x[i] += model->positions[first * state + i];
        project_qkv(work, 0, first, n, scratch);
    }
}

/* Items are the keys of each head, then its values. */
static void pack_heads(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    int32_t heads = work->model->n_heads;
    int64_t state = work->model->n_state;
    (void)layer, (void)thread;
    for (int32_t item = begin; item < end; item++) {
        int32_t head = item % heads;
        const float *from = work->qkv + state + head * work->head_size;
        const struct harken_matrix16 *matrix = item < heads ? &work->keys[head] : &work->values[head];
        if (item < heads)
            work->kernels->pack_keys(from, 3 * state, work->positions, work->head_size, (int16_t *)matrix->weights,
                                     (float *)matrix->scales);
        else
            work->kernels->pack_values(from + state, 3 * state, work->positions, work->head_size,
                                       (int16_t *)matrix->weights, (float *)matrix->scales);
    }
}

static void attend(void *context, int32_t layer, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    struct scratch *scratch = &work->scratch[thread];
    int32_t blocks = count(work->positions, QUERY_ROWS);
    int64_t state = work->model->n_state;
    (void)layer;
    for (int32_t item = begin; item < end; item++) {
        int32_t head = item / blocks, first = item % blocks * QUERY_ROWS;
        int64_t channel = (int64_t)head * work->head_size;
        work->kernels->window_attention(work->qkv + first * 3 * state + channel, 3 * state,
                                        min(work->positions - first, QUERY_ROWS), &work->keys[head],
                                        &work->values[head], &scratch->rows, scratch->scores,
                                        work->attended + first * state + channel, state);
    }
}

/* The rest of a layer, and the queries, keys and values of the next. */
static void transform(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread) {
    struct work *work = context;
    const struct harken_encoder *model = work->model;
    const struct harken_encoder_layer *layer = &model->layers[number];
    const struct harken_kernels *kernels = work->kernels;
    struct scratch *scratch = &work->scratch[thread];
    int64_t state = model->n_state, mlp = layer->mlp_in.rows;
    for (int32_t block = begin; block < end; block++) {
        int32_t first = block * BLOCK_ROWS, n = min(work->positions - first, BLOCK_ROWS);
        float *x = work->x + first * state;
        kernels->quantise_rows(work->attended + first * state, state, n, model->n_state, 0, &scratch->rows);
        kernels->multiply(&layer->out, &scratch->rows, n, HARKEN_ADD, x, state);
        kernels->quantise_rows(x, state, n, model->n_state, 1, &scratch->rows);
        kernels->multiply(&layer->mlp_in, &scratch->rows, n, HARKEN_GELU, scratch->hidden, mlp);
        kernels->quantise_rows(scratch->hidden, mlp, n, layer->mlp_in.rows, 0, &scratch->rows);
        kernels->multiply(&layer->mlp_out, &scratch->rows, n, HARKEN_ADD, x, state);
        if (number + 1 < model->n_layers)
            project_qkv(work, number + 1, first, n, scratch);
        else
            for (int32_t i = 0; i < n; i++)
                kernels->normalise_row(x + i * state, model->n_state, model->last_gain, model->last_bias,
                                       work->encoder_output + (first + i) * state);
    }
}

/* -- Their order, and the working memory ------------------------------------------------------------------------- */

enum { FIRST_PHASES = 3, PHASES_A_LAYER = 3 };

static int32_t list_phases(struct work *work) {
    int32_t blocks = count(work->positions, BLOCK_ROWS), frame_blocks = count(work->frames, BLOCK_ROWS);
    int32_t heads = work->model->n_heads, n = 0;
    work->phases[n++] = (struct harken_phase){transpose_mel, 0, frame_blocks, 4};
    work->phases[n++] = (struct harken_phase){convolve_frames, 0, frame_blocks, 1};
    work->phases[n++] = (struct harken_phase){embed_positions, 0, blocks, 1};
    for (int32_t layer = 0; layer < work->model->n_layers; layer++) {
        work->phases[n++] = (struct harken_phase){pack_heads, layer, 2 * heads, 1};
        work->phases[n++] = (struct harken_phase){attend, layer, heads * count(work->positions, QUERY_ROWS), 1};
        work->phases[n++] = (struct harken_phase){transform, layer, blocks, 1};
    }
    return n;
}

static int32_t max_columns(const struct work *work) {
    const struct harken_encoder *model = work->model;
    int32_t most = count(work->positions, HARKEN_GROUP) * HARKEN_GROUP * QUERY_ROWS / BLOCK_ROWS; /* of attention */
    most = model->conv1.columns > most ? model->conv1.columns : most;
    most = model->conv2.columns > most ? model->conv2.columns : most;
    return model->layers[0].mlp_in.rows > most ? model->layers[0].mlp_in.rows : most;
}

static void take_memory(struct work *work, struct harken_arena *arena, int32_t threads) {
    const struct harken_encoder *model = work->model;
    size_t frames = (size_t)work->frames, positions = (size_t)work->positions, state = (size_t)model->n_state;
    int32_t padded = count(work->positions, HARKEN_GROUP) * HARKEN_GROUP;
    size_t head_numbers = (size_t)padded * (size_t)work->head_size;
    arena->used = 0;
    work->mel_rows = harken_take(arena, (frames + 2) * (size_t)work->mel_columns, sizeof(float));
    work->conv_rows = harken_take(arena, (frames + 1) * state, sizeof(float));
    work->x = harken_take(arena, positions * state, sizeof(float));
    work->attended = harken_take(arena, positions * state, sizeof(float));
    work->qkv = harken_take(arena, positions * 3 * state, sizeof(float));
    work->keys = harken_take(arena, (size_t)model->n_heads, sizeof *work->keys);
    work->values = harken_take(arena, (size_t)model->n_heads, sizeof *work->values);
    work->phases = harken_take(arena, FIRST_PHASES + PHASES_A_LAYER * (size_t)model->n_layers, sizeof *work->phases);
    for (int32_t head = 0; head < model->n_heads; head++) {
        struct harken_matrix16 keys = {.rows = work->positions, .columns = work->head_size};
        struct harken_matrix16 values = {.rows = work->head_size, .columns = padded};
        keys.weights = harken_take(arena, head_numbers, sizeof(int16_t));
        keys.scales = harken_take(arena, (size_t)padded, sizeof(float));
        values.weights = harken_take(arena, head_numbers, sizeof(int16_t));
        values.scales = harken_take(arena, (size_t)work->head_size, sizeof(float));
        if (arena->memory)
            work->keys[head] = keys, work->values[head] = values;
    }
    work->scratch = harken_take(arena, (size_t)threads, sizeof *work->scratch);
    for (int32_t thread = 0; thread < threads; thread++) {
        struct scratch scratch;
        scratch.rows.values = harken_take(arena, BLOCK_ROWS * (size_t)max_columns(work), sizeof(int16_t));
        scratch.rows.scales = harken_take(arena, BLOCK_ROWS, sizeof(float));
        scratch.hidden = harken_take(arena, BLOCK_ROWS * (size_t)model->layers[0].mlp_in.rows, sizeof(float));
        scratch.scores = harken_take(arena, QUERY_ROWS * (size_t)padded, sizeof(float));
        if (arena->memory)
            work->scratch[thread] = scratch;
    }
}

int32_t harken_encode(harken_decoder *decoder, const struct harken_encoder *encoder, const float *mel, int32_t frames,
                      float *encoder_output) {
    struct work work = {.model = encoder, .kernels = decoder->kernels, .frames = frames, .positions = frames / 2};
    work.head_size = encoder->n_state / encoder->n_heads;
    work.mel_columns = encoder->conv1.columns / 3;
    work.mel = mel;
    work.encoder_output = encoder_output;
    int32_t threads = harken_team_threads(decoder->team);
    struct harken_arena needed = {0}, arena;
    take_memory(&work, &needed, threads);
    if (harken_arena_grow(&decoder->arena, needed.used, &arena))
        return HARKEN_NO_MEMORY;
    take_memory(&work, &arena, threads);
    memset(work.mel_rows, 0, (size_t)work.mel_columns * sizeof(float));
    memset(work.mel_rows + (int64_t)(frames + 1) * work.mel_columns, 0, (size_t)work.mel_columns * sizeof(float));
    memset(work.conv_rows, 0, (size_t)encoder->n_state * sizeof(float));
    harken_team_run(decoder->team, work.phases, list_phases(&work), &work);
    return 0;
}
