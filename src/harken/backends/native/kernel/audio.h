/* Log-mel spectrograms and voice activity detection. Spectra are computed of 16 frames at once, each in its own lane of
 * every vector.
 *
 * So no operation mixes frames: the code reads like that for one frame. The length of a frame is even; `roots` are those of
 * that degree: cos and sin of -2 pi j / length. A group of 16 frames of log-mel works in 65 KB. */
#include "harken.h"
#include "simd.h"

enum { MEL_FRAME = 400, MEL_HOP = 160 };

struct complex_lanes {
    f32x16 re, im;
};

INLINE struct complex_lanes plus(struct complex_lanes a, struct complex_lanes b) {
    return (struct complex_lanes){a.re + b.re, a.im + b.im};
}

INLINE struct complex_lanes minus(struct complex_lanes a, struct complex_lanes b) {
    return (struct complex_lanes){a.re - b.re, a.im - b.im};
}

INLINE struct complex_lanes times(struct complex_lanes a, float factor) {
    return (struct complex_lanes){a.re * factor, a.im * factor};
}

INLINE struct complex_lanes times_minus_i(struct complex_lanes a) {
    return (struct complex_lanes){a.im, -a.re};
}

INLINE struct complex_lanes conjugate(struct complex_lanes a) {
    return (struct complex_lanes){a.re, -a.im};
}

INLINE struct complex_lanes times_root(struct complex_lanes a, const float *roots, int32_t index) {
    float re = roots[2 * index], im = roots[2 * index + 1];
    return (struct complex_lanes){a.re * re - a.im * im, a.re * im + a.im * re};
}

INLINE void transform_2(struct complex_lanes *a) {
    struct complex_lanes sum = plus(a[0], a[1]);
    a[1] = minus(a[0], a[1]);
    a[0] = sum;
}

INLINE void transform_4(struct complex_lanes *a) {
    struct complex_lanes sum02 = plus(a[0], a[2]), sum13 = plus(a[1], a[3]);
    struct complex_lanes difference02 = minus(a[0], a[2]), difference13 = times_minus_i(minus(a[1], a[3]));
    a[0] = plus(sum02, sum13);
    a[1] = plus(difference02, difference13);
    a[2] = minus(sum02, sum13);
    a[3] = minus(difference02, difference13);
}

/* Cosines belong to the sums of a value and its mirror image, sines to their differences. */
INLINE void transform_5(struct complex_lanes *a) {
    const float cos1 = 0.30901699f, cos2 = -0.80901699f, sin1 = 0.95105652f, sin2 = 0.58778525f;
    struct complex_lanes sum1 = plus(a[1], a[4]), sum2 = plus(a[2], a[3]);
    struct complex_lanes difference1 = minus(a[1], a[4]), difference2 = minus(a[2], a[3]);
    struct complex_lanes even1 = plus(a[0], plus(times(sum1, cos1), times(sum2, cos2)));
    struct complex_lanes even2 = plus(a[0], plus(times(sum1, cos2), times(sum2, cos1)));
    struct complex_lanes odd1 = times_minus_i(plus(times(difference1, sin1), times(difference2, sin2)));
    struct complex_lanes odd2 = times_minus_i(minus(times(difference1, sin2), times(difference2, sin1)));
    a[0] = plus(a[0], plus(sum1, sum2));
    a[1] = plus(even1, odd1);
    a[2] = plus(even2, odd2);
    a[3] = minus(even2, odd2);
    a[4] = minus(even1, odd1);
}

/* Split `interleaved` transforms of `length` points into `radix` times as many of a `radix`th of the length: a pass of
 * Stockham's algorithm, whose result is in order. (Van Loan, Computational Frameworks for the FFT, section 1.7.) */
INLINE void split_transforms(void (*transform)(struct complex_lanes *), int32_t radix, int32_t length,
                             int32_t interleaved, const float *roots, const struct complex_lanes *from,
                             struct complex_lanes *to) {
    int32_t part = length / radix, step = 2 * interleaved; /* interleaved * length points are half a frame */
    for (int32_t p = 0; p < part; p++)
        for (int32_t q = 0; q < interleaved; q++) {
            struct complex_lanes a[5];
            for (int32_t k = 0; k < radix; k++)
                a[k] = from[q + interleaved * (p + part * k)];
            transform(a);
            to[q + interleaved * radix * p] = a[0];
            for (int32_t k = 1; k < radix; k++)
                to[q + interleaved * (radix * p + k)] = times_root(a[k], roots, step * p * k);
        }
}

