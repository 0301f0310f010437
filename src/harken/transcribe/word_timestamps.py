"""From tokens and their times to words: punctuation goes with the word it belongs to.

Source: openai/whisper, timing.py, find_alignment, merge_punctuations and the first half of add_word_timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from harken.contract import Backend, Features, Floats, Ints
from harken.decoding import Hypothesis
from harken.decoding.alignment_attention import alignment_matrix
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.text.languages import LANGUAGES_WITHOUT_SPACES
from harken.transcribe.dtw import token_starts
from harken.transcribe.segments import TokenSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """When the text tokens of a window were spoken.

    Parameters
    ----------
    tokens : tuple of int
        Text tokens alone.
    bounds : ndarray of shape (len(tokens) + 1,), int64
        Step at which each of them begins, in rising order, and at which the last one ends; steps of 0.02 s from
        the start of the window.
    probabilities : ndarray of shape (len(tokens),), float32
    """

    tokens: tuple[int, ...]
    bounds: Ints
    probabilities: Floats


def text_tokens(token_segments: Sequence[TokenSegment], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Text tokens of some segments, one segment after the other."""
    return tuple(
        token for token_segment in token_segments for token in token_segment.tokens if token < tokenizer.eot
    )


def align_decoded(
    hypothesis: Hypothesis, token_segments: Sequence[TokenSegment], tokenizer: Tokenizer, n_positions: int
) -> Alignment:
    """Align the text of a window by what its decoding listened to: no pass of the model at all.

    Timestamps are left out of the path, but for the token behind the text, which takes what is heard after it. Text
    behind the last segment takes part too, so that no word of a segment is drawn out over it.

    Parameters
    ----------
    hypothesis : Hypothesis
        Decoded with `attention`.
    cuts : sequence of Cut
        What `cut` made of its tokens.
    tokenizer : Tokenizer
    steps : int
        How many steps of the window hold sound.

    Returns
    -------
    Alignment
        Of the text tokens of the cuts.

    Notes
    -----
    How closely this agrees with `align_text` is measured in docs/decisions/words.md.
    """
    assert hypothesis.attention is not None, "the hypothesis was decoded with attention"
    n_segment_tokens = sum(len(token_segment.tokens) for token_segment in token_segments)
    text_rows = [i for i, token in enumerate(hypothesis.tokens) if token < tokenizer.eot]
    segment_rows = [i for i in text_rows if i < n_segment_tokens]
    if not segment_rows:
        return _empty_alignment()
    end_row = segment_rows[-1] + 1
    rows = sorted({*text_rows, end_row} & {*range(len(hypothesis.logprobs))})
    starts = token_starts(alignment_matrix(hypothesis.attention[:, rows], max(1, n_positions)))
    ends = starts[len(segment_rows)] if len(segment_rows) < len(rows) else n_positions
    return Alignment(
        tokens=tuple(hypothesis.tokens[i] for i in segment_rows),
        bounds=np.append(starts[: len(segment_rows)], ends),
        probabilities=np.exp(np.array([hypothesis.logprobs[i] for i in segment_rows], np.float32)),
    )


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
    """Align a text with a window as the reference does: one pass of the decoder over the whole text.

    Parameters
    ----------
    backend : Backend
    features : Features
        Of `backend.encode`.
    audio : int
        Which of the encoded windows.
    tokens : sequence of int
        Text tokens.
    tokenizer : Tokenizer
    steps : int
        How many steps of the window hold sound.
    language : str
        Code of the language spoken.
    task : {"transcribe", "translate"}

    Raises
    ------
    OptionError
        If the text does not fit into the decoder.
    """
    if not tokens:
        return _empty_alignment()
    sot_sequence = tokenizer.sot_sequence(language, task, timestamps=False)
    prompt = (*sot_sequence, *tokens, tokenizer.eot)
    if len(prompt) > backend.dims.n_text_ctx:
        room = backend.dims.n_text_ctx - len(sot_sequence) - 1
        raise OptionError("text", f"{len(tokens)} tokens", f"at most {room} tokens for one window")
    session = backend.open_session(features, [audio_index], len(prompt), attention=True)
    logits = session.extend([prompt], last_n=len(tokens) + 2)
    logits.suppress_ranges([[(tokenizer.eot, tokenizer.n_vocab)]] * len(logits))
    probabilities = [logits.select_positions([i]).probability(token)[0] for i, token in enumerate(tokens)]
    # What follows <|notimestamps|> is the first token, and the end follows the last.
    rows = alignment_matrix(session.attention(0), max(1, n_positions))[len(sot_sequence) - 1 : -1]
    return Alignment(
        tokens=tuple(tokens), bounds=token_starts(rows), probabilities=np.array(probabilities, np.float32)
    )


def _empty_alignment() -> Alignment:
    return Alignment(tokens=(), bounds=np.zeros(1, np.int64), probabilities=np.zeros(0, np.float32))


