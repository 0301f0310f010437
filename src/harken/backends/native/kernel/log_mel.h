/* Log-mel spectrograms. */
#ifndef HARKEN_LOG_MEL_H
#define HARKEN_LOG_MEL_H

#include "harken.h"

enum { HARKEN_FRAME_SAMPLES = 400, HARKEN_HOP_SAMPLES = 160, HARKEN_BINS = HARKEN_FRAME_SAMPLES / 2 + 1 };

/* The tables of a log-mel spectrogram, not computed here, as the sines of libraries differ in their last bit. */
struct harken_mel_tables {
    const float *window;        /* shape (400,), the Hann window times 1/2 (see power_spectrum) */
    const float *roots;         /* shape (400, 2): cos and sin of -2 pi j / 400 */
    const float *filters;       /* the nonzero weights of all bands, one band after the other */
    const int32_t *filter_bins; /* shape (n_mels, 2): the first bin of each band, and the number of its weights */
    int32_t n_mels;
};

/* Write the log10 mel bands, at least -10, of the frames that start at every 160th sample: (n_mels, n_frames), `stride`
 * floats from band to band. Reads 160 (n_frames - 1) + 400 samples. A frame's bits depend on its samples alone, and are
 * the same on every processor. */
HARKEN_API void harken_log_mel(const struct harken_mel_tables *tables, const float *samples, int32_t n_frames,
                               float *log_mel, int64_t stride);

#endif
