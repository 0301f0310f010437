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
from harken.text.languages import UNSPACED
from harken.transcribe.alignment import Alignment, align_text
from harken.transcribe.segments import Cut

PREPENDED = "\"'“¿([{-"
"""Marks that belong to the word behind them."""
APPENDED = "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word before them."""
SENTENCE_ENDS = ".。!！?？"
LONGEST_USUAL_STEPS = 35
"""No window's usual duration of a word is taken to be longer than this, 0.7 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWord:
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


def window_words(
    cuts: Sequence[Cut],
    alignment: Alignment,
    tokenizer: Tokenizer,
    *,
    language: str,
    prepended: str = PREPENDED,
    appended: str = APPENDED,
) -> tuple[list[list[TimedWord]], float]:
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
    texts, counts, lengths = [], [], []
    for cut in cuts:
        own, groups = tokenizer.split_words([t for t in cut.tokens if t < tokenizer.eot], language)
        texts += own
        counts.append(len(own))
        lengths += [len(group) for group in groups]
    assert sum(lengths) == len(alignment.tokens), "the alignment is of these cuts"
    spans = list(pairwise(accumulate(lengths, initial=0)))
    words = [
        TimedWord(
            text=text,
            start=float(alignment.bounds[first]),
            end=float(alignment.bounds[last]),
            probability=float(np.mean(alignment.probabilities[first:last])),
        )
        for text, (first, last) in zip(texts, spans, strict=True)
    ]
    usual = _usual_duration(words)
    words = _without_long_sentence_ends(words, 2 * usual)
    ends = list(accumulate(counts, initial=0))
    return [_merged(words[a:b], prepended, appended) for a, b in pairwise(ends)], usual


def align(
    backend: Backend,
    features: Features,
    text: str,
    tokenizer: Tokenizer,
    steps: int,
    *,
    language: str,
    audio: int = 0,
    prepended: str = PREPENDED,
    appended: str = APPENDED,
) -> list[TimedWord]:
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
    space = "" if language in UNSPACED else " "
    tokens = tuple(tokenizer.encode(space + text.strip())) if text.strip() else ()
    alignment = align_text(backend, features, audio, tokens, tokenizer, steps, language=language)
    whole = Cut(start=0, end=steps, tokens=tokens)
    (words,), _ = window_words(
        [whole], alignment, tokenizer, language=language, prepended=prepended, appended=appended
    )
    return words


def _usual_duration(words: Sequence[TimedWord]) -> float:
    durations = [word.duration for word in words if word.duration]
    return min(LONGEST_USUAL_STEPS, float(np.median(durations))) if durations else 0.0


def _without_long_sentence_ends(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Shorten what lasts over the pause between two sentences: the mark that ends one, and the word behind it."""
    shortened = list(words)
    for i, (before, word) in enumerate(pairwise(words), 1):
        if word.duration <= longest:
            continue
        if word.text in SENTENCE_ENDS:
            shortened[i] = replace(word, end=word.start + longest)
        elif before.text in SENTENCE_ENDS:
            shortened[i] = replace(word, start=word.end - longest)
    return shortened


def _merged(words: Sequence[TimedWord], prepended: str, appended: str) -> list[TimedWord]:
    """Words with their punctuation; times and probability are those of the word itself."""
    backwards: list[TimedWord] = []
    for word in reversed(words):
        if backwards and word.text.startswith(" ") and word.text.strip() in prepended:
            backwards[-1] = replace(backwards[-1], text=word.text + backwards[-1].text)
        else:
            backwards.append(word)
    return list(_with_appended(reversed(backwards), appended))


def _with_appended(words: Iterator[TimedWord], appended: str) -> Iterator[TimedWord]:
    last: TimedWord | None = None
    for word in words:
        if last and not last.text.endswith(" ") and word.text in appended:
            last = replace(last, text=last.text + word.text)
        else:
            if last:
                yield last
            last = word
    if last:
        yield last
