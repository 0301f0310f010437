/* The rules of decoding and the choice of tokens, over logits of some positions, which the threads share out; and greedy
 * decoding, steps of which each reads a token of every row and picks the next, without a caller in between. */
#include <math.h>
#include <stdlib.h>

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

/* -- Greedy decoding --------------------------------------------------------------------------------------------- */

enum { MOST_SPANS = 3, EVERY_TOKEN = INT32_MAX };
static const float MOST_CERTAIN = 0.99f;

/* A row as it grows. */
struct row {
    int32_t last, before_last, last_timestamp, left;
    float certainty;
};

/* Return the column of a token, or of the first token behind it that has one. */
static int32_t column_of(const struct harken_model *model, int32_t token) {
    if (!model->head_tokens)
        return token;
    int32_t first = 0, end = model->head.rows;
    while (first < end) {
        int32_t middle = (first + end) / 2;
        if (model->head_tokens[middle] < token)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Write the tokens that may not follow what a row has picked, as triples of `number` and of where they begin and end, and
 * return their number. Timestamps come in pairs and never decrease.
 *
 * Source: openai/whisper, decoding.py, ApplyTimestampRules; the same as `LogitRules.banned`. */
static int32_t list_banned(const struct harken_rules *rules, const struct row *row, int32_t speech_end, int32_t number,
                           int32_t (*spans)[3]) {
    int32_t first = rules->timestamp_begin, n = 0;
    if (first < 0)
        return 0;
    bool is_timestamp = row->last >= first, opens = is_timestamp && (row->before_last < 0 || row->before_last >= first);
    if (opens) {
        memcpy(spans[n++], (int32_t[]){number, first, EVERY_TOKEN}, sizeof *spans);
        if (row->before_last >= 0 && row->last < speech_end)
            memcpy(spans[n++], (int32_t[]){number, rules->eot, rules->eot + 1}, sizeof *spans);
    } else if (is_timestamp)
        memcpy(spans[n++], (int32_t[]){number, 0, rules->eot}, sizeof *spans);
    if (row->last_timestamp >= 0) {
        int32_t end = row->last_timestamp + (is_timestamp && !opens ? 0 : 1);
        memcpy(spans[n++], (int32_t[]){number, first, end}, sizeof *spans);
    }
    return n;
}

/* Note a token; returns whether the row ends with it. */
static bool note(const struct harken_rules *rules, const struct harken_picked *picked, struct row *row, int32_t token,
                 float logprob) {
    row->before_last = row->last;
    row->last = token;
    if (rules->timestamp_begin >= 0 && token >= rules->timestamp_begin)
        row->last_timestamp = token;
    row->certainty *= fminf(expf(logprob) * picked->calibration, MOST_CERTAIN);
    return token == rules->eot || --row->left == 0 || row->certainty < picked->least;
}

int32_t harken_session_pick_best(harken_session *session, const struct harken_rules *rules,
                                 const struct harken_picked *picked, int32_t most, float *logits, int64_t stride,
                                 int64_t *tokens, float *logprobs) {
    harken_decoder *decoder = harken_session_decoder(session);
    const struct harken_model *model = &decoder->model;
    int32_t n = harken_session_rows(session), columns = model->head.rows, step = 0, n_unread = 0;
    for (int32_t i = 0; i < n; i++)
        n_unread += picked[i].n_unread;
    struct row *rows = malloc((size_t)n * sizeof *rows);
    int32_t *unread = malloc(((size_t)n_unread + (size_t)n) * sizeof *unread);
    int32_t *counts = unread ? unread + n_unread : NULL;
    int32_t(*spans)[3] = malloc((size_t)n * MOST_SPANS * sizeof *spans);
    bool has_memory = rows && unread && spans;
    for (int32_t i = 0, first = 0; i < n && has_memory; first += picked[i++].n_unread) {
        counts[i] = picked[i].n_unread;
        memcpy(unread + first, picked[i].unread, (size_t)counts[i] * sizeof *unread);
        rows[i] = (struct row){picked[i].unread[counts[i] - 1], picked[i].before_last, picked[i].last_timestamp,
                               picked[i].left, 1};
    }
    for (bool ended = false; has_memory && step < most && !ended; step++) {
        int32_t n_spans = 0;
        for (int32_t i = 0; i < n; i++)
            n_spans += list_banned(rules, &rows[i], picked[i].speech_end, i, spans + n_spans);
        for (int32_t i = 0; i < n_spans; i++)
            for (int32_t end = 1; end < 3; end++)
                spans[i][end] = column_of(model, spans[i][end]);
        if (harken_session_extend(session, unread, counts, 1, logits, stride)) {
            has_memory = false;
            break;
        }
        int32_t first_timestamp = rules->timestamp_begin < 0 ? -1 : column_of(model, rules->timestamp_begin);
        harken_logits_suppress(decoder, logits, n, columns, stride, rules->suppressed, rules->n_suppressed, spans[0],
                               n_spans, first_timestamp);
        int64_t *best = tokens + (int64_t)step * n;
        float *of_step = logprobs + (int64_t)step * n;
        harken_logits_top(decoder, logits, n, columns, stride, 1, best, of_step);
        for (int32_t i = 0; i < n; i++) {
            if (model->head_tokens)
                best[i] = model->head_tokens[best[i]];
            unread[i] = (int32_t)best[i];
            counts[i] = 1;
            ended |= note(rules, &picked[i], &rows[i], unread[i], of_step[i]);
        }
    }
    free(rows);
    free(unread);
    free(spans);
    return has_memory ? step : HARKEN_NO_MEMORY;
}
