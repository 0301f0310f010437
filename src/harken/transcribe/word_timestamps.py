"""Word timestamps: the alignment of the text tokens of a window, and its words with their punctuation.

Where the model's word heads are known, the attention says where tokens begin and end. Elsewhere the alignment heads
give a path, as in the reference (openai/whisper, timing.py, find_alignment).

Source: openai/whisper, timing.py, merge_punctuations and the first half of add_word_timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harken.contract import Backend, Features, Floats, Ints
from harken.decoding import Hypothesis, alignment_matrix
from harken.decoding.types import copy_attention
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.types import WordHead

PREPEND_PUNCTUATIONS = "\"'“¿([{-"
"""Marks that are merged into the word after them."""
APPEND_PUNCTUATIONS = "\"'.。,，!！?？:：”)]}、"
"""Marks that are merged into the word before them."""
SENTENCE_END_MARKS = ".。!！?？"
CENTRE_POSITIONS = 2
"""Positions to either side of a peak that its centre is taken over."""
PATH_LAG = 5
"""Positions by which the path over the alignment heads is late: 0.1 s, with models of all sizes measured."""
TINY = 1e-30
MAX_MEDIAN_DURATION_POSITIONS = 35
"""Upper bound on the median duration of a window's words: 0.7 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The times of the text tokens of a window.

    Parameters
    ----------
    starts, ends : ndarray of shape (tokens,), float64
        Positions of 0.02 s from the start of the window, at which each token begins and ends; in order, no token
        begins before the end of the one before.
    precise : bool
        True if word heads gave them, which leave pauses out; else every position belongs to some token.
    probabilities : ndarray of shape (tokens,), float32
        Probability of each token, 0 to 1.
    """

    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    precise: bool
    probabilities: Floats


_NO_TOKENS = Alignment(
    starts=np.zeros(0), ends=np.zeros(0), precise=False, probabilities=np.zeros(0, np.float32)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTiming:
    """One word of a window and its times.

    Parameters
    ----------
    text : str
        Decoded text, with the space before it and the punctuation around it.
    start, end : float
        Positions of 0.02 s from the start of the window, ``start <= end``.
    probability : float
        Mean probability of its tokens, 0 to 1.
    """

    text: str
    start: float
    end: float
    probability: float

    @property
    def duration(self) -> float:
        """Duration in positions of 0.02 s."""
        return self.end - self.start


def token_spans(attention: Floats, word_heads: Sequence[WordHead]) -> tuple[NDArray[np.float64], ...]:
    """Return where each token begins and ends, by heads that attend to just these places.

    Starts and ends are found together, as the rising sequence of positions with the highest attention; each is then
    the centre of the attention around it. So a token ends before the next one begins, or where it does.

    Parameters
    ----------
    attention : ndarray of shape (word heads, tokens + 1, positions), float32
        Softmax weights with which each token was picked, and the one behind them.
    word_heads : sequence of WordHead
    """
    shifted = [_shifted(weights, head.lag) for weights, head in zip(attention, word_heads, strict=True)]
    at_start = np.add.reduce([weights[:-1] for weights in shifted])
    at_end = np.add.reduce(
        [weights[1:] for weights, head in zip(shifted, word_heads, strict=True) if head.tells_end]
    )
    places = np.stack([at_start, at_end], axis=1).reshape(-1, attention.shape[-1])
    centres = np.maximum.accumulate(_centres(places, _rising_peaks(places)))
    return centres[::2], centres[1::2]


def _shifted(weights: Floats, lag: int) -> Floats:
    """Return the weights `lag` positions earlier, zero where there are none."""
    shifted = np.zeros_like(weights)
    if lag > 0:
        shifted[:, :-lag] = weights[:, lag:]
    else:
        shifted[:, -lag:] = weights[:, : max(0, weights.shape[1] + lag)]
    return shifted


def _rising_peaks(weights: Floats) -> Ints:
    """Return a position of each row, none before that of the row before, with the highest sum of weights."""
    last_best = np.zeros(weights.shape, np.int64)
    position = np.arange(weights.shape[1])
    total = np.zeros(weights.shape[1])
    for row, row_weights in enumerate(weights.astype(np.float64)):
        best = np.maximum.accumulate(total)
        last_best[row] = np.maximum.accumulate(np.where(total >= best, position, 0))
        total = best + row_weights
    peaks = np.zeros(len(weights), np.int64)
    peak = int(total.argmax())
    for row in range(len(weights) - 1, -1, -1):
        peaks[row], peak = peak, last_best[row, peak]
    return peaks


def _centres(weights: Floats, peaks: Ints) -> NDArray[np.float64]:
    """Return the centre of the weights around the peak of each row."""
    around = peaks[:, None] + np.arange(-CENTRE_POSITIONS, CENTRE_POSITIONS + 1)
    padded = np.pad(weights.astype(np.float64), ((0, 0), (CENTRE_POSITIONS, CENTRE_POSITIONS)))
    near = np.take_along_axis(padded, around + CENTRE_POSITIONS, axis=1)
    total, moment = np.add.accumulate(near, axis=1)[:, -1], np.add.accumulate(near * around, axis=1)[:, -1]
    centres: NDArray[np.float64] = np.where(total > 0, moment / np.maximum(total, TINY), peaks)
    return centres


def token_starts(attention: Floats) -> Ints:
    """Return the position at which each token begins, on the monotonic path with the highest attention.

    The attention is that of `harken.decoding.alignment_matrix`, shape (tokens, positions). The path leads from the
    first token and position to the last, by one token, one position or both at a time.
    """
    entered, diagonal = _dtw_trace(-attention.astype(np.float64))
    starts = np.zeros(len(attention), np.int64)
    position = attention.shape[1] - 1
    for token in range(len(attention) - 1, 0, -1):
        starts[token] = position = entered[token, position]
        position -= diagonal[token, position]
    return starts


def _dtw_trace(cost: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return the trace of the cheapest path to each token and position.

    A row of the table is computed at once: staying at a token up to position j costs the running sum S(j), so the
    cheapest path to it costs S(j) + min over k <= j of (cheapest entry at k - S(k - 1)).

    Returns
    -------
    entered : ndarray of shape (tokens, positions), int64
        Position at which the path enters the token.
    diagonal : ndarray of shape (tokens, positions), int64
        1 where a path that enters the token at this position comes from the position before, 0 where it does not.
    """
    entered = np.zeros(cost.shape, np.int64)
    diagonal = np.zeros(cost.shape, np.int64)
    position = np.arange(cost.shape[1])
    total = np.cumsum(cost[0])
    for token in range(1, len(cost)):
        vertical_cost = total
        diagonal_cost = np.concatenate([[np.inf], vertical_cost[:-1]])
        entry_cost = np.minimum(diagonal_cost, vertical_cost)
        staying = np.cumsum(cost[token])
        total = staying + np.minimum.accumulate(entry_cost - (staying - cost[token]))
        stay_cost = np.concatenate([[np.inf], total[:-1]])
        entered[token] = np.maximum.accumulate(np.where(entry_cost < stay_cost, position, 0))
        diagonal[token] = diagonal_cost < vertical_cost
    return entered, diagonal


