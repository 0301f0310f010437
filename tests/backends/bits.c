/* Encodes and decodes with random models in some ways, makes spectrograms, detects speech, and prints hashes of the
 * bits of all results: a line for each model, instruction set of this processor and number of threads. All lines of one
 * model have to be equal, on all machines. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WITHOUT_HALF_INSTRUCTIONS /* so simd.h is here as on the oldest processor */
#define WITHOUT_FMA_INSTRUCTIONS
#include "internal.h"
#include "simd.h"

enum { LAYERS = 2, HEADS = 3, STATE = 192, VOCABULARY = 333, CONTEXT = 64, POSITIONS = 1100, SHORT = 37 };
enum { MELS = 80, MOST_FRAMES = 3000 };

static uint64_t seed = 1;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static float draw_float(float scale) {
    return ((float)(draw() % 65536) / 32768 - 1) * scale;
}

static void *draw_bytes(size_t n) {
    int8_t *bytes = aligned_alloc(64, (n + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (int8_t)((int32_t)(draw() % 255) - 127);
    return bytes;
}

static float *draw_floats(size_t n, float scale) {
    float *floats = aligned_alloc(64, (n * sizeof *floats + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++)
        floats[i] = draw_float(scale);
    return floats;
}

static uint16_t *draw_scales(size_t n, float scale) {
    uint16_t *scales = malloc(n * sizeof *scales);
    for (size_t i = 0; i < n; i++) {
        float value = scale + draw_float(scale / 2);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        scales[i] = (uint16_t)(bits >> 16);
    }
    return scales;
}

static struct harken_matrix draw_blocks(int32_t rows, int32_t columns, int32_t bits) {
    size_t padded = ((size_t)rows + 15) / 16 * 16, n = padded * (size_t)columns, n_bytes = bits == 4 ? n / 2 : n;
    int8_t *weights = draw_bytes(n_bytes);
    for (size_t i = 0; bits == 7 && i < n_bytes; i++)
        weights[i] = (int8_t)(weights[i] / 4 + 64); /* so that no norm is above 140 */
    return (struct harken_matrix){weights, draw_scales(n / HARKEN_BLOCK, bits == 4 ? 2e-2f : 4e-3f),
                                  draw_floats(padded, 0.1f), rows, columns, bits};
}

static struct harken_matrix draw_matrix16(int32_t rows, int32_t columns) {
    size_t padded = ((size_t)rows + 15) / 16 * 16, n = padded * (size_t)columns;
    int16_t *weights = aligned_alloc(64, n * sizeof *weights);
    float largest = fminf(32767, 46000 / sqrtf((float)columns)); /* so that no norm is above 46,000 */
    for (size_t i = 0; i < n; i++)
        weights[i] = (int16_t)draw_float(largest);
    float *scales = draw_floats(padded, 1e-5f);
    for (size_t i = 0; i < padded; i++)
        scales[i] += 3e-5f;
    return (struct harken_matrix){weights, scales, draw_floats(padded, 0.1f), rows, columns, 16};
}

static struct harken_matrix draw_matrix(int32_t rows, int32_t columns, int32_t bits) {
    if (bits < 16)
        return draw_blocks(rows, columns, bits);
    if (bits == 16)
        return draw_matrix16(rows, columns);
    size_t padded = ((size_t)rows + 15) / 16 * 16;
    return (struct harken_matrix){draw_floats(padded * (size_t)columns, 2 / sqrtf((float)columns)), NULL,
                                  draw_floats(padded, 0.1f), rows, columns, 32};
}

/* A projection to the vocabulary in halves. Logits lie so far apart that every position completes other groups. */
static void draw_halves(struct harken_model *model) {
    uint16_t *scales = draw_scales((VOCABULARY + 15) / 16 * 16 * STATE / HARKEN_BLOCK, 0.15f);
    model->head = draw_blocks(VOCABULARY, STATE, 4);
    model->head.scales = scales;
    model->head_rest = draw_blocks(VOCABULARY, STATE, 4);
    model->head_rest.bias = NULL;
    model->n_partial = VOCABULARY / 2;
}

static struct harken_linear draw_linear(int32_t rows, int32_t columns, int32_t bits, int32_t rank) {
    struct harken_linear linear = {draw_matrix(rows, rank ? rank : columns, bits)};
    if (rank) {
        linear.first = draw_matrix(rank, columns, bits);
        linear.first.bias = NULL;
    }
    return linear;
}

/* The layers of odd numbers are of low rank. */
static struct harken_encoder draw_encoder(int32_t bits, int32_t attention_bits) {
    int32_t wide = bits < 16 ? 16 : bits;
    struct harken_matrix none = {0};
    struct harken_encoder_layer *layers = malloc(LAYERS * sizeof *layers);
    for (int32_t i = 0; i < LAYERS; i++) {
        int32_t rank = i % 2 * 32;
        layers[i] = (struct harken_encoder_layer){
            draw_linear(STATE, STATE, bits, rank),     draw_linear(STATE, STATE, bits, rank),
            draw_linear(STATE, STATE, bits, 0),        draw_linear(STATE, STATE, bits, rank),
            draw_linear(4 * STATE, STATE, bits, rank), draw_linear(STATE, 4 * STATE, bits, 2 * rank)};
    }
    return (struct harken_encoder){LAYERS,
                                   HEADS,
                                   STATE,
                                   MELS,
                                   attention_bits,
                                   draw_matrix(STATE, 3 * MELS, wide),
                                   draw_matrix(STATE, 3 * STATE, wide),
                                   draw_floats(MOST_FRAMES / 2 * STATE, 0.5f),
                                   layers,
                                   draw_floats(STATE, 1),
                                   draw_floats(STATE, 1),
                                   bits < 16 ? draw_matrix(STATE, STATE, 16) : none,
                                   bits < 16 ? draw_matrix(STATE, STATE, 16) : none};
}

static const uint64_t EMPTY_HASH = 14695981039346656037u;

static uint64_t add_bytes(uint64_t hash, const void *from, size_t n) {
    const unsigned char *bytes = from;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

static uint64_t add_floats(uint64_t hash, const float *floats, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(floats[i]))
            exit(2);
    return add_bytes(hash, floats, n * sizeof *floats);
}

static uint64_t add_to_hash(uint64_t hash, const float *row) {
    return add_floats(hash, row, VOCABULARY);
}

/* Appends tokens and returns the hash of the logits that come back, or fails. */
static uint64_t extend(uint64_t hash, harken_decoder *decoder, harken_session *session, const int32_t *counts,
                       int32_t n_rows, int32_t last_n) {
    enum { STRIDE = (VOCABULARY + 15) / 16 * 16, MOST = 64 };
    static int32_t tokens[4 * MOST];
    static float logits[4 * MOST * STRIDE];
    int32_t n = 0, n_logits = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        for (int32_t j = 0; j < counts[i]; j++, n++)
            tokens[n] = (n * 37 + counts[i] * 11) % VOCABULARY;
        n_logits += counts[i] < last_n ? counts[i] : last_n;
    }
    if (harken_session_extend(session, tokens, counts, last_n, logits, STRIDE))
        exit(1);
    for (int32_t i = 0; i < n_logits; i++)
        hash = add_to_hash(hash, logits + i * STRIDE);
    float normalizers[4 * MOST], logprobs[4 * MOST * 3];
    int64_t best[4 * MOST * 3];
    harken_logits_normalizer(decoder, logits, n_logits, VOCABULARY, STRIDE, normalizers);
    harken_logits_top(decoder, logits, n_logits, VOCABULARY, STRIDE, 3, best, logprobs);
    for (int32_t i = 0; i < n_logits; i++)
        hash = (hash ^ (uint64_t)best[3 * i + 1] ^ (uint64_t)(int64_t)(normalizers[i] * 65536)) * 1099511628211u;
    return hash;
}

static uint64_t run(const struct harken_model *model, int32_t threads, const char *name) {
    harken_decoder *decoder = harken_decoder_open(model, threads, name);
    if (!decoder)
        exit(1);
    seed = 99;
    float *key_bias = draw_floats(POSITIONS + HARKEN_GROUP, 2);
    struct harken_window windows[2] = {
        {NULL, POSITIONS, HARKEN_MOST_IN_A_PART, POSITIONS, key_bias},
        {NULL, SHORT, HARKEN_MOST_IN_A_PART, SHORT, NULL},
    };
    for (int32_t i = 0; i < 2; i++) {
        int32_t positions = windows[i].positions;
        windows[i].packed =
            aligned_alloc(64, (size_t)harken_window_bytes(decoder, positions, HARKEN_MOST_IN_A_PART));
        float *output = draw_floats((size_t)positions * STATE, 2);
        if (harken_project_window(decoder, output, 0, NULL, &windows[i]))
            exit(1);
        free(output);
    }
    harken_session *session = harken_session_open(decoder, windows, 2, (int32_t[]){0, 1}, 2, 1);
    uint64_t hash = extend(EMPTY_HASH, decoder, session, (int32_t[]){5, 3}, 2, 2);
    hash = extend(hash, decoder, session, (int32_t[]){1, 7}, 2, 7);
    harken_session_reorder(session, (int32_t[]){0, 1, 0, 0}, 4);
    hash = extend(hash, decoder, session, (int32_t[]){2, 0, 21, 1}, 4, 21);
    harken_session_rewind(session, (int32_t[]){7, 10, 9, 7});
    hash = extend(hash, decoder, session, (int32_t[]){1, 1, 1, 1}, 4, 1);
    float attention[8 * POSITIONS];
    harken_session_attention(session, 0, attention, POSITIONS);
    hash = add_to_hash(hash, attention + 7 * POSITIONS);
    harken_session_close(session);
    free(windows[0].packed);
    free(windows[1].packed);
    free(key_bias);
    harken_decoder_close(decoder);
    return hash;
}

/* Encodes windows of different lengths, every other one behind history, which some keep, some with biases of their keys, and
 * projects them for the cross-attention. Each number of threads takes them in another order, so nothing may depend on
 * what the window before left in memory. */
static uint64_t encode(const struct harken_model *model, const struct harken_encoder *encoder, const int32_t *frames,
                       int32_t n_windows, int32_t threads, const char *name) {
    enum { HISTORY = 37 };
    harken_decoder *decoder = harken_decoder_open(model, threads, name);
    if (!decoder)
        exit(1);
    uint64_t hashes[8], hash = EMPTY_HASH;
    for (int32_t i = 0; i < n_windows; i++) {
        int32_t window = (i + threads) % n_windows, positions = frames[window] / 2, history = window % 2 * HISTORY;
        size_t n = (size_t)positions * STATE, rows = (size_t)(HISTORY + positions);
        size_t packed_bytes = (size_t)harken_window_bytes(decoder, positions, HARKEN_MOST_IN_A_PART);
        seed = (uint64_t)frames[window];
        float *mel = draw_floats((size_t)(2 * positions + 3) * MELS, 1.5f);
        float *keys_values = draw_floats(LAYERS * rows * 2 * STATE, 1);
        float *key_bias = draw_floats(rows + HARKEN_GROUP, 2);
        float *output = malloc(n * sizeof *output);
        void *packed = aligned_alloc(64, packed_bytes);
        memset(output, 0xff, n * sizeof *output); /* NaN, where nothing is written */
        memset(packed, 0xff, packed_bytes);
        struct harken_chunk chunk = {.positions = positions,
                                     .first_position = history,
                                     .mel = mel,
                                     .encoder_output = output,
                                     .layer_stride = (int64_t)rows * 2 * STATE,
                                     .n_history = history};
        if (window % 4 == 3)
            chunk.history = keys_values;
        else if (history)
            chunk.keys_values = keys_values;
        if (window % 3)
            chunk.key_bias = key_bias;
        struct harken_window projected = {packed, positions, HARKEN_MOST_IN_A_PART, positions, NULL};
        if (harken_encode(decoder, encoder, &chunk) || harken_project_window(decoder, output, 0, NULL, &projected))
            exit(1);
        hashes[window] = add_floats(EMPTY_HASH, output, n);
        hashes[window] = add_floats(hashes[window], keys_values, LAYERS * rows * 2 * STATE);
        hashes[window] = add_bytes(hashes[window], packed, packed_bytes);
        free(mel);
        free(keys_values);
        free(key_bias);
        free(output);
        free(packed);
    }
    for (int32_t i = 0; i < n_windows; i++)
        hash = add_bytes(hash, &hashes[i], sizeof hashes[i]);
    harken_decoder_close(decoder);
    return hash;
}

enum { ROWS = 5, BAD_ROW = 2, COLUMNS = 96, MATRIX_ROWS = 3 * HARKEN_GROUP };

static void multiply_rows(const struct harken_kernels *kernels, const struct harken_matrix *matrix, const float *x,
                          int normalise, float *y) {
    static int16_t values[HARKEN_ROWS * COLUMNS];
    static float scales[HARKEN_ROWS];
    struct harken_rows rows = {values, scales};
    kernels->quantise_rows(x, COLUMNS, ROWS, COLUMNS, normalise, &rows);
    kernels->multiply(matrix, &rows, ROWS, HARKEN_STORE, y, MATRIX_ROWS);
}

/* A number that is not finite in a row makes all results of that row NaN, and changes no other. */
static void check_row_not_finite(float number) {
    struct harken_matrix matrix = draw_matrix16(MATRIX_ROWS, COLUMNS);
    struct harken_supported supported = harken_supported_kernels();
    static float expected[ROWS * MATRIX_ROWS], y[ROWS * MATRIX_ROWS];
    for (int32_t i = 0; i < 2 * supported.n; i++) {
        const struct harken_kernels *kernels = supported.list[i / 2];
        float *x = draw_floats(ROWS * COLUMNS, 2);
        multiply_rows(kernels, &matrix, x, i % 2, expected);
        add_floats(0, expected, ROWS * MATRIX_ROWS);
        x[BAD_ROW * COLUMNS + 37] = number;
        multiply_rows(kernels, &matrix, x, i % 2, y);
        for (int32_t j = 0; j < ROWS * MATRIX_ROWS; j++)
            if (j / MATRIX_ROWS == BAD_ROW ? !isnan(y[j]) : memcmp(&y[j], &expected[j], sizeof *y) != 0)
                exit(5);
        free(x);
    }
}

/* The longest rows that quantise_rows makes, multiplied by themselves and by their opposites: no sum of products can be
 * larger. The results have to be those of 64-bit integers. */
static void check_largest_sums(int32_t columns, float first, float other) {
    struct harken_supported supported = harken_supported_kernels();
    float *x = aligned_alloc(64, (size_t)columns * sizeof *x);
    int16_t *values = aligned_alloc(64, HARKEN_ROWS * (size_t)columns * sizeof *values);
    int16_t *weights = aligned_alloc(64, HARKEN_GROUP * (size_t)columns * sizeof *weights);
    for (int32_t column = 0; column < columns; column++)
        x[column] = column ? other : first;
    for (int32_t i = 0; i < supported.n; i++) {
        float scales[HARKEN_ROWS], ones[HARKEN_GROUP], y[HARKEN_GROUP];
        struct harken_rows rows = {values, scales};
        supported.list[i]->quantise_rows(x, columns, 1, columns, 0, &rows);
        int64_t sum = 0;
        for (int32_t column = 0; column < columns; column++) {
            sum += (int64_t)values[column] * values[column];
            for (int32_t row = 0; row < HARKEN_GROUP; row++)
                weights[column / 2 * 2 * HARKEN_GROUP + 2 * row + column % 2] =
                    row % 2 ? (int16_t)-values[column] : values[column];
        }
        if (sum < 45900ll * 45900 || sum > 46100ll * 46100)
            exit(6);
        scales[0] = 1;
        for (int32_t row = 0; row < HARKEN_GROUP; row++)
            ones[row] = 1;
        struct harken_matrix matrix = {weights, ones, NULL, HARKEN_GROUP, columns, 16};
        supported.list[i]->multiply(&matrix, &rows, 1, HARKEN_STORE, y, HARKEN_GROUP);
        for (int32_t row = 0; row < HARKEN_GROUP; row++)
            if (y[row] != (float)(row % 2 ? -sum : sum))
                exit(7);
    }
    free(x);
    free(values);
    free(weights);
}

/* The longest blocks that may be multiplied with weights of 7 bits, and weights that are like them or their opposites, as
 * long as those may be: the sums of AVX2 have 16 bits, and the results have to be those of 64-bit integers. Numbers
 * of a size of 1e-25 have squares of 0. */
static void check_largest_sums_7(int32_t n_large, float other, float size) {
    struct harken_supported supported = harken_supported_kernels();
    float x[HARKEN_BLOCK], sized[HARKEN_BLOCK], norm = 0;
    for (int32_t column = 0; column < HARKEN_BLOCK; column++) {
        x[column] = column % 2 ? -1 : 1;
        x[column] *= column / 4 < n_large ? 1 : other;
        norm += column % 4 < 2 ? x[column] * x[column] : 0;
        sized[column] = x[column] * size;
    }
    for (int32_t i = 0; i < supported.n; i++) {
        int8_t values[HARKEN_BLOCK];
        uint8_t weights[HARKEN_BLOCK * HARKEN_GROUP] __attribute__((aligned(64)));
        uint16_t ones[HARKEN_GROUP];
        int32_t offset, sum = 0;
        float scale, y[HARKEN_GROUP];
        struct harken_activations activations = {values, &scale, &offset};
        supported.list[i]->quantise(sized, HARKEN_BLOCK, 0, 7, &activations, 0);
        for (int32_t column = 0; column < HARKEN_BLOCK; column++) {
            int32_t weight = (int32_t)fmaxf(-63, fminf(63, rintf(x[column] * 138 / sqrtf(norm))));
            sum += weight * values[column];
            for (int32_t row = 0; row < HARKEN_GROUP; row++)
                weights[column / 4 * 4 * HARKEN_GROUP + 4 * row + column % 4] =
                    (uint8_t)(64 + (row % 2 ? -weight : weight));
        }
        scale = 1;
        for (int32_t row = 0; row < HARKEN_GROUP; row++)
            ones[row] = 0x3f80;
        struct harken_matrix matrix = {weights, ones, NULL, HARKEN_GROUP, HARKEN_BLOCK, 7};
        supported.list[i]->linear(&matrix, 0, 1, &activations, 1, HARKEN_STORE, (void *[]){y}, 0);
        for (int32_t row = 0; row < HARKEN_GROUP; row++)
            if (y[row] != (float)(row % 2 ? -sum : sum))
                exit(8);
    }
}

/* Query i finds key 5 i + 3 so much more alike than all others, before and after it, that it gets its value alone, within
 * half of the largest step: where four values are as large as the largest, 1, their sum is that of 256 steps. A
 * query that is not finite gets NaN, and changes no other; a value that is not makes its channel NaN for all. */
static void check_head_attention(int32_t size) {
    enum { N = 83, QUERIES = 11, BAD_QUERY = 4, BAD_CHANNEL = 9, PADDED = 2 * HARKEN_KEYS };
    static float keys[N * HARKEN_MAX_HEAD_SIZE], values[N * HARKEN_MAX_HEAD_SIZE], y[QUERIES * HARKEN_MAX_HEAD_SIZE];
    static float queries[QUERIES * HARKEN_MAX_HEAD_SIZE], key_scales[PADDED];
    static int8_t packed_keys[PADDED * HARKEN_MAX_HEAD_SIZE], packed_values[PADDED * HARKEN_MAX_HEAD_SIZE];
    static float value_scales[PADDED / HARKEN_KEYS * HARKEN_MAX_HEAD_SIZE];
    static int32_t key_offsets[PADDED];
    struct harken_head head = {N, PADDED, size, packed_keys, key_scales, packed_values, value_scales, key_offsets,
                               NULL};
    struct harken_supported supported = harken_supported_kernels();
    for (int32_t i = 0; i < N * size; i++) {
        keys[i] = draw_float(20);
        values[i] = draw_float(1);
    }
    for (int32_t i = 0; i < QUERIES * size; i++)
        queries[i] = 20 * keys[(5 * (i / size) + 3) * size + i % size];
    queries[BAD_QUERY * size + 7] = NAN;
    values[BAD_CHANNEL] = -INFINITY;
    for (int32_t i = 0; i < supported.n; i++) {
        supported.list[i]->pack_head_keys(keys, size, N, &head);
        supported.list[i]->pack_head_values(values, size, N, &head);
        supported.list[i]->head_attention(queries, size, QUERIES, &head, y, size);
        for (int32_t j = 0; j < QUERIES * size; j++)
            if (j / size == BAD_QUERY || j % size == BAD_CHANNEL
                    ? !isnan(y[j])
                    : !(fabsf(y[j] - values[(5 * (j / size) + 3) * size + j % size]) <= 1.0f / 128))
                exit(10);
    }
}

/* A number that is not finite reaches the results, and hides no logit. */
static void check_not_finite(float number) {
    enum { AT = 21 };
    struct harken_matrix matrix = draw_matrix(HARKEN_GROUP, HARKEN_BLOCK, 7);
    struct harken_supported supported = harken_supported_kernels();
    for (int32_t i = 0; i < supported.n; i++) {
        int8_t values[HARKEN_BLOCK];
        int32_t offset;
        float x[HARKEN_BLOCK] = {1, 2, 3}, y[HARKEN_GROUP], scale;
        struct harken_activations activations = {values, &scale, &offset};
        x[AT] = number;
        supported.list[i]->quantise(x, HARKEN_BLOCK, 0, 7, &activations, 0);
        supported.list[i]->linear(&matrix, 0, 1, &activations, 1, HARKEN_STORE, (void *[]){y}, 0);
        for (int32_t row = 0; row < HARKEN_GROUP; row++)
            if (!isnan(y[row]))
                exit(3);
        x[AT - HARKEN_GROUP] = 4; /* the same lane of the vector before */
        if (isnan(number) && supported.list[i]->largest(x, HARKEN_BLOCK) != 4)
            exit(4);
    }
}

/* Of tables that are not those of a spectrogram: sines would differ between machines. */
static uint64_t transform(const struct harken_kernels *kernels) {
    enum { FRAMES = 301, BAND_BINS = 5, SAMPLES = 160 * (FRAMES - 1) + 400 };
    static float log_mel[MELS * FRAMES];
    int32_t filter_bins[2 * MELS];
    for (int32_t band = 0; band < MELS; band++) {
        filter_bins[2 * band] = 2 * band;
        filter_bins[2 * band + 1] = BAND_BINS;
    }
    seed = 3;
    struct harken_mel_tables tables = {draw_floats(400, 1), draw_floats(2 * 400, 1), draw_floats(MELS * BAND_BINS, 1),
                                       filter_bins, MELS};
    kernels->log_mel(&tables, draw_floats(SAMPLES, 1), FRAMES, log_mel, FRAMES);
    return add_floats(EMPTY_HASH, log_mel, MELS * FRAMES);
}

/* Of random weights, in calls of up to `most` chunks. */
static uint64_t detect_speech(const struct harken_kernels *kernels, int32_t most) {
    enum { CHUNKS = 41, CONVOLUTIONS = 3 * (129 * 128 + 128 * 64 + 64 * 64 + 64 * 128) };
    float state[256] = {0}, probabilities[CHUNKS];
    seed = 11;
    struct harken_silero weights = {
        draw_floats(256, 1),          draw_floats(512, 1),          draw_floats(CONVOLUTIONS, 0.05f),
        draw_floats(384, 0.1f),       draw_floats(512 * 128, 0.2f), draw_floats(512, 0.1f),
        draw_floats(512 * 128, 0.2f), draw_floats(129, 1),
    };
    const float *samples = draw_floats(512 * CHUNKS + 64, 0.1f);
    for (int32_t first = 0, n; first < CHUNKS; first += n) {
        n = CHUNKS - first < most ? CHUNKS - first : most;
        kernels->silero_probabilities(&weights, samples + 512 * first, n, state, probabilities + first);
    }
    return add_floats(add_floats(EMPTY_HASH, probabilities, CHUNKS), state, 256);
}

/* Of numbers in steps of 2^-12, far beyond where the functions are 0, 1 and -1. */
static void check_sigmoid_and_tanh(void) {
    for (int32_t i = -500000; i <= 500000; i++) {
        float x = (float)i / 4096;
        double sigmoid = 1 / (1 + exp(-(double)x));
        if (!(fabs(sigmoid16(splat(x))[0] - sigmoid) < 1e-7) || !(fabs(tanh16(splat(x))[0] - tanh((double)x)) < 2e-7))
            exit(8);
    }
}

/* Of any numbers, and of some of which the addend and the product are of a like size. */
static void check_fma(void) {
    for (int32_t i = 0; i < 2000000; i++) {
        uint32_t bits[3];
        float x[3];
        for (int32_t j = 0; j < 3; j++) {
            bits[j] = draw() << 1 ^ draw();
            if (i % 2)
                bits[j] = (bits[j] & 0x807ff000) + ((127 - 15 * (j == 2)) << 23) + (j == 2 ? draw() % 32 << 23 : 0);
        }
        memcpy(x, bits, sizeof x);
        float expected = fmaf(x[0], x[1], x[2]), found = fma16(splat(x[0]), splat(x[1]), splat(x[2]))[0];
        if (memcmp(&found, &expected, sizeof found) != 0 && !(isnan(found) && isnan(expected)))
            exit(9);
    }
}

static void print(const char *model, uint64_t hash, const char *name, int32_t threads) {
    printf("%s %016llx %s %d\n", model, (unsigned long long)hash, name, threads);
}

int main(void) {
    check_not_finite(NAN);
    check_not_finite(INFINITY);
    check_row_not_finite(NAN);
    check_row_not_finite(INFINITY);
    check_row_not_finite(-INFINITY);
    for (int32_t columns = 32; columns <= 8192; columns *= 2) {
        float rest = 32292 / sqrtf((float)(columns - 1)); /* 32767 and these have the norm 46,000 */
        check_largest_sums(columns, 32767, rest);
        check_largest_sums(columns, -32767, rest);
        check_largest_sums(columns, 1, 1);
        check_largest_sums(columns, -1e-9f, 1e-9f);
    }
    for (int32_t n_large = 1; n_large <= HARKEN_BLOCK / 4; n_large++) {
        check_largest_sums_7(n_large, 0, 1);
        check_largest_sums_7(n_large, 0.3f, 1);
        check_largest_sums_7(n_large, -0.9f, 1);
        check_largest_sums_7(n_large, 0.3f, 1e-25f);
    }
    for (int32_t size = 16; size <= HARKEN_MAX_HEAD_SIZE; size += 16)
        check_head_attention(size);
    check_fma();
    check_sigmoid_and_tanh();
    struct harken_supported supported = harken_supported_kernels();
    for (int32_t i = 0; i < supported.n; i++) {
        print("log-mel", transform(supported.list[i]), supported.list[i]->name, 1);
        print("silero", detect_speech(supported.list[i], 50), supported.list[i]->name, 1);
        print("silero", detect_speech(supported.list[i], 5 + 2 * i), supported.list[i]->name, 1);
    }
    static const char *const decoders[] = {"4-bit-decoder", "7-bit-decoder", "float-decoder"};
    static const char *const encoders[] = {"8-bit-encoder", "encoder", "float-encoder"};
    static const int32_t frames[] = {2, 96, 98, 1130, 14}, fewer_frames[] = {2, 96, 98, 230, 14};
    for (int32_t i = 0; i < 3; i++) {
        int32_t bits = (int32_t[]){4, 7, 32}[i], wide = bits == 32 ? 32 : 16;
        seed = 5;
        struct harken_encoder encoder = draw_encoder(bits == 4 ? 7 : wide, bits == 4 ? 8 : wide);
        seed = 7;
        struct harken_layer layers[LAYERS];
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            struct harken_matrix *square[] = {&layers[layer].query, &layers[layer].key,         &layers[layer].value,
                                              &layers[layer].out,   &layers[layer].cross_query, &layers[layer].cross_out};
            for (int32_t j = 0; j < 6; j++)
                *square[j] = draw_matrix(STATE, STATE, bits);
            layers[layer].mlp_in = draw_matrix(4 * STATE, STATE, bits);
            layers[layer].mlp_out = draw_matrix(STATE, 4 * STATE, bits);
            layers[layer].cross_key = draw_matrix(STATE, STATE, wide);
            layers[layer].cross_value = draw_matrix(STATE, STATE, wide);
        }
        uint16_t *halves = malloc(sizeof *halves * VOCABULARY * STATE);
        for (int32_t j = 0; j < VOCABULARY * STATE; j++)
            halves[j] = (uint16_t)(0x3000 + draw() % 0x0c00 + (draw() % 2 << 15));
        const void *embedding = bits == 32 ? (void *)draw_floats(VOCABULARY * STATE, 1) : halves;
        struct harken_model model = {.n_layers = LAYERS, .n_heads = HEADS, .n_state = STATE,
                                     .n_embeddings = VOCABULARY, .n_context = CONTEXT,
                                     .embedding_file = -1, .embedding = embedding,
                                     .positions = draw_floats(CONTEXT * STATE, 0.5f), .layers = layers,
                                     .head = draw_matrix(VOCABULARY, STATE, bits),
                                     .n_alignment_heads = 1, .alignment_heads = (int32_t[]){1, 2},
                                     .window_bits = (int32_t[]){8, 16, 32}[i]};
        if (bits == 7)
            draw_halves(&model);
        char names[HARKEN_NAMES_BYTES];
        harken_instruction_sets(names);
        for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) {
            for (int32_t threads = 1; threads <= (name == names ? 9 : 1); threads += 1 + threads / 3 * 5) {
                print(decoders[i], run(&model, threads, name), name, threads);
                print(encoders[i], encode(&model, &encoder, bits == 7 ? frames : fewer_frames, 5, threads, name), name,
                      threads);
            }
            if (bits < 32)
                print(bits == 4 ? "longest-8-bit-window" : "longest-window", encode(&model, &encoder, (int32_t[]){MOST_FRAMES}, 1, 2, name), name, 2);
        }
    }
    return 0;
}
