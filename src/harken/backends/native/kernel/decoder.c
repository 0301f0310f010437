/* A decoder: a model, the kernels for this processor, and the threads that run them. And its sessions: rows of tokens,
 * and the slots of the KV cache that hold their keys and values.
 *
 * A row is a list of slots in the order of its tokens, and attention goes through that list. So rows share the slots of
 * their common tokens, `reorder` copies lists and `rewind` shortens them, no key is ever moved, and no result depends
 * on where a key lies. A slot that no row uses any more is free. */
#include <stdlib.h>
#include <string.h>

#include "pass.h"

int32_t harken_abi_version(void) {
    return HARKEN_ABI_VERSION;
}

static const struct harken_kernels *find_kernels(const char *name) {
    struct harken_supported supported = harken_supported_kernels();
    if (!name)
        return supported.list[0];
    for (int32_t i = 0; i < supported.n; i++)
        if (strcmp(supported.list[i]->name, name) == 0)
            return supported.list[i];
    return NULL;
}

static void *copy(const void *from, size_t size) {
    void *to = malloc(size ? size : 1);
    return to ? memcpy(to, from, size) : NULL;
}

harken_decoder *harken_decoder_open(const struct harken_model *model, int32_t threads, const char *instruction_set) {
    const struct harken_kernels *kernels = find_kernels(instruction_set);
    harken_decoder *decoder = kernels ? calloc(1, sizeof *decoder) : NULL;
    if (!decoder)
        return NULL;
    decoder->model = *model;
    decoder->kernels = kernels + (model->head.bits == 32); /* of the pair, those of integers or of float32 */
    decoder->model.layers = copy(model->layers, (size_t)model->n_layers * sizeof *model->layers);
    decoder->model.alignment_heads =
        copy(model->alignment_heads, 2 * (size_t)model->n_alignment_heads * sizeof *model->alignment_heads);
    decoder->phases = calloc((size_t)harken_pass_phases(model), sizeof *decoder->phases);
    decoder->team = harken_team_open(threads);
    if (decoder->model.layers && decoder->model.alignment_heads && decoder->phases && decoder->team)
        return decoder;
    harken_decoder_close(decoder);
    return NULL;
}

void harken_decoder_close(harken_decoder *decoder) {
    if (decoder->team)
        harken_team_close(decoder->team);
    free((void *)decoder->model.layers);
    free((void *)decoder->model.alignment_heads);
    free(decoder->phases);
    free(decoder->arena.memory);
    free(decoder);
}

/* -- Sessions ----------------------------------------------------------------------------------------------------- */

struct row {
    int32_t window, length;
    int32_t *slots;    /* room for the model's context */
    void **cached;     /* where each slot lies */
};

struct harken_session {
    harken_decoder *decoder;
    struct harken_window *windows;
    int32_t n_windows, n_rows, keep_attention, positions; /* positions: those of the longest window */
    struct row *rows;
    int32_t n_slabs;
    char **slabs;            /* (n_layers, 2, n_heads, HARKEN_SLAB, head size) each, float16 or float */
    float **attention_slabs; /* (HARKEN_SLAB, n_alignment_heads, positions) each */
    int32_t *users;          /* number of rows that use each slot */
    int32_t *free_slots, n_free;
};

static void free_rows(struct row *rows, int32_t n) {
    for (int32_t i = 0; rows && i < n; i++) {
        free(rows[i].slots);
        free(rows[i].cached);
    }
    free(rows);
}

static struct row *allocate_rows(const harken_session *session, int32_t n) {
    struct row *rows = calloc((size_t)n + 1, sizeof *rows);
    size_t context = (size_t)session->decoder->model.n_context;
    for (int32_t i = 0; rows && i < n; i++) {
        rows[i].slots = malloc(context * sizeof *rows[i].slots);
        rows[i].cached = malloc(context * sizeof *rows[i].cached);
        if (!rows[i].slots || !rows[i].cached) {
            free_rows(rows, n);
            return NULL;
        }
    }
    return rows;
}

harken_session *harken_session_open(harken_decoder *decoder, const struct harken_window *windows, int32_t n_windows,
                                    const int32_t *row_windows, int32_t n_rows, int32_t keep_attention) {
    harken_session *session = calloc(1, sizeof *session);
    if (!session)
        return NULL;
    session->decoder = decoder;
    session->keep_attention = keep_attention;
    session->windows = malloc(((size_t)n_windows + 1) * sizeof *windows);
    session->rows = allocate_rows(session, n_rows);
    session->n_windows = n_windows;
    session->n_rows = n_rows;
    if (!session->windows || !session->rows) {
        harken_session_close(session);
        return NULL;
    }
    for (int32_t i = 0; i < n_windows; i++) {
        session->windows[i] = windows[i];
        if (windows[i].positions > session->positions)
            session->positions = windows[i].positions;
    }
    for (int32_t i = 0; i < n_rows; i++)
        session->rows[i].window = row_windows[i];
    return session;
}

