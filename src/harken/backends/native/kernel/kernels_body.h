/* All kernels of one instruction set. Included by a file that has defined dot products, LINEAR_TILE and
 * LINEAR_GROUPS, ROW_TILE and GROUP_TILE (the numbers of vectors, of rows, and of groups of a matrix that share what is
 * read; they change the speed and no bit), and KERNELS_NAME. */
#include "attention.h"
#include "choice.h"
#include "int16.h"
#include "linear.h"
#include "spectrum.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

const struct harken_kernels JOIN(harken_kernels_, KERNELS_NAME) = {
    .name = STRING(KERNELS_NAME),
    .quantise = quantise,
    .linear = linear,
    .self_attention = self_attention,
    .cross_attention = cross_attention,
    .merge_chunks = merge_chunks,
    .pack_keys = pack_keys,
    .pack_values = pack_values,
    .quantise_rows = quantise_rows,
    .multiply = multiply,
    .window_attention = window_attention,
    .normalise_row = normalise_row,
    .embed = embed,
    .log_sum_exp = log_sum_exp,
    .largest = largest,
    .top = top,
    .sample = sample,
    .log_mel = log_mel,
};
