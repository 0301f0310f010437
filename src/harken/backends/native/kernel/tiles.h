/* Linear layers of 16 vectors and more with weights of 7 bits, in the matrix registers of AMX: the integers that
 * `linear_tile` sums, and so the same bits.
 *
 * A register has up to 16 rows of 64 bytes. One instruction adds the products of 16 vectors, a row each, and of a block
 * of 16 rows of weights, which are stored as it takes them: four columns of each row side by side. Before, weights are
 * made signed, which costs less than to correct every sum. Registers alternate, so that a block is multiplied while the
 * sums of the one before it are scaled. */
enum { TILE_VECTORS = 16, BLOCK_BYTES = HARKEN_BLOCK * HARKEN_GROUP };
enum { SUMS = 0, VECTORS = 2, WEIGHTS = 4 }; /* numbers of registers, the first of two each */

static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int turn = 0; turn < 2; turn++) {
        config.rows[SUMS + turn] = TILE_VECTORS, config.row_bytes[SUMS + turn] = HARKEN_GROUP * sizeof(int32_t);
        config.rows[VECTORS + turn] = TILE_VECTORS, config.row_bytes[VECTORS + turn] = HARKEN_BLOCK;
        config.rows[WEIGHTS + turn] = HARKEN_BLOCK / 4, config.row_bytes[WEIGHTS + turn] = HARKEN_GROUP * 4;
    }
    _tile_loadconfig(&config);
}

static void release_tiles(void) {
    _tile_release();
}

/* Writes the sums of products of a block of weights and of 16 vectors; registers are numbered by constants. */
#define PRODUCTS_OF(turn)                                                                                              \
    INLINE void products_##turn(const int8_t *weights, const int8_t *x, int64_t stride, int8_t *signed_weights, i32x16 *sums) {                \
        UNROLL for (int column = 0; column < HARKEN_BLOCK; column += 4) {                                              \
            i8x64 own = load_bytes(weights + column * HARKEN_GROUP) - 64;                                              \
            memcpy(signed_weights + column * HARKEN_GROUP, &own, sizeof own);                                          \
        }                                                                                                              \
        _tile_loadd(VECTORS + turn, x, stride);                                                                        \
        _tile_loadd(WEIGHTS + turn, signed_weights, HARKEN_GROUP * 4);                                                 \
        _tile_zero(SUMS + turn);                                                                                       \
        _tile_dpbssd(SUMS + turn, VECTORS + turn, WEIGHTS + turn);                                                     \
        _tile_stored(SUMS + turn, sums, sizeof *sums);                                                                 \
    }
PRODUCTS_OF(0)
PRODUCTS_OF(1)
#undef PRODUCTS_OF

/* The rows of a group times vectors `first` to `first + 16`. */
static void multiply_tiles(const struct harken_matrix *matrix, int64_t group,
                                         const struct harken_activations *x, int64_t first, struct ahead ahead,
                                         enum harken_output output, void *const *y, int64_t shift) {
    int64_t n_blocks = matrix->columns / HARKEN_BLOCK, columns = matrix->columns;
    const int8_t *weights = (const int8_t *)matrix->weights + group * n_blocks * BLOCK_BYTES;
    const uint16_t *scales = (const uint16_t *)matrix->scales + group * n_blocks * HARKEN_GROUP;
    const int8_t *values = (const int8_t *)x->values + first * columns;
    const float *x_scales = x->scales + first * n_blocks;
    int8_t signed_weights[2][BLOCK_BYTES] __attribute__((aligned(64)));
    i32x16 sums[2][TILE_VECTORS];
    f32x16 totals[TILE_VECTORS];
    UNROLL for (int i = 0; i < TILE_VECTORS; i++)
        totals[i] = splat(0);
    products_0(weights, values, columns, signed_weights[0], sums[0]);
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t next = block + 1;
        for (int64_t byte = 0; byte < ahead.bytes; byte += LINE)
            __builtin_prefetch(ahead.weights + byte, 0, 2);
        ahead.weights += ahead.bytes;
        if (next < n_blocks && next % 2)
            products_1(weights + next * BLOCK_BYTES, values + next * HARKEN_BLOCK, columns, signed_weights[1],
                       sums[1]);
        else if (next < n_blocks)
            products_0(weights + next * BLOCK_BYTES, values + next * HARKEN_BLOCK, columns, signed_weights[0],
                       sums[0]);
        f32x16 scale = load_bfloat(scales + block * HARKEN_GROUP);
        const i32x16 *own = sums[block % 2];
        UNROLL for (int i = 0; i < TILE_VECTORS; i++) {
            f32x16 both = scale * x_scales[i * n_blocks + block];
            totals[i] = fma16(__builtin_convertvector(own[i], f32x16), both, totals[i]);
            if (i % 4 == 3)
                __asm__ volatile("" ::: "memory"); /* more at a time need more registers than there are */
        }
    }
    write_totals(matrix, group, totals, TILE_VECTORS, output, y + first, shift);
}
