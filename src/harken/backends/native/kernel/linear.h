/* Linear layers: integers in, integers summed, floats out.
 *
 * Each lane holds one row of the matrix, so nothing is summed across lanes. The products of a block are summed as
 * integers, exactly; only the sums of blocks are added as floats, in the order of the blocks. Weights are read once for
 * a tile of vectors. The file that includes this one multiplies: four columns of 16 rows at a time, the layout of the
 * processors' own instructions. */
#include "simd.h"

#include "kernels.h"

static const i32x16 EVEN_PAIRS = {-1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0};
static const float LARGEST_HALF_NORM = 231.0f; /* rounding adds up to 2, and 233 * 140 < 2^15 */

INLINE u8x64 load_bytes(const int8_t *from) {
    u8x64 x;
    memcpy(&x, from, sizeof x);
    return x;
}

#ifndef SUMS_OF_PAIRS
/* The sums of a block with weights of 7 bits. They start so that weights count from 0; `offset_7` says from the sums of
 * values of blocks, and those of their even pairs of columns, what is kept for that. */
typedef i32x16 sums_7;
#define COLUMNS_IN_TURN UNROLL

INLINE u32x16 offset_7(u32x16 totals, u32x16 even_totals) {
    (void)even_totals;
    return -64u * totals;
}

INLINE sums_7 start_7(int32_t offset) {
    return splat_integer(offset);
}

INLINE sums_7 resume_7(i32x16 sums) {
    return sums;
}

INLINE sums_7 widen_7(sums_7 sums) {
    return sums;
}

INLINE i32x16 end_7(sums_7 sums) {
    return sums;
}
#endif

/* The products of one block of a group, or of two that are `next` bytes apart, with weights of 7 bits, stored as unsigned
 * numbers. */
INLINE void dot_block_7(const int8_t *weights, int64_t next, int n_groups, const int8_t *x, int64_t stride,
                        const int32_t *offsets, int64_t n_blocks, int n, i32x16 (*sums)[LINEAR_TILE]) {
    sums_7 own[2][LINEAR_TILE];
    int first = 0;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < n_groups; g++)
            own[g][i] = start_7(offsets[i * n_blocks]);
#ifdef DOT_BLOCK_PAIR
    for (; first + 2 <= n; first += 2)
        dot_block_pair(weights, x + first * stride, stride, own[0] + first);
#endif
    COLUMNS_IN_TURN for (int column = 0; column < HARKEN_BLOCK; column += 4) {
        u8x64 loaded[2];
        for (int g = 0; g < n_groups; g++)
            loaded[g] = load_bytes(weights + g * next + column * HARKEN_GROUP);
        for (int i = first; i < n; i++)
            for (int g = 0; g < n_groups; g++)
                own[g][i] = dot_7(own[g][i], loaded[g], x + i * stride + column);
    }
    for (int i = 0; i < n; i++)
        for (int g = 0; g < n_groups; g++)
            sums[g][i] = end_7(own[g][i]);
}

/* The same with weights of 4 bits, whose sums are at most 2 * 8 * 15 * 127, less than 2^15. */
INLINE void dot_block_4(const int8_t *weights, const int8_t *x, int64_t stride, const int32_t *offsets,
                        int64_t n_blocks, int n, i32x16 *sums) {
    sums_7 own[LINEAR_TILE];
    for (int i = 0; i < n; i++)
        own[i] = resume_7(splat_integer(offsets[i * n_blocks]));
    for (int column = 0; column < HARKEN_BLOCK; column += 8) {
        u8x64 both = load_bytes(weights + column * HARKEN_GROUP / 2);
        u8x64 lower = both & 15, upper = both >> 4;
        for (int i = 0; i < n; i++) {
            own[i] = dot_7(own[i], lower, x + i * stride + column);
            own[i] = dot_7(own[i], upper, x + i * stride + column + 4);
        }
    }
    for (int i = 0; i < n; i++)
        sums[i] = end_7(own[i]);
}

INLINE int64_t block_bytes(const struct harken_matrix *matrix) {
    return HARKEN_BLOCK * HARKEN_GROUP / (matrix->bits == 4 ? 2 : 1);
}

/* The first tile of a group fetches blocks ahead, and scales, which take a sixteenth as many bytes (with 4 bits an
 * eighth, so they are fetched half as far ahead). */
INLINE void fetch_blocks(const int8_t *weights, const uint16_t *scales, int64_t bytes) {
    fetch((const char *)weights + AHEAD, bytes);
    fetch((const char *)scales + AHEAD / 16, bytes / 16);
}

