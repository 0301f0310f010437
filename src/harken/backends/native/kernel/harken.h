/* The interface of the library: a Whisper encoder and decoder in integers or in float32, sessions, and logits.
 *
 * Python calls these functions (library.py repeats their types). All pointers that are passed in stay the caller's and
 * must outlive the object that they are given to. Functions that can run out of memory return NULL or HARKEN_NO_MEMORY.
 *
 * Layouts. A group is 16 consecutive rows of a matrix, a block 32 consecutive columns. Vectors have 16 lanes, one a row
 * of a group, on every processor: so the order of every sum is the same, and so is every bit of the result.
 */
#ifndef HARKEN_H
#define HARKEN_H

#include <stdint.h>

#if defined(_WIN32)
#define HARKEN_API __declspec(dllexport)
#else
#define HARKEN_API __attribute__((visibility("default")))
#endif

#define HARKEN_ABI_VERSION 17
#define HARKEN_NO_MEMORY (-1)
#define HARKEN_NAMES_BYTES 128

enum { HARKEN_GROUP = 16, HARKEN_BLOCK = 32, HARKEN_MOST_IN_A_PART = 512 };

/* A linear layer, y = W x + b, with W of shape (rows, columns), of which `bits` says how it is stored.
 *
 * rows is any number, and rows_padded is it rounded up to whole groups; columns is a multiple of HARKEN_BLOCK with 4 or 7
 * bits, else of HARKEN_GROUP. A weight is integer * scale.
 *
 * 7 bits: each w + 64 in 1..127, shape (groups, columns / 4, 16 rows, 4 columns); scales are bfloat16, one a block, shape
 *     (groups, columns / 32, 16 rows). In a block the Euclidean norm of w in columns 0 and 1, 4 and 5, ... is at most 140,
 *     and that in the other columns.
 * 4 bits: two in a byte, each w + 8 in 0..15, shape (groups, columns / 8, 16 rows, 4 bytes); byte j of a row holds
 *     column j in its lower half and column j + 4 in its upper half; scales as for 7 bits.
 * 16 bits, for many vectors at a time: shape (groups, columns / 2, 16 rows, 2 columns); the Euclidean norm of a row is at
 *     most 46,100; scales are float, shape (rows_padded,). Keys and values of 8 bits have the same shape.
 * 32 bits: float, shape (groups, columns, 16 rows), without scales.
 * bias: float, shape (rows_padded,), or NULL. */
struct harken_matrix {
    const void *weights, *scales;
    const float *bias;
    int32_t rows, columns, bits;
};

/* The layers of one block of the decoder: with 32 bits, or with 4 or 7 and the two that read encoder output with 7 or 16.
 * Normalisations have neither gain nor bias: they are folded into the layers after them. The queries' scale,
 * 1 / sqrt(head size), is folded into `query` and `cross_query`. */
struct harken_layer {
    struct harken_matrix query, key, value, out;
    struct harken_matrix cross_query, cross_out;
    struct harken_matrix mlp_in, mlp_out;
    struct harken_matrix cross_key, cross_value; /* read encoder output */
};

struct harken_model {
    int32_t n_layers, n_heads, n_state, n_embeddings, n_context; /* heads of 16, 32, 48 or 64 channels */
    int32_t embedding_file;    /* a descriptor of a file that begins with the embedding, or -1 */
    const void *embedding;     /* shape (n_embeddings, n_state), float16, or float with matrices of 32 bits */
    const float *positions;    /* shape (n_context, n_state) */
    const struct harken_layer *layers;
    struct harken_matrix head; /* rows are the tokens that get logits */
    /* The lower halves of the head's weights, if it has the upper ones, both with 4 bits; else no weights. Their
     * products are added for all but the first n_partial tokens, and of these for likely ones (see pass.c). */
    struct harken_matrix head_rest;
    int32_t n_partial;
    const int32_t *head_tokens; /* their ids, ascending, or NULL for those of all tokens */
    int32_t n_alignment_heads;
    const int32_t *alignment_heads; /* pairs of layer and head, each once */
    int32_t window_bits;            /* of the keys and values of the cross-attention: 8 or 16, or 32 as the matrices */
};

/* A linear layer of the encoder. One of low rank is computed as W = B A: `matrix` is B, and `first` is A, which has no bias
 * and as many rows as B has columns, at most n_state. Else `first` has no weights. */
struct harken_linear {
    struct harken_matrix matrix, first;
};

/* The layers of one block of the encoder, with 7, 16 or 32 bits. Normalisations and the queries' scale are folded as
 * above. */
struct harken_encoder_layer {
    struct harken_linear query, key, value, out, mlp_in, mlp_out;
};