void harken_session_close(harken_session *session) {
    for (int32_t i = 0; i < session->n_slabs; i++) {
        free(session->slabs[i]);
        free(session->attention_slabs[i]);
    }
    free(session->slabs);
    free(session->attention_slabs);
    free(session->users);
    free(session->free_slots);
    free_rows(session->rows, session->n_rows);
    free(session->windows);
    free(session);
}

harken_decoder *harken_session_decoder(const harken_session *session) {
    return session->decoder;
}

int32_t harken_session_rows(const harken_session *session) {
    return session->n_rows;
}

/* -- Slots -------------------------------------------------------------------------------------------------------- */

static int32_t grow(void **array, size_t n, size_t size) {
    void *grown = realloc(*array, n * size);
    if (grown)
        *array = grown;
    return grown ? 0 : HARKEN_NO_MEMORY;
}

static int32_t add_slab(harken_session *session) {
    const struct harken_model *model = &session->decoder->model;
    size_t n = (size_t)session->n_slabs, n_slots = (n + 1) * HARKEN_SLAB;
    if (grow((void **)&session->slabs, n + 1, sizeof(char *)) ||
        grow((void **)&session->attention_slabs, n + 1, sizeof(float *)) ||
        grow((void **)&session->users, n_slots, sizeof(int32_t)) ||
        grow((void **)&session->free_slots, n_slots, sizeof(int32_t)))
        return HARKEN_NO_MEMORY;
    size_t cached = (size_t)model->n_layers * 2 * HARKEN_SLAB * (size_t)model->n_state;
    size_t attended = session->keep_attention
                          ? (size_t)HARKEN_SLAB * (size_t)model->n_alignment_heads * (size_t)session->positions
                          : 0;
    char *slab = malloc(cached * (size_t)session->decoder->kernels->number_bytes);
    float *attention = calloc(attended + 1, sizeof *attention);
    if (!slab || !attention) {
        free(slab);
        free(attention);
        return HARKEN_NO_MEMORY;
    }
    session->slabs[n] = slab;
    session->attention_slabs[n] = attention;
    session->n_slabs++;
    for (int32_t slot = (int32_t)n_slots - 1; slot >= (int32_t)(n * HARKEN_SLAB); slot--) {
        session->users[slot] = 0;
        session->free_slots[session->n_free++] = slot;
    }
    return 0;
}

static int32_t reserve(harken_session *session, int32_t n) {
    while (session->n_free < n)
        if (add_slab(session))
            return HARKEN_NO_MEMORY;
    return 0;
}

static void release(harken_session *session, const int32_t *slots, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (--session->users[slots[i]] == 0)
            session->free_slots[session->n_free++] = slots[i];
}

static float *slot_attention(const harken_session *session, int32_t slot) {
    int64_t size = (int64_t)session->decoder->model.n_alignment_heads * session->positions;
    return session->attention_slabs[slot / HARKEN_SLAB] + slot % HARKEN_SLAB * size;
}

/* -- Rows --------------------------------------------------------------------------------------------------------- */

void harken_session_rewind(harken_session *session, const int32_t *lengths) {
    for (int32_t i = 0; i < session->n_rows; i++) {
        struct row *row = &session->rows[i];
        release(session, row->slots + lengths[i], row->length - lengths[i]);
        row->length = lengths[i];
    }
}

int32_t harken_session_reorder(harken_session *session, const int32_t *rows, int32_t n_rows) {
    struct row *reordered = allocate_rows(session, n_rows);
    if (!reordered)
        return HARKEN_NO_MEMORY;
    for (int32_t i = 0; i < n_rows; i++) {
        const struct row *from = &session->rows[rows[i]];
        reordered[i].window = from->window;
        reordered[i].length = from->length;
        memcpy(reordered[i].slots, from->slots, (size_t)from->length * sizeof *from->slots);
        memcpy(reordered[i].cached, from->cached, (size_t)from->length * sizeof *from->cached);
        for (int32_t position = 0; position < from->length; position++)
            session->users[from->slots[position]]++;
    }
    for (int32_t i = 0; i < session->n_rows; i++)
        release(session, session->rows[i].slots, session->rows[i].length);
    free_rows(session->rows, session->n_rows);
    session->rows = reordered;
    session->n_rows = n_rows;
    return 0;
}

void harken_session_attention(const harken_session *session, int32_t number, float *weights, int32_t positions) {
    const struct row *row = &session->rows[number];
    int32_t n_heads = session->decoder->model.n_alignment_heads, own = session->windows[row->window].positions;
    for (int32_t head = 0; head < n_heads; head++)
        for (int32_t i = 0; i < row->length; i++) {
            float *to = weights + ((int64_t)head * row->length + i) * positions;
            memcpy(to, slot_attention(session, row->slots[i]) + (int64_t)head * session->positions,
                   (size_t)own * sizeof(float));
            memset(to + own, 0, (size_t)(positions - own) * sizeof(float));
        }
}

