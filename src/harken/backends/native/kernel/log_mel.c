/* Log-mel spectrograms, on the instruction set that is best here: nothing is fused, so all give the same bits. */
#include "kernels.h"
#include "log_mel.h"

void harken_log_mel(const struct harken_mel_tables *tables, const float *samples, int32_t n_frames, float *log_mel,
                    int64_t stride) {
    harken_supported_kernels().list[0]->log_mel(tables, samples, n_frames, log_mel, stride);
}