struct harken_encoder {
    int32_t n_layers, n_heads, n_state, n_mels; /* heads as above */
    int32_t attention_bits; /* of keys, values, queries and weights: 8, or 16 or 32 as the matrices */
    /* Columns are three frames of all channels, one after the other; those of conv1 padded to whole groups each. */
    struct harken_matrix conv1, conv2;
    const float *positions;                     /* shape (positions, n_state) */
    const struct harken_encoder_layer *layers;
    const float *last_gain, *last_bias;
    /* With 7 bits the residual stream is rotated: the first matrix rotates it, the other is the last normalisation, which
     * turns it back; both have 16 bits. Else they have no weights. */
    struct harken_matrix rotation, restoration;
};

/* Positions that are encoded together; they attend to one another, and to earlier ones of the same stream. */
struct harken_chunk {
    int32_t positions, first_position; /* at least 1; counted from the start of the recording or stream */
    const float *mel;      /* shape (n_mels, 2 positions + 3): two frames before, two for each position, one behind */
    float *encoder_output; /* shape (positions, n_state) */
    /* Added to the scores of every key, those of the history first, rounded up to whole groups; or NULL. */
    const float *key_bias;
    /* Keys and values of every layer, rows of 2 n_state floats: `n_history` rows of earlier positions, behind which those
     * of the chunk are written. NULL where they are not kept; the earlier ones are read from `history` then. */
    float *keys_values;
    const float *history;
    int64_t layer_stride; /* floats from layer to layer, of either */
    int32_t n_history;
};

/* The keys and values of the cross-attention of one window, all layers (see harken_project_window). They are packed in
 * parts of so many positions, a multiple of HARKEN_GROUP and at most HARKEN_MOST_IN_A_PART: of a stream, where new
 * positions follow, only the last parts change. */
struct harken_window {
    void *packed;
    int32_t positions;      /* at least 1 */
    int32_t part, capacity; /* most positions that there is room for */
    const float *key_bias;  /* added to the scores of each position, rounded up to whole groups; or NULL */
};

typedef struct harken_decoder harken_decoder;
typedef struct harken_session harken_session;

HARKEN_API int32_t harken_abi_version(void);

/* Write the names of the instruction sets that this library has kernels for and this processor can run, best first,
 * separated by spaces; "portable" is always the last. */
HARKEN_API void harken_instruction_sets(char names[HARKEN_NAMES_BYTES]);

/* Open a decoder on `threads` threads, this one included. `instruction_set` is one of those names, or NULL for the
 * best. Returns NULL if there is no memory or no such name. Calls on one decoder, its sessions included, must not
 * overlap. */
HARKEN_API harken_decoder *harken_decoder_open(const struct harken_model *model, int32_t threads,
                                               const char *instruction_set);
HARKEN_API void harken_decoder_close(harken_decoder *decoder); /* after its sessions */

/* The size in bytes of the packed keys and values of a window with room for `capacity` positions in parts of `part`, a
 * multiple of 64. */
HARKEN_API int64_t harken_window_bytes(const harken_decoder *decoder, int32_t capacity, int32_t part);

/* Encode a window, or the next chunk of a stream, on the threads of a decoder, whose other calls it must not overlap. The
 * encoder has matrices of 32 bits if the decoder has.
 * Returns 0 or HARKEN_NO_MEMORY. */
HARKEN_API int32_t harken_encode(harken_decoder *decoder, const struct harken_encoder *encoder,
                                 const struct harken_chunk *chunk);

/* Keys and values of the last n positions of a window, of every layer rows of 2 n_state floats, as harken_project_rows
 * writes them. */
struct harken_known {
    const float *keys_values;
    int64_t layer_stride; /* floats from layer to layer */
    int32_t n;
};

/* Project n positions of the encoder's output to the keys and values of all layers, shape (layers, n, 2 n_state): each key
 * and the value behind it. Returns 0 or HARKEN_NO_MEMORY. */
HARKEN_API int32_t harken_project_rows(harken_decoder *decoder, const float *encoder_output, int32_t n,
                                       float *keys_values);

/* Project the encoder's output of one window, shape (positions, n_state), to the keys and values of all layers, but for
 * those known (or NULL), and pack them into the buffer of the window, aligned to 64 bytes; the output before position
 * `first` is what was packed there before. Returns 0 or HARKEN_NO_MEMORY. */
HARKEN_API int32_t harken_project_window(harken_decoder *decoder, const float *encoder_output, int32_t first,
                                         const struct harken_known *known, const struct harken_window *window);

/* Open a session of n_rows rows, row r over windows[row_windows[r]]. The array of windows is copied, what they point to
 * is not. */
HARKEN_API harken_session *harken_session_open(harken_decoder *decoder, const struct harken_window *windows,
                                               int32_t n_windows, const int32_t *row_windows, int32_t n_rows,
                                               int32_t keep_attention);
HARKEN_API void harken_session_close(harken_session *session);

/* Append counts[r] tokens to row r (tokens: those of row 0, then those of row 1 ...), and write the logits at the last
 * min(last_n, counts[r]) of them, row after row, `stride` floats from one position to the next; stride is at least the
 * rows of the head rounded up to whole groups. No row may get longer than the model's context. Returns 0, or
 * HARKEN_NO_MEMORY with all rows as they were. */
