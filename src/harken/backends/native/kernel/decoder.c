/* A decoder: a model, the kernels for this processor, and the threads that run them. */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

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
    decoder->kernels = kernels + (model->head.bits == 32); /* of the pair, those of integers or of float32 */
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