PREPEND_PUNCTUATIONS = "\"'“¿([{-"
"""Marks that belong to the word behind them."""
APPEND_PUNCTUATIONS = "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word before them."""
SENTENCE_END_MARKS = ".。!！?？"
MAX_MEDIAN_DURATION_POSITIONS = 35
"""No window's usual duration of a word is taken to be longer than this, 0.7 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTiming:
    """One word of a window.

    Parameters
    ----------
    text : str
        As decoded, with the space before it and the punctuation around it.
    start, end : float
        Steps of 0.02 s from the start of the window, ``start <= end``.
    probability : float
        Mean probability of its tokens, 0 to 1.
    """

    text: str
    start: float
    end: float
    probability: float

    @property
    def duration(self) -> float:
        """In steps."""
        return self.end - self.start


def words_by_segment(
    token_segments: Sequence[TokenSegment],
    alignment: Alignment,
    tokenizer: Tokenizer,
    *,
    language: str,
    prepend_punctuations: str = PREPEND_PUNCTUATIONS,
    append_punctuations: str = APPEND_PUNCTUATIONS,
) -> tuple[list[list[WordTiming]], float]:
    """Words of every segment of a window.

    Parameters
    ----------
    cuts : sequence of Cut
        Segments in the order of the window.
    alignment : Alignment
        Of the text tokens of these segments, one segment after the other.
    tokenizer : Tokenizer
    language : str
        Code of the language written: it says how to tell words apart. A translation is written in ``"en"``.
    prepended, appended : str
        Marks that are merged into the word behind them, and into the word before them.

    Returns
    -------
    words : list of list of TimedWord
        One list a cut; its texts put together are that of the cut. They neither overlap nor run backwards.
    usual : float
        Median duration of the words, in steps; 0 where none has any.

    Notes
    -----
    The reference cuts all text of a window into words at once and merges punctuation across segments; here a word never
    reaches into another segment.
    """
    texts, words_per_segment, tokens_per_word = [], [], []
    for token_segment in token_segments:
        segment_texts, groups = tokenizer.split_words(
            [t for t in token_segment.tokens if t < tokenizer.eot], language
        )
        texts += segment_texts
        words_per_segment.append(len(segment_texts))
        tokens_per_word += [len(group) for group in groups]
    assert sum(tokens_per_word) == len(alignment.tokens), "the alignment is of these cuts"
    spans = list(pairwise(accumulate(tokens_per_word, initial=0)))
    words = [
        WordTiming(
            text=text,
            start=float(alignment.bounds[first]),
            end=float(alignment.bounds[last]),
            probability=float(np.mean(alignment.probabilities[first:last])),
        )
        for text, (first, last) in zip(texts, spans, strict=True)
    ]
    median_duration = _median_duration(words)
    words = _shorten_at_sentence_ends(words, 2 * median_duration)
    word_bounds = list(accumulate(words_per_segment, initial=0))
    return [
        _merge_punctuations(words[a:b], prepend_punctuations, append_punctuations)
        for a, b in pairwise(word_bounds)
    ], median_duration


def align_words(
    backend: Backend,
    features: Features,
    text: str,
    tokenizer: Tokenizer,
    n_positions: int,
    *,
    language: str,
    audio_index: int = 0,
    prepend_punctuations: str = PREPEND_PUNCTUATIONS,
    append_punctuations: str = APPEND_PUNCTUATIONS,
) -> list[WordTiming]:
    """Words of a text that is known, as they are spoken in one window.

    Parameters
    ----------
    backend : Backend
    features : Features
        Of `backend.encode`.
    text : str
        What is said in the window.
    tokenizer : Tokenizer
    steps : int
        How many steps of 0.02 s of the window hold sound.
    language : str
        Code of the language spoken.
    audio : int
        Which of the encoded windows.
    prepended, appended : str
        As in `window_words`.

    Raises
    ------
    OptionError
        If the text does not fit into the decoder.
    """
    space = "" if language in LANGUAGES_WITHOUT_SPACES else " "
    tokens = tuple(tokenizer.encode(space + text.strip())) if text.strip() else ()
    alignment = align_tokens(backend, features, audio_index, tokens, tokenizer, n_positions, language=language)
    token_segment = TokenSegment(start=0, end=n_positions, tokens=tokens)
    (words,), _ = words_by_segment(
        [token_segment],
        alignment,
        tokenizer,
        language=language,
        prepend_punctuations=prepend_punctuations,
        append_punctuations=append_punctuations,
    )
    return words


def _median_duration(words: Sequence[WordTiming]) -> float:
    durations = [word.duration for word in words if word.duration]
    return min(MAX_MEDIAN_DURATION_POSITIONS, float(np.median(durations))) if durations else 0.0


def _shorten_at_sentence_ends(words: Sequence[WordTiming], max_duration: float) -> list[WordTiming]:
    """Shorten what lasts over the pause between two sentences: the mark that ends one, and the word behind it."""
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
    """Words with their punctuation; times and probability are those of the word itself."""
    backwards: list[WordTiming] = []
    for word in reversed(words):
        if backwards and word.text.startswith(" ") and word.text.strip() in prepend_punctuations:
            backwards[-1] = replace(backwards[-1], text=word.text + backwards[-1].text)
        else:
            backwards.append(word)
    return list(_merge_appended(reversed(backwards), append_punctuations))


def _merge_appended(words: Iterator[WordTiming], append_punctuations: str) -> Iterator[WordTiming]:
    last: WordTiming | None = None
    for word in words:
        if last and not last.text.endswith(" ") and word.text in append_punctuations:
            last = replace(last, text=last.text + word.text)
        else:
            if last:
                yield last
            last = word
    if last:
        yield last
