"""From tokens and their times to words: punctuation goes with the word it belongs to.

Source: openai/whisper, timing.py, find_alignment, merge_punctuations and the first half of add_word_timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from harken.contract import Backend, Features
from harken.text import Tokenizer
from harken.text.languages import LANGUAGES_WITHOUT_SPACES
from harken.transcribe.alignment import Alignment, align_tokens
from harken.transcribe.segments import TokenSegment

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
