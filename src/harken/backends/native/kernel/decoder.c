/* A decoder: a model, the kernels for this processor, and the threads that run them. */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

#include "layout.h"

int32_t harken_abi_version(void) {
    return HARKEN_ABI_VERSION;
}

void harken_instruction_sets(char names[HARKEN_NAMES_BYTES]) {
    struct harken_supported supported = harken_supported_kernels();
    *names = 0;
    for (int32_t i = 0; i < supported.n; i++) {
        strcat(names, i ? " " : "");
        strcat(names, supported.list[i]->name);
    }
}

static const struct harken_kernels *find_kernels(const char *name) {
    struct harken_supported supported = harken_supported_kernels();
    if (!name)
        return supported.list[0];
    for (int32_t i = 0; i < supported.n; i++)
        if (strcmp(supported.list[i]->name, name) == 0)
            return supported.list[i];
    return NULL;
}

static void *copy(const void *from, size_t size) {
    void *to = malloc(size ? size : 1);
    return to ? memcpy(to, from, size) : NULL;
}

harken_decoder *harken_decoder_open(const struct harken_model *model, int32_t threads, const char *instruction_set) {
    const struct harken_kernels *kernels = find_kernels(instruction_set);
    harken_decoder *decoder = kernels ? calloc(1, sizeof *decoder) : NULL;
    if (!decoder)
        return NULL;
    decoder->model = *model;
    decoder->kernels = kernels;
    decoder->model.layers = copy(model->layers, (size_t)model->n_layers * sizeof *model->layers);
    decoder->model.alignment_heads =
        copy(model->alignment_heads, 2 * (size_t)model->n_alignment_heads * sizeof *model->alignment_heads);
    decoder->phases = calloc((size_t)harken_pass_phases(model), sizeof *decoder->phases);
    decoder->team = harken_team_open(threads);
    if (decoder->model.layers && decoder->model.alignment_heads && decoder->phases && decoder->team)
        return decoder;
    harken_decoder_close(decoder);
    return NULL;
}

void harken_decoder_close(harken_decoder *decoder) {
    if (decoder->team)
        harken_team_close(decoder->team);
    free((void *)decoder->model.layers);
    free((void *)decoder->model.alignment_heads);
    free(decoder->phases);
    free(decoder->arena.memory);
    free(decoder);
}

int64_t harken_window_bytes(const harken_decoder *decoder, int32_t positions) {
    return harken_window_offset(&decoder->model, positions, decoder->model.n_layers, 0) * (int64_t)sizeof(uint16_t);
}

struct packing {
    harken_decoder *decoder;
    int32_t layer, positions;
    const float *keys, *values;
    int64_t head_stride;
    uint16_t *packed;
};

static void pack_heads(void *context, int32_t part, int32_t begin, int32_t end, int32_t thread) {
    const struct packing *packing = context;
    const struct harken_model *model = &packing->decoder->model;
    const struct harken_kernels *kernels = packing->decoder->kernels;
    int32_t head_size = model->n_state / model->n_heads;
    (void)part, (void)thread;
    for (int32_t head = begin; head < end; head++) {
        uint16_t *to = packing->packed + harken_window_offset(model, packing->positions, packing->layer, head);
        int64_t from = head * packing->head_stride;
        kernels->pack_keys(packing->keys + from, packing->positions, head_size, to);
        to += harken_key_halves(model, packing->positions);
        kernels->pack_values(packing->values + from, packing->positions, head_size, to);
    }
}

void harken_pack_window(harken_decoder *decoder, int32_t layer, const float *keys, const float *values,
                        int64_t head_stride, int32_t positions, uint16_t *packed) {
    struct packing packing = {decoder, layer, positions, keys, values, head_stride, packed};
    struct harken_phase phase = {pack_heads, 0, decoder->model.n_heads, 1};
    harken_team_run(decoder->team, &phase, 1, &packing);
}
