/* The rules of decoding and the choice of tokens, over logits of some positions, which the threads share out. */
#include <math.h>

#include "decoder.h"

/* A call over the logits of n positions; what does not concern it is left out. */
struct call {
    const struct harken_kernels *kernels;
    float *writable; /* the logits, if the call changes them */
    const float *logits;
    int32_t columns;
    int64_t stride;
    int32_t timestamp_begin, k;
    float temperature;
    const double *uniforms;
    int64_t *chosen;
    float *results;
};

static void share_out(harken_decoder *decoder, int32_t n, struct call *call,
                      void (*work)(void *, int32_t, int32_t, int32_t, int32_t)) {
    struct harken_phase phase = {work, 0, n, 1};
    call->kernels = decoder->kernels;
    harken_team_run(decoder->team, &phase, 1, call);
}

static void suppress_span(float *logits, int32_t begin, int32_t end, int32_t columns) {
    for (int32_t column = begin > 0 ? begin : 0; column < end && column < columns; column++)
        logits[column] = -INFINITY;
}

/* Source: openai/whisper, decoding.py, ApplyTimestampRules. */
static void prefer_timestamps(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread) {
    const struct call *call = context;
    (void)argument, (void)thread;
    int32_t first = call->timestamp_begin, columns = call->columns;
    for (int32_t i = begin; i < end && 0 < first && first < columns; i++) {
        float *row = call->writable + i * call->stride;
        if (call->kernels->log_sum_exp(row + first, columns - first) > call->kernels->largest(row, first))
            suppress_span(row, 0, first, columns);
    }
}

void harken_logits_suppress(harken_decoder *decoder, float *logits, int32_t n, int32_t columns, int64_t stride,
                            const int64_t *suppressed, int32_t n_suppressed, const int32_t *ranges, int32_t n_ranges,
                            int32_t timestamp_begin) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n_suppressed; j++)
            logits[i * stride + suppressed[j]] = -INFINITY;
    for (int32_t i = 0; i < n_ranges; i++)
        suppress_span(logits + ranges[3 * i] * stride, ranges[3 * i + 1], ranges[3 * i + 2], columns);
    struct call call = {
        .writable = logits, .columns = columns, .stride = stride, .timestamp_begin = timestamp_begin};
    if (timestamp_begin >= 0)
        share_out(decoder, n, &call, prefer_timestamps);
}

/* Logits minus log-probabilities; 0 where everything is suppressed. */
static float normalizer(const struct call *call, int32_t i) {
    float total = call->kernels->log_sum_exp(call->logits + i * call->stride, call->columns);
    return total == -INFINITY ? 0 : total;
}

static void write_normalizers(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread) {
    const struct call *call = context;
    (void)argument, (void)thread;
    for (int32_t i = begin; i < end; i++)
        call->results[i] = normalizer(call, i);
}

void harken_logits_normalizer(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns,
                              int64_t stride, float *to) {
    struct call call = {.logits = logits, .columns = columns, .stride = stride, .results = to};
    share_out(decoder, n, &call, write_normalizers);
}

static void choose_top(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread) {
    const struct call *call = context;
    (void)argument, (void)thread;
    for (int32_t i = begin; i < end; i++) {
        const float *row = call->logits + i * call->stride;
        float total = normalizer(call, i), *logprobs = call->results + (int64_t)i * call->k;
        int64_t *best = call->chosen + (int64_t)i * call->k;
        call->kernels->top(row, call->columns, call->k, best);
        for (int32_t rank = 0; rank < call->k; rank++)
            logprobs[rank] = row[best[rank]] - total;
    }
}

void harken_logits_top(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns, int64_t stride,
                       int32_t k, int64_t *best, float *logprobs) {
    struct call call = {
        .logits = logits, .columns = columns, .stride = stride, .k = k, .chosen = best, .results = logprobs};
    share_out(decoder, n, &call, choose_top);
}

static void draw_samples(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread) {
    const struct call *call = context;
    (void)argument, (void)thread;
    for (int32_t i = begin; i < end; i++) {
        const float *row = call->logits + i * call->stride;
        call->chosen[i] = call->kernels->sample(row, call->columns, call->temperature, call->uniforms[i]);
        call->results[i] = row[call->chosen[i]] - normalizer(call, i);
    }
}

void harken_logits_sample(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns, int64_t stride,
                          float temperature, const double *uniforms, int64_t *drawn, float *logprobs) {
    struct call call = {.logits = logits,
                        .columns = columns,
                        .stride = stride,
                        .temperature = temperature,
                        .uniforms = uniforms,
                        .chosen = drawn,
                        .results = logprobs};
    share_out(decoder, n, &call, draw_samples);
}
