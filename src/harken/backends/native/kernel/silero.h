/* Silero VAD: magnitudes of four spectra of a chunk, four convolutions that reduce them to one vector, an LSTM, a sigmoid.
 *
 * Spectra have frames in their lanes, everything else rows of a matrix. All but the LSTM is computed for some chunks at
 * once, which share the weights that are read; between the layers lie arrays of (positions, chunks, channels). */
#include "spectrum.h"

#include "kernels.h"

enum { CHUNK_SAMPLES = 512, CONTEXT_SAMPLES = 64, CHUNK_FRAME = 256, CHUNK_HOP = 128, CHUNK_FRAMES = 4 };
enum { CHUNK_BINS = CHUNK_FRAME / 2 + 1, STATES = 128, GATES = 4, MOST_CHUNKS = 12 };

static const struct {
    int32_t inputs, outputs, stride; /* channels, and positions from one output to the next */
} CONVOLUTIONS[] = {{CHUNK_BINS, 128, 1}, {128, 64, 2}, {64, 64, 2}, {64, STATES, 1}};

/* By its bits: of a comparison LLVM makes masked stores, which are slow. */
INLINE f32x16 relu16(f32x16 x) {
    return (f32x16)((i32x16)x & ~((i32x16)x >> 31));
}

/* Write the magnitudes of the frames of n chunks, shape (frames, n, bins). The last frame ends in the chunk's own
 * reflection. In lanes that are left over the last chunk is computed again. */
INLINE void chunk_spectra(const struct harken_silero *weights, const float *samples, int32_t n, float *to) {
    enum { CHUNKS = LANES / CHUNK_FRAMES, LAST = CHUNK_HOP * (CHUNK_FRAMES - 1), END = CHUNK_SAMPLES + CONTEXT_SAMPLES };
    const float *roots = weights->roots;
    struct complex_lanes points[CHUNK_FRAME / 2], scratch[CHUNK_FRAME / 2];
    f32x16 power[CHUNK_BINS];
    float last_frames[CHUNKS][CHUNK_FRAME];
    for (int32_t first = 0; first < n; first += CHUNKS) {
        const float *frames[LANES];
        float *rows[LANES];
        for (int32_t i = 0; i < CHUNKS; i++) {
            int32_t chunk = first + i < n ? first + i : n - 1;
            const float *from = samples + (int64_t)CHUNK_SAMPLES * chunk;
            memcpy(last_frames[i], from + LAST, (END - LAST) * sizeof *from);
            for (int32_t j = END; j < LAST + CHUNK_FRAME; j++)
                last_frames[i][j - LAST] = from[2 * (END - 1) - j];
            for (int32_t frame = 0; frame < CHUNK_FRAMES; frame++) {
                frames[CHUNK_FRAMES * i + frame] =
                    frame < CHUNK_FRAMES - 1 ? from + CHUNK_HOP * frame : last_frames[i];
                rows[CHUNK_FRAMES * i + frame] = to + (frame * n + chunk) * CHUNK_BINS;
            }
        }
        read_frames(frames, CHUNK_FRAME, weights->window, points);
        split_transforms(transform_4, 4, 128, 1, roots, points, scratch);
        split_transforms(transform_4, 4, 32, 4, roots, scratch, points);
        split_transforms(transform_4, 4, 8, 16, roots, points, scratch);
        split_transforms(transform_2, 2, 2, 64, roots, scratch, points);
        power_spectrum(points, CHUNK_FRAME / 2, roots, power);
        for (int32_t bin = 0; bin < CHUNK_BINS; bin++)
            power[bin] = sqrt16(power[bin]);
        for (int32_t bin = 0; bin < CHUNK_BINS - 1; bin += LANES) {
            transpose(power + bin);
            for (int32_t lane = 0; lane < LANES; lane++)
                store(rows[lane] + bin, power[bin + lane]);
        }
        for (int32_t lane = 0; lane < LANES; lane++)
            rows[lane][CHUNK_BINS - 1] = power[CHUNK_BINS - 1][lane];
    }
}

