/* Prints a hash of the bits of a log-mel spectrogram and its fastest time, a line for each instruction set of this
 * processor. All hashes of all machines have to be equal. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels.h"

enum { FRAMES = 3001, BANDS = 80, BAND_BINS = 5, SAMPLES = HARKEN_HOP_SAMPLES * (FRAMES - 1) + HARKEN_FRAME_SAMPLES };

static uint64_t seed = 1;

/* Tables need not be those of a spectrogram here; sines would differ between machines. */
static float *draw_floats(size_t n) {
    float *floats = malloc(n * sizeof *floats);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        floats[i] = (float)((int32_t)(seed >> 40) - (1 << 23)) / (1 << 23);
    }
    return floats;
}

static uint64_t hash_of(const float *floats, size_t n) {
    const unsigned char *bytes = (const unsigned char *)floats;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n * sizeof *floats; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

int main(void) {
    float *filters = draw_floats(BANDS * BAND_BINS), *samples = draw_floats(SAMPLES);
    float *log_mel = malloc(BANDS * FRAMES * sizeof *log_mel);
    int32_t filter_bins[2 * BANDS], n;
    for (int32_t band = 0; band < BANDS; band++) {
        filter_bins[2 * band] = 2 * band;
        filter_bins[2 * band + 1] = BAND_BINS;
    }
    struct harken_mel_tables tables = {draw_floats(HARKEN_FRAME_SAMPLES), draw_floats(2 * HARKEN_FRAME_SAMPLES), filters,
                                       filter_bins, BANDS};
    struct harken_supported supported = harken_supported_kernels();
    for (int32_t i = 0; i < supported.n; i++) {
        clock_t best = CLOCKS_PER_SEC;
        for (int repeat = 0; repeat < 20; repeat++) {
            clock_t start = clock();
            supported.list[i]->log_mel(&tables, samples, FRAMES, log_mel, FRAMES);
            clock_t time = clock() - start;
            best = time < best ? time : best;
        }
        printf("%016llx %s %.2f ms\n", (unsigned long long)hash_of(log_mel, BANDS * FRAMES), supported.list[i]->name,
               1000.0 * (double)best / CLOCKS_PER_SEC);
    }
    return 0;
}