def align_decoded(
    hypothesis: Hypothesis,
    n_segment_tokens: int,
    tokenizer: Tokenizer,
    n_positions: int,
    word_heads: Sequence[WordHead],
) -> Alignment:
    """Align the text tokens of a window's segments with the attention kept while decoding, without another pass.

    The segments have the first tokens of the hypothesis, and `n_positions` of the window hold audio. The path covers
    all text tokens, and the one token right behind the text of the segments, which takes the audio after it. Text
    behind the last segment is included, so that no word of a segment is stretched over it. The difference from
    `align_tokens` is measured in docs/decisions/words.md.
    """
    assert hypothesis.attention is not None, "the hypothesis was decoded with attention"
    text_rows = [i for i, token in enumerate(hypothesis.tokens) if token < tokenizer.eot]
    segment_rows = [i for i in text_rows if i < n_segment_tokens]
    if not segment_rows:
        return _NO_TOKENS
    end_row = segment_rows[-1] + 1
    rows = sorted({*text_rows, end_row} & {*range(len(hypothesis.logprobs))})
    starts, ends = _spans(
        hypothesis.attention[:, rows],
        None if hypothesis.word_attention is None else hypothesis.word_attention[:, rows],
        word_heads,
        n_positions,
        complete=end_row in rows,
    )
    n_tokens = len(segment_rows)
    return Alignment(
        starts=starts[:n_tokens],
        ends=ends[:n_tokens],
        precise=bool(word_heads),
        probabilities=np.exp(np.array([hypothesis.logprobs[i] for i in segment_rows], np.float32)),
    )


def _spans(
    attention: Floats,
    word_attention: Floats | None,
    word_heads: Sequence[WordHead],
    n_positions: int,
    *,
    complete: bool,
) -> tuple[NDArray[np.float64], ...]:
    """Return where tokens begin and end, given the attention that picked them.

    If it is complete it has one row more, of the token behind them; else the last of them ends with the audio.
    """
    n_positions = max(1, n_positions)
    if word_attention is not None:
        weights = word_attention[:, :, :n_positions]
        if not complete:
            weights = np.concatenate([weights, np.zeros_like(weights[:, :1])], axis=1)
        starts, ends = token_spans(weights, word_heads)
        return starts, ends if complete else np.append(ends[:-1], n_positions)
    starts = np.maximum(token_starts(alignment_matrix(attention, n_positions)) - PATH_LAG, 0.0)
    bounds = starts if complete else np.append(starts, n_positions)
    return bounds[:-1], bounds[1:]


