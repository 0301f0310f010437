/* All kernels of one instruction set. Included by a file that has defined dot products and KERNELS_NAME. */

/* The numbers of vectors, of rows, and of groups of a matrix that share what is read: they change the speed and no bit.
 * With more registers they are larger. */
#ifndef LINEAR_TILE
#define LINEAR_TILE 4
#define ROW_TILE 6
#define GROUP_TILE 1
#endif

#include "attention.h"
#include "choice.h"
#include "float32.h"
#include "int16.h"
#include "linear.h"
#include "silero.h"
#include "spectrum.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

#define OF_BOTH(set, tile)                                                                                             \
    .name = STRING(set), .vectors = tile, .merge_chunks = merge_chunks, .normalise_row = normalise_row,                \
    .log_sum_exp = log_sum_exp, .largest = largest, .top = top, .sample = sample, .log_mel = log_mel,                  \
    .silero_probabilities = silero_probabilities

#define KERNELS(set, tile, linear_of_integers)                                                                         \
    {                                                                                                                  \
        {                                                                                                              \
            OF_BOTH(set, tile),                                                                                        \
            .activation_bytes = sizeof(int8_t),                                                                        \
            .number_bytes = sizeof(int16_t),                                                                           \
            .quantise = quantise,                                                                                      \
            .linear = linear_of_integers,                                                                              \
            .self_attention = self_attention,                                                                          \
            .cross_attention = cross_attention,                                                                        \
            .pack_keys = pack_keys,                                                                                    \
            .pack_values = pack_values,                                                                                \
            .quantise_rows = quantise_rows,                                                                            \
            .multiply = multiply,                                                                                      \
            .window_attention = window_attention,                                                                      \
            .embed = embed,                                                                                            \
        },                                                                                                             \
        {                                                                                                              \
            OF_BOTH(set, tile),                                                                                        \
            .activation_bytes = sizeof(float),                                                                         \
            .number_bytes = sizeof(float),                                                                             \
            .quantise = float_vector,                                                                                  \
            .linear = float_linear,                                                                                    \
            .self_attention = float_self_attention,                                                                    \
            .cross_attention = float_cross_attention,                                                                  \
            .pack_keys = float_pack_keys,                                                                              \
            .pack_values = float_pack_values,                                                                          \
            .quantise_rows = float_rows,                                                                               \
            .multiply = float_multiply,                                                                                \
            .window_attention = float_window_attention,                                                                \
            .embed = float_embed,                                                                                      \
        },                                                                                                             \
    }

const struct harken_kernels JOIN(harken_kernels_, KERNELS_NAME)[2] = KERNELS(KERNELS_NAME, HARKEN_VECTORS, linear);
#ifdef WITH_TILES
const struct harken_kernels harken_kernels_amx[2] = KERNELS(amx, TILE_VECTORS, tile_linear);
#endif