/* Writes the products of the rows of a group and of n vectors. */
INLINE void write_totals(const struct harken_matrix *matrix, int64_t group, const f32x16 *totals, int n,
                         enum harken_output output, void *const *y, int64_t shift) {
    int64_t row = group * HARKEN_GROUP, place = shift + row;
    f32x16 bias = matrix->bias ? load(matrix->bias + row) : splat(0);
    for (int i = 0; i < n; i++) {
        float *to = y[i];
        f32x16 result = totals[i] + bias;
        if (output == HARKEN_CACHE)
            store_half((uint16_t *)y[i] + place, result);
        else if (output == HARKEN_ADD)
            store(to + place, load(to + place) + result);
        else
            store(to + place, result);
    }
}

/* The rows of a group, or with 7 bits of two, times vectors `first` to `first + n`. With each block `share` bytes are fetched
 * from `ahead`, or with no share what the first tile needs soon. */
INLINE void linear_tile(const struct harken_matrix *matrix, int64_t group, int n_groups,
                        const struct harken_activations *x, int64_t first, int n, int bits,
                        enum harken_output output, void *const *y, int64_t shift, const char *ahead,
                        int64_t share) {
    int64_t n_blocks = matrix->columns / HARKEN_BLOCK, next = n_blocks * block_bytes(matrix);
    const int8_t *weights = (const int8_t *)matrix->weights + group * next;
    const uint16_t *scales = (const uint16_t *)matrix->scales + group * n_blocks * HARKEN_GROUP;
    const int8_t *values = (const int8_t *)x->values + first * matrix->columns;
    const float *x_scales = x->scales + first * n_blocks;
    const int32_t *offsets = x->offsets + first * n_blocks;
    f32x16 totals[2][LINEAR_TILE];
    for (int i = 0; i < n; i++)
        for (int g = 0; g < n_groups; g++)
            totals[g][i] = splat(0);
    for (int64_t block = 0; block < n_blocks; block++) {
        i32x16 sums[2][LINEAR_TILE];
        if (share)
            fetch(ahead + block * share, share);
        else
            for (int g = 0; first == 0 && g < n_groups; g++)
                fetch_blocks(weights + g * next, scales + g * n_blocks * HARKEN_GROUP, block_bytes(matrix));
        if (bits == 7)
            dot_block_7(weights, next, n_groups, values + block * HARKEN_BLOCK, matrix->columns, offsets + block,
                        n_blocks, n, sums);
        else
            dot_block_4(weights, values + block * HARKEN_BLOCK, matrix->columns, offsets + block, n_blocks, n, sums[0]);
        for (int g = 0; g < n_groups; g++) {
            f32x16 scale = load_bfloat(scales + g * n_blocks * HARKEN_GROUP);
            for (int i = 0; i < n; i++) {
                f32x16 both = scale * x_scales[i * n_blocks + block];
                totals[g][i] = fma16(__builtin_convertvector(sums[g][i], f32x16), both, totals[g][i]);
            }
        }
        weights += block_bytes(matrix);
        scales += HARKEN_GROUP;
    }
    for (int g = 0; g < n_groups; g++)
        write_totals(matrix, group + g, totals[g], n, output, y + first, shift);
}

/* A copy of `linear_tile` for every number of vectors, so that the sums stay in registers. */
#define TILE_OF(n)                                                                                                     \
    static void linear_##n(const struct harken_matrix *matrix, int64_t group, const struct harken_activations *x,      \
                           int64_t first, enum harken_output output, void *const *y,                                   \
                           int64_t shift) {                                                                            \
        if (matrix->bits == 4)                                                                                         \
            linear_tile(matrix, group, 1, x, first, n, 4, output, y, shift, NULL, 0);                                  \
        else                                                                                                           \
            linear_tile(matrix, group, 1, x, first, n, 7, output, y, shift, NULL, 0);                                  \
    }
TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
#if LINEAR_TILE == 8
TILE_OF(5)
TILE_OF(6)
TILE_OF(7)
TILE_OF(8)
#endif
#undef TILE_OF

/* One of the tiles of many vectors times weights of 7 bits; its groups share each number that is read of the vectors. */
static void linear_wide(const struct harken_matrix *matrix, int64_t group, const struct harken_activations *x,
                        int64_t first, enum harken_output output, void *const *y, int64_t shift, const char *ahead,
                        int64_t share) {
    linear_tile(matrix, group, WIDE_GROUPS, x, first, WIDE_TILE, 7, output, y, shift, ahead, share);
}