/* Read 16 frames under the window, as complex numbers of an even and an odd sample each. */
INLINE void read_frames(const float *const *frames, int32_t length, const float *window, struct complex_lanes *points) {
    for (int32_t start = 0; start < length; start += LANES) {
        f32x16 rows[LANES];
        for (int lane = 0; lane < LANES; lane++)
            rows[lane] = load(frames[lane] + start);
        transpose(rows);
        for (int i = 0; i < LANES; i++)
            rows[i] *= window[start + i];
        memcpy(points + start / 2, rows, sizeof rows);
    }
}

/* Compute the power spectrum of the samples from the transform z of their pairs. even = z[k] + conj z[-k] and
 * odd = -i (z[k] - conj z[-k]) are twice the transforms of the even and of the odd samples, bin k is even + odd root[k],
 * and bin points - k the conjugate of even - odd root[k]. The window, which was halved, makes up for the two. */
INLINE void power_spectrum(const struct complex_lanes *z, int32_t points, const float *roots, f32x16 *power) {
    for (int32_t k = 0; k <= points / 2; k++) {
        struct complex_lanes mirrored = conjugate(z[(points - k) % points]);
        struct complex_lanes even = plus(z[k], mirrored);
        struct complex_lanes odd = times_root(times_minus_i(minus(z[k], mirrored)), roots, k);
        struct complex_lanes low = plus(even, odd), high = minus(even, odd);
        power[k] = low.re * low.re + low.im * low.im;
        power[points - k] = high.re * high.re + high.im * high.im;
    }
}

/* log10 of positive normal numbers. x = 2^exponent (1 + m), where 1 + m lies between sqrt(1/2) and sqrt(2), and
 * log(1 + m) is a polynomial. Source: Moshier, Cephes, logf.c. */
INLINE f32x16 log10_16(f32x16 x) {
    const float coefficients[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                  -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                  2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    const float log10_e = 0.43429448f, log10_2 = 0.30103f;
    const int32_t sqrt_half = 0x3f3504f3, mantissa = 0x007fffff;
    i32x16 bits = (i32x16)x - sqrt_half;
    f32x16 exponent = __builtin_convertvector(bits >> 23, f32x16);
    f32x16 m = (f32x16)((bits & mantissa) + sqrt_half) - 1.0f;
    f32x16 polynomial = splat(coefficients[0]);
    for (int i = 1; i < 9; i++)
        polynomial = polynomial * m + coefficients[i];
    f32x16 square = m * m;
    f32x16 correction = polynomial * m * square - square * 0.5f;
    return (correction * log10_e + m * log10_e) + exponent * log10_2;
}

static void log_mel(const struct harken_mel_tables *tables, const float *samples, int32_t n_frames, float *to,
                    int64_t stride) {
    const f32x16 smallest_normal = splat(1.17549435e-38f), floor = splat(-10.0f);
    const float *roots = tables->roots;
    struct complex_lanes points[MEL_FRAME / 2], scratch[MEL_FRAME / 2];
    f32x16 power[MEL_FRAME / 2 + 1];
    for (int32_t first = 0; first < n_frames; first += LANES) {
        int32_t n_lanes = n_frames - first < LANES ? n_frames - first : LANES;
        const float *frames[LANES]; /* the last one again in lanes that are left over */
        for (int32_t lane = 0; lane < LANES; lane++)
            frames[lane] = samples + (int64_t)MEL_HOP * (first + (lane < n_lanes ? lane : n_lanes - 1));
        read_frames(frames, MEL_FRAME, tables->window, points);
        split_transforms(transform_5, 5, 200, 1, roots, points, scratch);
        split_transforms(transform_5, 5, 40, 5, roots, scratch, points);
        split_transforms(transform_4, 4, 8, 25, roots, points, scratch);
        split_transforms(transform_2, 2, 2, 100, roots, scratch, points);
        power_spectrum(points, MEL_FRAME / 2, roots, power);

        const float *weight = tables->filters;
        for (int32_t band = 0; band < tables->n_mels; band++) {
            const f32x16 *bins = power + tables->filter_bins[2 * band];
            f32x16 sum = {0};
            for (int32_t i = 0; i < tables->filter_bins[2 * band + 1]; i++)
                sum += bins[i] * *weight++;
            f32x16 decades = max16(log10_16(max16(sum, smallest_normal)), floor);
            memcpy(to + band * stride + first, &decades, sizeof(float) * (size_t)n_lanes);
        }
    }
}

/* Silero VAD: magnitudes of four spectra of a chunk, four convolutions that reduce them to one vector, an LSTM, a sigmoid.
 *
 * Spectra have frames in their lanes, everything else rows of a matrix. All but the LSTM is computed for some chunks at
 * once, which share the weights that are read; between the layers lie arrays of (positions, chunks, channels). */
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