HARKEN_API int32_t harken_session_extend(harken_session *session, const int32_t *tokens, const int32_t *counts,
                                         int32_t last_n, float *logits, int64_t stride);

/* Row r keeps its first lengths[r] tokens, at most all that it has. */
HARKEN_API void harken_session_rewind(harken_session *session, const int32_t *lengths);

/* Replace the rows by copies of the given ones. Returns 0, or HARKEN_NO_MEMORY with all rows as they were. */
HARKEN_API int32_t harken_session_reorder(harken_session *session, const int32_t *rows, int32_t n_rows);

/* Write the alignment heads' cross-attention of all tokens of a row: (n_alignment_heads, tokens, positions), where
 * positions is `positions`, at least those of the row's window; 0 behind these. */
HARKEN_API void harken_session_attention(const harken_session *session, int32_t row, float *weights,
                                         int32_t positions);

/* Rules and choice over logits of shape (n, stride), of which the first `columns` count.
 *
 * harken_logits_prefer_timestamps sets the logits before the column `timestamp_begin` to -inf where those from it on are
 * together likelier than each of them.
 *
 * harken_logits_top writes the k best columns of every position, 1 to all of them, best first, the lower column first
 * among equals, and their log-probabilities; shapes (n, k). A position without any finite logit has the log-normaliser 0.
 *
 * harken_logits_sample draws a column at a temperature above 0, inverting the cumulative distribution at uniforms[i]
 * in [0, 1), and writes it and its log-probability at temperature 1. */
HARKEN_API void harken_logits_prefer_timestamps(harken_decoder *decoder, float *logits, int32_t n, int32_t columns,
                                                int64_t stride, int32_t timestamp_begin);
HARKEN_API void harken_logits_normalizer(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns,
                                         int64_t stride, float *normalizer);
HARKEN_API void harken_logits_top(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns,
                                  int64_t stride, int32_t k, int64_t *best, float *logprobs);
HARKEN_API void harken_logits_sample(harken_decoder *decoder, const float *logits, int32_t n, int32_t columns,
                                     int64_t stride, float temperature, const double *uniforms, int64_t *drawn,
                                     float *logprobs);

/* Rules of greedy decoding for all tokens but the first (openai/whisper, decoding.py, ApplyTimestampRules). */
struct harken_rules {
    const int64_t *suppressed; /* columns of the logits that are never picked */
    int32_t n_suppressed, eot;
    int32_t timestamp_begin; /* the first timestamp, from which on all tokens are; negative: none are decoded */
};

/* What the rules need to know of a row. Tokens and timestamps are negative where there are none. */
struct harken_picked {
    const int32_t *unread; /* tokens to read first, of which the last was picked last */
    int32_t n_unread;      /* at least 1 */
    int32_t before_last;   /* the token picked before that */
    int32_t last_timestamp; /* of all that were picked */
    int32_t speech_end;    /* timestamp before which no segment may stay empty */
    int32_t left;          /* most tokens to pick, at least 1 */
    float calibration;     /* factor on the probability of each token */
    float least;           /* probability that all picked here are right, from which on it is worth going on */
};

/* Read the unread tokens of every row and pick the most probable one after them, and so on with it, `most` times, or until
 * a row picks the end of text, has no token left or is no more worth going on. `logits` is scratch for the rows, `stride`
 * floats from one to the next. The tokens and their log-probabilities are written step by step, those of all rows side by
 * side. Returns the number of steps, or HARKEN_NO_MEMORY. */
HARKEN_API int32_t harken_session_pick_best(harken_session *session, const struct harken_rules *rules,
                                            const struct harken_picked *picked, int32_t most, float *logits, int64_t stride,
                                            int64_t *tokens, float *logprobs);

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

/* The weights of Silero VAD. Matrices are float, packed as those of 32 bits; their biases are added last. */
struct harken_silero {
    const float *window;             /* shape (256,), the Hann window times 1/2 */
    const float *roots;              /* shape (256, 2): cos and sin of -2 pi j / 256 */
    const float *convolutions;       /* of all four, one after the other, the matrix of each of the three taps */
    const float *convolution_biases; /* of all four, one after the other */
    /* Of the LSTM; for each 16 states the rows of the gates input, output, forget and cell, 16 of each. */
    const float *input, *bias; /* 512 rows, 128 columns; shape (512,) */
    const float *recurrent;    /* shape (8, 128 columns, 64 rows) */
    const float *output;       /* shape (129,): of each state, and the bias */
};

/* Write the probability of speech of each chunk of 512 samples. Reads 64 samples before the first, too, 512 n_chunks + 64 in
 * all. `state`, shape (2, 128), is the LSTM's before and after: 0 at the start of a recording. The bits do not depend on
 * how a recording is divided into calls, and are the same on every processor. */
HARKEN_API void harken_silero_probabilities(const struct harken_silero *weights, const float *samples, int32_t n_chunks,
                                            float *state, float *probabilities);

#endif