#ifdef WITH_TILES
/* Linear layers of 16 vectors and more with weights of 7 bits, in the matrix registers of AMX: the integers that
 * `linear_tile` sums, and so the same bits.
 *
 * A register has up to 16 rows of 64 bytes. One instruction adds the products of 16 vectors, a row each, and of a block
 * of 16 rows of weights, which are stored as it takes them: four columns of each row side by side. It takes long until
 * sums can be read, so three blocks are multiplied while the one before them is scaled. */
enum { TILE_VECTORS = 16, BLOCK_BYTES = HARKEN_BLOCK * HARKEN_GROUP, IN_WORK = 4 };
enum { VECTORS = 4, WEIGHTS = 6 }; /* numbers of registers, the first of two each; 0 to 3 are the sums of blocks in work */

static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < IN_WORK; i++)
        config.rows[i] = TILE_VECTORS, config.row_bytes[i] = HARKEN_GROUP * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        config.rows[VECTORS + i] = TILE_VECTORS, config.row_bytes[VECTORS + i] = HARKEN_BLOCK;
        config.rows[WEIGHTS + i] = HARKEN_BLOCK / 4, config.row_bytes[WEIGHTS + i] = HARKEN_GROUP * 4;
    }
    _tile_loadconfig(&config);
}

/* Writes the sums of products of a block of weights and of 16 vectors; registers are numbered by constants. */
#define PRODUCTS_OF(turn)                                                                                              \
    INLINE void products_##turn(const int8_t *weights, const int8_t *x, int64_t stride, i32x16 *sums) {                \
        _tile_loadd(VECTORS + turn % 2, x, stride);                                                                    \
        _tile_loadd(WEIGHTS + turn % 2, weights, HARKEN_GROUP * 4);                                                    \
        _tile_zero(turn);                                                                                              \
        _tile_dpbsud(turn, VECTORS + turn % 2, WEIGHTS + turn % 2);                                                    \
        _tile_stored(turn, sums, sizeof *sums);                                                                        \
    }
PRODUCTS_OF(0)
PRODUCTS_OF(1)
PRODUCTS_OF(2)
PRODUCTS_OF(3)
#undef PRODUCTS_OF

/* Adds the scaled sums of a block to `totals`. */
INLINE void scale_block(const i32x16 *sums, const uint16_t *scales, const float *x_scales, const int32_t *offsets,
                        int64_t stride, f32x16 *totals) {
    f32x16 scale = load_bfloat(scales);
    UNROLL for (int i = 0; i < TILE_VECTORS; i++) {
        f32x16 both = scale * x_scales[i * stride];
        i32x16 sum = sums[i] + offsets[i * stride];
        totals[i] = fma16(__builtin_convertvector(sum, f32x16), both, totals[i]);
        if (i % 4 == 3)
            __asm__ volatile("" ::: "memory"); /* more at a time need more registers than there are */
    }
}

/* The rows of a group times vectors `first` to `first + 16`. */
static void multiply_tiles(const struct harken_matrix *matrix, int64_t group, const struct harken_activations *x,
                           int64_t first, enum harken_output output, void *const *y,
                           int64_t shift) {
    int64_t n_blocks = matrix->columns / HARKEN_BLOCK, columns = matrix->columns;
    const int8_t *weights = (const int8_t *)matrix->weights + group * n_blocks * BLOCK_BYTES;
    const uint16_t *scales = (const uint16_t *)matrix->scales + group * n_blocks * HARKEN_GROUP;
    const int8_t *values = (const int8_t *)x->values + first * columns;
    const float *x_scales = x->scales + first * n_blocks;
    const int32_t *offsets = x->offsets + first * n_blocks;
    i32x16 sums[IN_WORK][TILE_VECTORS];
    f32x16 totals[TILE_VECTORS];
    UNROLL for (int i = 0; i < TILE_VECTORS; i++)
        totals[i] = splat(0);
#define BEGIN(turn, block)                                                                                             \
    if ((block) < n_blocks)                                                                                            \
    products_##turn(weights + (block) * BLOCK_BYTES, values + (block) * HARKEN_BLOCK, columns, sums[turn])
#define END(turn, block)                                                                                               \
    if ((block) < n_blocks)                                                                                            \
    scale_block(sums[turn], scales + (block) * HARKEN_GROUP, x_scales + (block), offsets + (block), n_blocks, totals)
    BEGIN(0, 0);
    BEGIN(1, 1);
    BEGIN(2, 2);
    for (int64_t block = 0; block < n_blocks; block += IN_WORK) {
        if (first == 0)
            fetch_blocks(weights + block * BLOCK_BYTES, scales + block * HARKEN_GROUP, IN_WORK * BLOCK_BYTES);
        BEGIN(3, block + 3);
        END(0, block);
        BEGIN(0, block + 4);
        END(1, block + 1);
        BEGIN(1, block + 5);
        END(2, block + 2);
        BEGIN(2, block + 6);
        END(3, block + 3);
    }
#undef BEGIN
#undef END
    write_totals(matrix, group, totals, TILE_VECTORS, output, y + first, shift);
}
#endif