/* y = W x + b, or y + W x without a bias, for n vectors. */
static void add_product(const float *weights, const float *bias, int32_t rows, int32_t columns, float *x, int32_t n,
                        float *y) {
    struct harken_matrix matrix = {weights, NULL, bias, rows, columns, 32};
    float_multiply(&matrix, &(struct harken_rows){.values = x}, n, bias ? HARKEN_STORE : HARKEN_ADD, y, rows);
}

/* A convolution with three taps and a padding of 1, and ReLU. Taps that would read padding are left out. */
static void convolve(const float *weights, const float *bias, int32_t inputs, int32_t outputs, int32_t stride,
                     int32_t positions, int32_t n, float *x, float *y) {
    static const int32_t taps[] = {1, 0, 2}; /* the middle one is never left out: it stores, the others add */
    for (int32_t to = 0; to * stride < positions; to++, y += n * outputs) {
        for (int32_t i = 0; i < 3; i++) {
            int32_t from = to * stride + taps[i] - 1;
            if (from >= 0 && from < positions)
                add_product(weights + taps[i] * outputs * inputs, i ? NULL : bias, outputs, inputs,
                            x + from * n * inputs, n, y);
        }
        for (int32_t i = 0; i < n * outputs; i += LANES)
            store(y + i, relu16(load(y + i)));
    }
}

/* `gates` are what the input adds to those of the LSTM; returns the probability. */
INLINE float next_probability(const struct harken_silero *weights, const float *gates, float *state) {
    const float *recurrent = weights->recurrent;
    float hidden[STATES], *cell = state + STATES;
    memcpy(hidden, state, sizeof hidden);
    f32x16 output = {0};
    for (int32_t row = 0; row < STATES; row += LANES, gates += GATES * LANES) {
        f32x16 sums[GATES];
        UNROLL for (int gate = 0; gate < GATES; gate++)
            sums[gate] = load(gates + gate * LANES);
        for (int32_t column = 0; column < STATES; column++, recurrent += GATES * LANES)
            UNROLL for (int gate = 0; gate < GATES; gate++)
                sums[gate] = fma16(load(recurrent + gate * LANES), splat(hidden[column]), sums[gate]);
        f32x16 added = sigmoid16(sums[0]) * tanh16(sums[3]);
        f32x16 kept = fma16(sigmoid16(sums[2]), load(cell + row), added);
        f32x16 shown = sigmoid16(sums[1]) * tanh16(kept);
        store(cell + row, kept);
        store(state + row, shown);
        output = fma16(relu16(shown), load(weights->output + row), output);
    }
    return sigmoid16(splat(sum_lanes(output) + weights->output[STATES]))[0];
}

static void silero_probabilities(const struct harken_silero *weights, const float *samples, int32_t n_chunks,
                                 float *state, float *probabilities) {
    float x[CHUNK_FRAMES * MOST_CHUNKS * CHUNK_BINS], y[CHUNK_FRAMES * MOST_CHUNKS * STATES];
    for (int32_t first = 0; first < n_chunks; first += MOST_CHUNKS) {
        int32_t n = n_chunks - first < MOST_CHUNKS ? n_chunks - first : MOST_CHUNKS, positions = CHUNK_FRAMES;
        const float *convolution = weights->convolutions, *bias = weights->convolution_biases;
        chunk_spectra(weights, samples + (int64_t)CHUNK_SAMPLES * first, n, x);
        for (int32_t i = 0; i < 4; i++) {
            int32_t inputs = CONVOLUTIONS[i].inputs, outputs = CONVOLUTIONS[i].outputs, stride = CONVOLUTIONS[i].stride;
            convolve(convolution, bias, inputs, outputs, stride, positions, n, i % 2 ? y : x, i % 2 ? x : y);
            positions = (positions + stride - 1) / stride;
            convolution += 3 * outputs * inputs;
            bias += outputs;
        }
        add_product(weights->input, weights->bias, GATES * STATES, STATES, x, n, y);
        for (int32_t i = 0; i < n; i++)
            probabilities[first + i] = next_probability(weights, y + i * GATES * STATES, state);
    }
}