def align_tokens(
    backend: Backend,
    features: Features,
    audio_index: int,
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    n_positions: int,
    *,
    language: str,
    task: str = "transcribe",
) -> Alignment:
    """Align text tokens with a window as the reference does, with one pass of the decoder over all of them.

    The window is that with the index `audio_index` in the features, and `n_positions` of it hold audio.

    Raises
    ------
    OptionError
        If the text does not fit into the decoder.
    """
    if not tokens:
        return _NO_TOKENS
    sot_sequence = tokenizer.sot_sequence(language, task, timestamps=False)
    prompt = (*sot_sequence, *tokens, tokenizer.eot)
    if len(tokens) > (room := text_room(backend, tokenizer, language)):
        raise OptionError("text", f"{len(tokens)} tokens", f"at most {room} tokens for one window")
    session = backend.open_session(features, [audio_index], len(prompt), attention=True)
    logits = session.extend([prompt], last_n=len(tokens) + 2)
    logits.suppress_ranges([[(tokenizer.eot, tokenizer.n_vocab)]] * len(logits))
    probabilities = [logits.select_positions([i]).probability(token)[0] for i, token in enumerate(tokens)]
    # From the row of <|notimestamps|>, which predicts the first token, to that of the last, which predicts the end.
    rows = slice(len(sot_sequence) - 1, -1)
    word_heads = backend.word_heads
    attention, word_attention = copy_attention(session, 0, rows, len(word_heads))
    starts, ends = _spans(attention, word_attention, word_heads, n_positions, complete=True)
    return Alignment(
        starts=starts,
        ends=ends,
        precise=bool(word_heads),
        probabilities=np.array(probabilities, np.float32),
    )


def text_room(backend: Backend, tokenizer: Tokenizer, language: str) -> int:
    """Return the number of tokens that `align_tokens` may be given for one window."""
    return backend.dims.n_text_ctx - len(tokenizer.sot_sequence(language, timestamps=False)) - 1


def words_by_segment(
    segments: Sequence[Sequence[int]],
    alignment: Alignment,
    tokenizer: Tokenizer,
    *,
    language: str,
    prepend_punctuations: str = PREPEND_PUNCTUATIONS,
    append_punctuations: str = APPEND_PUNCTUATIONS,
) -> tuple[list[list[WordTiming]], float | None]:
    """Return the words of every segment of a window, given the tokens of each, and their median duration.

    Where words end is decided by the language of the text, which is ``"en"`` for a translation.

    Returns
    -------
    words : list of list of WordTiming
        One list per segment; the texts joined are the text of the segment. Words neither overlap nor run backwards.
    median_duration : float or None
        Median duration of the words in positions, words without duration left out; 0 if there are no others. None of a
        precise alignment, whose words are not stretched over pauses.

    Notes
    -----
    The reference splits all text of a window into words at once and merges punctuation across segments; here a word
    never extends over two segments.
    """
    words: list[WordTiming] = []
    word_bounds, first = [0], 0
    for tokens in segments:
        texts, groups = tokenizer.split_words([t for t in tokens if t < tokenizer.eot], language)
        for text, group in zip(texts, groups, strict=True):
            last = first + len(group)
            words.append(
                WordTiming(
                    text=text,
                    start=float(alignment.starts[first]),
                    end=float(alignment.ends[last - 1]),
                    probability=float(np.mean(alignment.probabilities[first:last])),
                )
            )
            first = last
        word_bounds.append(len(words))
    assert first == len(alignment.starts), "the alignment is of these segments"
    median_duration = None
    if not alignment.precise:
        durations = [word.duration for word in words if word.duration]
        median_duration = min(MAX_MEDIAN_DURATION_POSITIONS, float(np.median(durations))) if durations else 0.0
        words = _shorten_at_sentence_ends(words, 2 * median_duration)
    return [
        _merge_punctuations(words[a:b], prepend_punctuations, append_punctuations)
        for a, b in pairwise(word_bounds)
    ], median_duration


def _shorten_at_sentence_ends(words: Sequence[WordTiming], max_duration: float) -> list[WordTiming]:
    """Shorten long sentence-end marks and the long words after them: they include the pause between sentences."""
    shortened = list(words)
    for i, (before, word) in enumerate(pairwise(words), 1):
        if word.duration <= max_duration:
            continue
        if word.text in SENTENCE_END_MARKS:
            shortened[i] = replace(word, end=word.start + max_duration)
        elif before.text in SENTENCE_END_MARKS:
            shortened[i] = replace(word, start=word.end - max_duration)
    return shortened


def _merge_punctuations(
    words: Sequence[WordTiming], prepend_punctuations: str, append_punctuations: str
) -> list[WordTiming]:
    """Return the words with their punctuation; times and probability are those of the word without it."""
    reversed_words: list[WordTiming] = []
    for word in reversed(words):
        if reversed_words and word.text.startswith(" ") and word.text.strip() in prepend_punctuations:
            reversed_words[-1] = replace(reversed_words[-1], text=word.text + reversed_words[-1].text)
        else:
            reversed_words.append(word)
    merged: list[WordTiming] = []
    for word in reversed(reversed_words):
        if merged and not merged[-1].text.endswith(" ") and word.text in append_punctuations:
            merged[-1] = replace(merged[-1], text=merged[-1].text + word.text)
        else:
            merged.append(word)
    return merged