INLINE void linear_groups(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                          const struct harken_activations *x, int32_t n, enum harken_output output, void *const *y,
                          int64_t shift, int32_t n_in_tiles) {
    typedef void tile_function(const struct harken_matrix *, int64_t, const struct harken_activations *, int64_t,
                               enum harken_output, void *const *, int64_t);
    static tile_function *const tiles[] = {
        linear_1, linear_2, linear_3, linear_4,
#if LINEAR_TILE == 8
        linear_5, linear_6, linear_7, linear_8,
#endif
    };
    /* Several tiles share the fetching of the next groups: the first one alone would wait for memory. */
    int64_t n_blocks = matrix->columns / HARKEN_BLOCK, bytes = WIDE_GROUPS * block_bytes(matrix);
    int64_t n_wide = matrix->bits == 7 && !n_in_tiles ? n / WIDE_TILE : 0;
    int64_t share = n_wide > 1 ? (bytes / LINE + n_wide - 1) / n_wide * LINE : 0;
    for (int64_t group = first_group, taken; group < end_group; group += taken) {
        int64_t first = 0;
        taken = n_wide && end_group - group >= WIDE_GROUPS ? WIDE_GROUPS : 1;
        const char *ahead = (const char *)matrix->weights + (group + WIDE_GROUPS) * n_blocks * block_bytes(matrix);
        for (; taken == WIDE_GROUPS && first < n_wide * WIDE_TILE; first += WIDE_TILE, ahead += n_blocks * share)
            linear_wide(matrix, group, x, first, output, y, shift, ahead, share);
#ifdef WITH_TILES
        for (; first < n_in_tiles; first += TILE_VECTORS)
            multiply_tiles(matrix, group, x, first, output, y, shift);
#else
        (void)n_in_tiles;
#endif
        for (; first < n; first += LINEAR_TILE) {
            int64_t size = n - first < LINEAR_TILE ? n - first : LINEAR_TILE;
            for (int64_t own = group; own < group + taken; own++)
                tiles[size - 1](matrix, own, x, first, output, y, shift);
        }
        for (int32_t i = 0; output == HARKEN_GELU && i < n; i++)
            gelu_row((float *)y[i] + shift + group * HARKEN_GROUP, taken * HARKEN_GROUP);
    }
}

static void linear(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                   const struct harken_activations *x, int32_t n, enum harken_output output, void *const *y,
                   int64_t shift) {
    linear_groups(matrix, first_group, end_group, x, n, output, y, shift, 0);
}

#ifdef WITH_TILES
static void tile_linear(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                        const struct harken_activations *x, int32_t n, enum harken_output output, void *const *y,
                        int64_t shift) {
    int32_t n_in_tiles = matrix->bits == 7 ? n - n % TILE_VECTORS : 0;
    if (!n_in_tiles) {
        linear(matrix, first_group, end_group, x, n, output, y, shift);
        return;
    }
    configure_tiles();
    linear_groups(matrix, first_group, end_group, x, n, output, y, shift, n_in_tiles);
    _tile_release();
}
#endif

INLINE int is_wanted(int64_t group, int32_t n_partial, float threshold, const float *y) {
    return group >= n_partial || __builtin_reduce_or(load(y + group * HARKEN_GROUP) >= threshold);
}

/* The weights of a group are fetched while the wanted one before is multiplied, and read once if all vectors want it;
 * their scales take an eighth as many bytes. */
