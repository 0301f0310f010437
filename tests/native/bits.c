/* Decodes with a random model in some ways and prints a hash of the bits of all logits, a line for each instruction set
 * of this processor and number of threads. All lines of all machines have to be equal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { LAYERS = 2, HEADS = 3, STATE = 192, VOCABULARY = 333, CONTEXT = 64, POSITIONS = 1100, SHORT = 37 };

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

static struct harken_matrix draw_matrix(int32_t rows, int32_t columns, int32_t bits) {
    size_t padded = ((size_t)rows + 15) / 16 * 16, n = padded * (size_t)columns;
    return (struct harken_matrix){draw_bytes(n * (size_t)bits / 8), draw_scales(n / HARKEN_BLOCK, bits == 8 ? 2e-3f : 2e-2f),
                                  draw_floats(padded, 0.1f), rows, columns, bits};
}

static uint64_t add_to_hash(uint64_t hash, const float *row) {
    const unsigned char *bytes = (const unsigned char *)row;
    for (size_t i = 0; i < VOCABULARY; i++)
        if (!isfinite(row[i]))
            exit(2);
    for (size_t i = 0; i < VOCABULARY * sizeof *row; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
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
    struct harken_window windows[2] = {{NULL, POSITIONS}, {NULL, SHORT}};
    seed = 99;
    for (int32_t i = 0; i < 2; i++) {
        int32_t positions = windows[i].positions;
        uint16_t *packed = aligned_alloc(64, (size_t)harken_window_bytes(decoder, positions));
        int64_t head = (int64_t)positions * (STATE / HEADS);
        float *both = draw_floats((size_t)(2 * HEADS * head), 2);
        for (int32_t layer = 0; layer < LAYERS; layer++)
            harken_pack_window(decoder, layer, both, both + HEADS * head, head, positions, packed);
        windows[i].packed = packed;
        free(both);
    }
    harken_session *session = harken_session_open(decoder, windows, 2, (int32_t[]){0, 1}, 2, 1);
    uint64_t hash = extend(14695981039346656037u, decoder, session, (int32_t[]){5, 3}, 2, 2);
    hash = extend(hash, decoder, session, (int32_t[]){1, 7}, 2, 7);
    harken_session_reorder(session, (int32_t[]){0, 1, 0, 0}, 4);
    hash = extend(hash, decoder, session, (int32_t[]){2, 0, 21, 1}, 4, 21);
    harken_session_rewind(session, (int32_t[]){7, 10, 9, 7});
    hash = extend(hash, decoder, session, (int32_t[]){1, 1, 1, 1}, 4, 1);
    float attention[8 * POSITIONS];
    harken_session_attention(session, 0, attention, POSITIONS);
    hash = add_to_hash(hash, attention + 7 * POSITIONS);
    harken_session_close(session);
    free((void *)windows[0].packed);
    free((void *)windows[1].packed);
    harken_decoder_close(decoder);
    return hash;
}

/* A number that is not finite reaches the results, and hides no logit. */
static void check_not_finite(float number) {
    enum { AT = 21 };
    struct harken_matrix matrix = draw_matrix(HARKEN_GROUP, HARKEN_BLOCK, 8);
    struct harken_supported supported = harken_supported_kernels();
    for (int32_t i = 0; i < supported.n; i++) {
        int8_t values[HARKEN_BLOCK];
        int32_t offset;
        float x[HARKEN_BLOCK] = {1, 2, 3}, y[HARKEN_GROUP], scale;
        struct harken_activations activations = {values, &scale, &offset};
        x[AT] = number;
        supported.list[i]->quantise(x, HARKEN_BLOCK, 0, &activations, 0);
        supported.list[i]->linear(&matrix, 0, 1, &activations, 1, HARKEN_STORE, (void *[]){y}, 0);
        for (int32_t row = 0; row < HARKEN_GROUP; row++)
            if (!isnan(y[row]))
                exit(3);
        x[AT - HARKEN_GROUP] = 4; /* the same lane of the vector before */
        if (isnan(number) && supported.list[i]->largest(x, HARKEN_BLOCK) != 4)
            exit(4);
    }
}

int main(void) {
    check_not_finite(NAN);
    check_not_finite(INFINITY);
    for (int32_t bits = 8; bits >= 4; bits -= 4) {
        seed = 7;
        struct harken_layer layers[LAYERS];
        for (int32_t i = 0; i < LAYERS; i++) {
            struct harken_matrix *square[] = {&layers[i].query, &layers[i].key,         &layers[i].value,
                                              &layers[i].out,   &layers[i].cross_query, &layers[i].cross_out};
            for (int32_t j = 0; j < 6; j++)
                *square[j] = draw_matrix(STATE, STATE, bits);
            layers[i].mlp_in = draw_matrix(4 * STATE, STATE, bits);
            layers[i].mlp_out = draw_matrix(STATE, 4 * STATE, bits);
        }
        uint16_t *embedding = malloc(sizeof *embedding * VOCABULARY * STATE);
        for (int32_t i = 0; i < VOCABULARY * STATE; i++)
            embedding[i] = (uint16_t)(0x3000 + draw() % 0x0c00 + (draw() % 2 << 15));
        struct harken_model model = {LAYERS,    HEADS,  STATE,
                                     VOCABULARY, CONTEXT, embedding,
                                     draw_floats(CONTEXT * STATE, 0.5f), layers, draw_matrix(VOCABULARY, STATE, bits),
                                     1,         (int32_t[]){1, 2}};
        char names[HARKEN_NAMES_BYTES];
        harken_instruction_sets(names);
        for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
            for (int32_t threads = 1; threads <= 3; threads++)
                printf("%d %016llx %s %d\n", bits, (unsigned long long)run(&model, threads, name), name, threads);
    }
    return 0;
}
