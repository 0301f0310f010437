/* Greedy decoding: steps of which each reads a token of every row and picks the next, without a caller in between. */
#include <stdlib.h>

#include "decoder.h"

enum { MOST_SPANS = 3, EVERY_COLUMN = INT32_MAX };

/* Write the columns that may not follow what a row has picked, as triples of `number` and of where they begin and end, and
 * return their number. Timestamps come in pairs and never decrease.
 *
 * Source: openai/whisper, decoding.py, ApplyTimestampRules; the same as `LogitRules.banned`. */
static int32_t list_banned(const struct harken_rules *rules, const struct harken_picked *row, int32_t number,
                           int32_t (*spans)[3]) {
    int32_t first = rules->timestamp_begin, n = 0;
    if (first < 0)
        return 0;
    bool is_timestamp = row->last >= first, opens = is_timestamp && (row->before_last < 0 || row->before_last >= first);
    if (opens) {
        memcpy(spans[n++], (int32_t[]){number, first, EVERY_COLUMN}, sizeof *spans);
        if (row->before_last >= 0 && row->last < row->speech_end)
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
static bool note(const struct harken_rules *rules, struct harken_picked *row, int32_t token) {
    row->before_last = row->last;
    row->last = token;
    if (rules->timestamp_begin >= 0 && token >= rules->timestamp_begin)
        row->last_timestamp = token;
    return token == rules->eot || --row->left == 0;
}

int32_t harken_session_pick_best(harken_session *session, const struct harken_rules *rules, struct harken_picked *picked,
                                 int32_t most, float *logits, int64_t stride, int64_t *tokens, float *logprobs) {
    harken_decoder *decoder = harken_session_decoder(session);
    int32_t n = harken_session_rows(session), columns = decoder->model.head.rows, step = 0;
    int32_t *unread = malloc((size_t)n * (2 + 3 * MOST_SPANS) * sizeof *unread), *counts = unread + n;
    int32_t(*spans)[3] = (void *)(unread + 2 * n);
    for (bool ended = false; unread && step < most && !ended; step++) {
        int32_t n_spans = 0;
        for (int32_t i = 0; i < n; i++) {
            unread[i] = picked[i].last;
            counts[i] = 1;
            n_spans += list_banned(rules, &picked[i], i, spans + n_spans);
        }
        if (harken_session_extend(session, unread, counts, 1, logits, stride)) {
            free(unread);
            return HARKEN_NO_MEMORY;
        }
        harken_logits_suppress(decoder, logits, n, columns, stride, rules->suppressed, rules->n_suppressed, spans[0],
                               n_spans, rules->timestamp_begin);
        harken_logits_top(decoder, logits, n, columns, stride, 1, tokens + step * n, logprobs + step * n);
        for (int32_t i = 0; i < n; i++)
            ended |= note(rules, &picked[i], (int32_t)tokens[step * n + i]);
    }
    bool had_memory = unread != NULL;
    free(unread);
    return had_memory ? step : HARKEN_NO_MEMORY;
}