static void complete(const struct harken_matrix *matrix, int32_t first_group, int32_t end_group,
                     const struct harken_activations *x, int32_t n, int32_t n_partial, const float *thresholds,
                     float *const *y) {
    int64_t bytes = matrix->columns / HARKEN_BLOCK * block_bytes(matrix);
    int32_t before = first_group, n_before = 0;
    for (int32_t group = first_group; group <= end_group; group++) {
        int32_t n_wanting = 0;
        for (int32_t i = 0; i < n && group < end_group; i++)
            n_wanting += is_wanted(group, n_partial, thresholds[i], y[i]);
        if (!n_wanting && group < end_group)
            continue;
        if (n_wanting) {
            fetch((const char *)matrix->weights + group * bytes, bytes);
            fetch((const char *)matrix->scales + group * bytes / 8, bytes / 8);
        }
        if (n_before == n)
            linear_groups(matrix, before, before + 1, x, n, HARKEN_ADD, (void *const *)y, 0, 0);
        else
            for (int32_t i = 0; i < n && n_before; i++)
                if (is_wanted(before, n_partial, thresholds[i], y[i]))
                    linear_1(matrix, before, x, i, HARKEN_ADD, (void *const *)y, 0);
        before = group, n_before = n_wanting;
    }
}

/* x, or x with mean 0 and variance 1, as integers with a scale for every block; 16 blocks at a time, whose peaks, norms
 * and scales have a lane each. Magnitudes are compared by their bits, among which NaN is the largest: a block with a
 * number that is not finite gets the scale NaN.
 *
 * For weights of 7 bits each half of a block, its even or its odd pairs of columns, has a norm of at most
 * LARGEST_HALF_NORM. That of the weights is at most 140. By the inequality of Cauchy and Schwarz the sum of the products
 * of a half then stays within 16 bits, in which AVX2 can sum them. */
static void quantise(const float *x, int32_t columns, int normalise, int bits, struct harken_activations *to,
                     int32_t i) {
    float mean = 0, factor = 1;
    if (normalise)
        factor = normalising_factor(x, columns, &mean);
    int32_t n_blocks = columns / HARKEN_BLOCK;
    for (int32_t first = 0; first < n_blocks; first += LANES) {
        int32_t n = n_blocks - first < LANES ? n_blocks - first : LANES;
        const float *from = x + first * HARKEN_BLOCK;
        int8_t *bytes = (int8_t *)to->values + (int64_t)i * columns + first * HARKEN_BLOCK;
        f32x16 even_squares[LANES] = {0}, odd_squares[LANES] = {0};
        i32x16 largest[LANES] = {0}, sums[LANES] = {0}, even_sums[LANES] = {0};
        for (int32_t block = 0; block < n; block++) {
            const float *own = from + block * HARKEN_BLOCK;
            f32x16 a = (load(own) - mean) * factor, b = (load(own + LANES) - mean) * factor;
            f32x16 squares = a * a + b * b;
            largest[block] = __builtin_elementwise_max(magnitude_bits(a), magnitude_bits(b));
            even_squares[block] = (f32x16)((i32x16)squares & EVEN_PAIRS);
            odd_squares[block] = (f32x16)((i32x16)squares & ~EVEN_PAIRS);
        }
        f32x16 peaks = (f32x16)integer_max_lanes_of_16(largest), scales = peaks * (1.0f / 127);
        f32x16 inverses = (f32x16)((i32x16)(127 / peaks) & (peaks > SMALLEST_PEAK));
        if (bits == 7) {
            f32x16 norms = sqrt16(max16(sum_lanes_of_16(even_squares), sum_lanes_of_16(odd_squares)));
            i32x16 is_long = norms * inverses > LARGEST_HALF_NORM;
            inverses = choose(is_long, LARGEST_HALF_NORM / norms, inverses);
            scales = choose(is_long, norms * (1 / LARGEST_HALF_NORM), scales);
        }
        for (int32_t block = 0; block < n; block++) {
            const float *own = from + block * HARKEN_BLOCK;
            i32x16 a = round_to_integer((load(own) - mean) * factor * inverses[block]);
            i32x16 b = round_to_integer((load(own + LANES) - mean) * factor * inverses[block]);
            i8x16 narrow[2] = {__builtin_convertvector(a, i8x16), __builtin_convertvector(b, i8x16)};
            memcpy(bytes + block * HARKEN_BLOCK, narrow, sizeof narrow);
            sums[block] = a + b;
            even_sums[block] = sums[block] & EVEN_PAIRS;
        }
        u32x16 totals = (u32x16)integer_sum_lanes_of_16(sums);
        totals = bits == 7 ? offset_7(totals, (u32x16)integer_sum_lanes_of_16(even_sums)) : -8u * totals;
        scales = choose(peaks < INFINITY, scales, splat(NAN));
        memcpy(to->scales + (int64_t)i * n_blocks + first, &scales, (size_t)n * sizeof *to->scales);
        memcpy(to->offsets + (int64_t)i * n_blocks + first, &totals, (size_t)n * sizeof *to->offsets);
    }
}
