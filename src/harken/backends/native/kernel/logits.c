/* The rules of decoding and the choice of tokens, over logits of some positions. */
#include <math.h>

#include "decoder.h"

static void suppress_span(float *logits, int32_t begin, int32_t end, int32_t columns) {
    for (int32_t column = begin > 0 ? begin : 0; column < end && column < columns; column++)
        logits[column] = -INFINITY;
}

/* Source: openai/whisper, decoding.py, ApplyTimestampRules. */
static void prefer_timestamps(const struct harken_kernels *kernels, float *logits, int32_t columns, int32_t begin) {
    if (begin > 0 && begin < columns &&
        kernels->log_sum_exp(logits + begin, columns - begin) > kernels->largest(logits, begin))
        suppress_span(logits, 0, begin, columns);
}

void harken_logits_suppress(harken_decoder *decoder, float *logits, int32_t n, int32_t columns, int64_t stride,
                            const int64_t *suppressed, int32_t n_suppressed, const int32_t *ranges, int32_t n_ranges,
                            int32_t timestamp_begin) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n_suppressed; j++)
            logits[i * stride + suppressed[j]] = -INFINITY;
    for (int32_t i = 0; i < n_ranges; i++)
        suppress_span(logits + ranges[3 * i] * stride, ranges[3 * i + 1], ranges[3 * i + 2], columns);
    for (int32_t i = 0; i < n && timestamp_begin >= 0; i++)
        prefer_timestamps(decoder->kernels, logits + i * stride, columns, timestamp_begin);
}

/* Logits minus log-probabilities; 0 where everything is suppressed. */
static float normalizer(const struct harken_kernels *kernels, const float *logits, int32_t columns) {
    float total = kernels->log_sum_exp(logits, columns);
    return total == -INFINITY ? 0 : total;
}

void harken_logits_normalizer(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns,
                              int64_t stride, float *to) {
    for (int32_t i = 0; i < n; i++)
        to[i] = normalizer(decoder->kernels, logits + i * stride, columns);
}

void harken_logits_top(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns, int64_t stride,
                       int32_t k, int64_t *best, float *logprobs) {
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + i * stride;
        float total = normalizer(decoder->kernels, row, columns);
        decoder->kernels->top(row, columns, k, best + (int64_t)i * k);
        for (int64_t rank = (int64_t)i * k; rank < (int64_t)(i + 1) * k; rank++)
            logprobs[rank] = row[best[rank]] - total;
    }
}

void harken_logits_sample(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns, int64_t stride,
                          float temperature, const double *uniforms, int64_t *drawn, float *logprobs) {
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + i * stride;
        drawn[i] = decoder->kernels->sample(row, columns, temperature, uniforms[i]);
        logprobs[i] = row[drawn[i]] - normalizer(decoder->kernels, row, columns);
    }
}