/* -- A pass ------------------------------------------------------------------------------------------------------- */

/* The lists of a pass, in one piece of memory. */
struct lists {
    struct harken_query *queries;
    struct harken_run *runs;
    int32_t *row_first;     /* first query of each row */
    int32_t *logit_queries; /* queries that get logits, in the order of the rows */
    float **logits;
};

static void *allocate_lists(struct lists *lists, const harken_session *session, size_t n_queries) {
    size_t n_rows = (size_t)session->n_rows, n_windows = (size_t)session->n_windows;
    size_t size = n_queries * (sizeof *lists->queries + sizeof *lists->logits + sizeof *lists->logit_queries) +
                  n_windows * sizeof *lists->runs + n_rows * sizeof *lists->row_first;
    char *memory = malloc(size + 1), *next = memory;
    if (memory) { /* those with pointers first, for their alignment */
        lists->queries = (void *)next, next += n_queries * sizeof *lists->queries;
        lists->logits = (void *)next, next += n_queries * sizeof *lists->logits;
        lists->runs = (void *)next, next += n_windows * sizeof *lists->runs;
        lists->row_first = (void *)next, next += n_rows * sizeof *lists->row_first;
        lists->logit_queries = (void *)next;
    }
    return memory;
}

/* Appends the new tokens of a row, and lists them as queries. */
static void append(harken_session *session, struct row *row, const int32_t *tokens, int32_t n,
                   struct harken_query *queries) {
    const harken_decoder *decoder = session->decoder;
    int32_t slot_bytes = decoder->model.n_state / decoder->model.n_heads * decoder->kernels->number_bytes;
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = session->free_slots[--session->n_free];
        session->users[slot] = 1;
        row->slots[row->length] = slot;
        row->cached[row->length] = session->slabs[slot / HARKEN_SLAB] + slot % HARKEN_SLAB * slot_bytes;
        queries[i] = (struct harken_query){
            .token = tokens[i],
            .position = row->length++,
            .window = row->window,
            .cached = row->cached,
            .attention = session->keep_attention ? slot_attention(session, slot) : NULL,
        };
    }
}

/* Lists the new tokens, those of one window together, and returns the number of runs. */
static int32_t list_queries(harken_session *session, const int32_t *tokens, const int32_t *counts,
                            struct lists *lists) {
    int32_t n_runs = 0, n = 0;
    for (int32_t window = 0; window < session->n_windows; window++) {
        int32_t first = n, token = 0;
        for (int32_t i = 0; i < session->n_rows; token += counts[i++])
            if (session->rows[i].window == window) {
                lists->row_first[i] = n;
                append(session, &session->rows[i], tokens + token, counts[i], lists->queries + n);
                n += counts[i];
            }
        if (n > first)
            lists->runs[n_runs++] = (struct harken_run){window, first, n - first};
    }
    return n_runs;
}

static int32_t list_logits(const harken_session *session, const int32_t *counts, int32_t last_n, float *logits,
                           int64_t stride, struct lists *lists) {
    int32_t n = 0;
    for (int32_t i = 0; i < session->n_rows; i++)
        for (int32_t query = counts[i] > last_n ? counts[i] - last_n : 0; query < counts[i]; query++, n++) {
            lists->logit_queries[n] = lists->row_first[i] + query;
            lists->logits[n] = logits + n * stride;
        }
    return n;
}

int32_t harken_session_extend(harken_session *session, const int32_t *tokens, const int32_t *counts, int32_t last_n,
                              float *logits, int64_t stride) {
    int32_t n_queries = 0;
    for (int32_t i = 0; i < session->n_rows; i++)
        n_queries += counts[i];
    struct lists lists;
    void *memory = allocate_lists(&lists, session, (size_t)n_queries);
    if (!memory || reserve(session, n_queries)) {
        free(memory);
        return HARKEN_NO_MEMORY;
    }
    int32_t n_runs = list_queries(session, tokens, counts, &lists);
    struct harken_pass pass = {
        .decoder = session->decoder,
        .windows = session->windows,
        .queries = lists.queries,
        .runs = lists.runs,
        .n_queries = n_queries,
        .n_runs = n_runs,
        .attention_stride = session->positions,
        .logit_queries = lists.logit_queries,
        .n_logits = list_logits(session, counts, last_n, logits, stride, &lists),
        .logits = lists.logits,
    };
    int32_t code = n_queries ? harken_pass_run(&pass) : 0;
    if (code)
        for (int32_t i = 0; i < session->n_rows; i++) {
            struct row *row = &session->rows[i];
            release(session, row->slots + row->length - counts[i], counts[i]);
            row->length -= counts[i];
        }
    free(memory);
    return code;
}
