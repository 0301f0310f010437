/* The rules of decoding and the choice of tokens, over logits of some positions, which the threads share out; and greedy
 * decoding, steps of which each reads a token of every row and picks the next, without a caller in between. */
#include <math.h>
#include <stdlib.h>

#include "internal.h"

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

/* Source: openai/whisper, decoding.py, ApplyTimestampRules. */
static void prefer_timestamps(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread) {
    const struct call *call = context;
    (void)argument, (void)thread;
    int32_t first = call->timestamp_begin, columns = call->columns;
    for (int32_t i = begin; i < end && 0 < first && first < columns; i++) {
        float *row = call->writable + i * call->stride;
        if (call->kernels->log_sum_exp(row + first, columns - first) > call->kernels->largest(row, first))
            for (int32_t column = 0; column < first; column++)
                row[column] = -INFINITY;
    }
}

void harken_logits_prefer_timestamps(harken_decoder *decoder, float *logits, int32_t n, int32_t columns,
                                     int64_t stride, int32_t timestamp_begin) {
    struct call call = {
        .writable = logits, .columns = columns, .stride = stride, .timestamp_begin = timestamp_begin};
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

/* Suppress the tokens from `begin` up to `end`, exclusive. */
static void suppress(const struct harken_model *model, float *logits, int32_t begin, int32_t end) {
    end = min(column_of(model, end), model->head.rows);
    for (int32_t column = column_of(model, begin); column < end; column++)
        logits[column] = -INFINITY;
}

/* Suppress the tokens that may not follow what a row has picked. Timestamps come in pairs and never decrease.
 *
 * Source: openai/whisper, decoding.py, ApplyTimestampRules; the same as `LogitRules.banned`. */
static void suppress_banned(const struct harken_model *model, const struct harken_rules *rules, const struct row *row,
                            int32_t speech_end, float *logits) {
    int32_t first = rules->timestamp_begin;
    bool is_timestamp = row->last >= first, opens = is_timestamp && (row->before_last < 0 || row->before_last >= first);
    if (opens) {
        suppress(model, logits, first, INT32_MAX);
        if (row->before_last >= 0 && row->last < speech_end)
            suppress(model, logits, rules->eot, rules->eot + 1);
    } else if (is_timestamp)
        suppress(model, logits, 0, rules->eot);
    if (row->last_timestamp >= 0)
        suppress(model, logits, first, row->last_timestamp + (is_timestamp && !opens ? 0 : 1));
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
    bool has_memory = rows && unread;
    for (int32_t i = 0, first = 0; i < n && has_memory; first += picked[i++].n_unread) {
        counts[i] = picked[i].n_unread;
        memcpy(unread + first, picked[i].unread, (size_t)counts[i] * sizeof *unread);
        rows[i] = (struct row){picked[i].unread[counts[i] - 1], picked[i].before_last, picked[i].last_timestamp,
                               picked[i].left, 1};
    }
    for (bool ended = false; has_memory && step < most && !ended; step++) {
        if (harken_session_extend(session, unread, counts, 1, logits, stride)) {
            has_memory = false;
            break;
        }
        for (int32_t i = 0; i < n; i++) {
            float *own = logits + i * stride;
            for (int32_t j = 0; j < rules->n_suppressed; j++)
                own[rules->suppressed[j]] = -INFINITY;
            if (rules->timestamp_begin >= 0)
                suppress_banned(model, rules, &rows[i], picked[i].speech_end, own);
        }
        if (rules->timestamp_begin >= 0)
            harken_logits_prefer_timestamps(decoder, logits, n, columns, stride,
                                            column_of(model, rules->timestamp_begin));
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
    return has_memory ? step : HARKEN_NO_MEMORY;
}
