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
            fetch(weights + block * BLOCK_BYTES, IN_WORK * BLOCK_BYTES);
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
