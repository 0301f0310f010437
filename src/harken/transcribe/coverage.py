"""Detected speech that no word covers, from the positions that the tokens of a window attend to.

The timestamps of a window may jump over speech, its text may end early, and a segment may be stretched over words that
are not in it. In each case no token attends to the audio that was left out, so the attention shows it, where the times
of segments show it in part of the cases only (docs/decisions/unwritten.md).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from harken.decoding import Hypothesis
from harken.text import Tokenizer
from harken.transcribe.chunking import FrameSpan, FrameSpans
from harken.transcribe.segments import TokenSegment
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

MIN_SPEECH_FRAMES = FRAMES_PER_SECOND
"""Less speech than this without words is no gap: a cough, a hesitation, a word that is attended to late."""
WORD_REACH_FRAMES = FRAMES_PER_SECOND // 2
"""A token covers this much speech before and behind the position that it attends to most."""
NEIGHBOUR_FRAMES = WORD_REACH_FRAMES // 2
"""What is left to the words beside a gap where no silence separates them from it."""


class TokenPeak(NamedTuple):
    """A token of a word, and the frame of the window that it attends to most."""

    token_index: int
    frame: int


@dataclass(frozen=True, slots=True)
class SpeechGap:
    """A stretch of a window with speech that no word covers.

    Parameters
    ----------
    start, end : int
        Frames from the start of the window.
    next_token : int
        Index of the first token behind it in the text of the window.
    """

    start: int
    end: int
    next_token: int


def speech_in_window(spans: FrameSpans, regions: Sequence[FrameSpan]) -> list[FrameSpan]:
    """Return the parts of speech regions in a window that consists of some spans, in frames of the window."""
    offsets = accumulate((end - start for start, end in spans), initial=0)
    return [
        (offset + max(start, first) - first, offset + min(end, last) - first)
        for offset, (first, last) in zip(offsets, spans, strict=False)
        for start, end in regions
        if max(start, first) < min(end, last)
    ]


def token_peaks(
    hypothesis: Hypothesis, indices: Iterable[int], tokenizer: Tokenizer, n_positions: int
) -> list[TokenPeak]:
    """Return where some tokens of a text attend to, as far as they are of words.

    Punctuation is left out: it attends to the pause behind a word, or to the next word.

    Parameters
    ----------
    hypothesis : Hypothesis
        Decoded with `attention`.
    indices : iterable of int
        Indices of the tokens.
    tokenizer : Tokenizer
    n_positions : int
        Number of positions of the window that hold audio.
    """
    assert hypothesis.attention is not None, "the hypothesis was decoded with attention"
    of_words = [index for index in indices if _is_of_word(hypothesis.tokens[index], tokenizer)]
    weights = hypothesis.attention[:, : len(hypothesis.tokens), : max(1, n_positions)].sum(axis=0)[of_words]
    frames = FRAMES_PER_POSITION * weights.argmax(axis=1) if of_words else ()
    return [TokenPeak(index, int(frame)) for index, frame in zip(of_words, frames, strict=True)]


def span_peaks(token_index: int, span: FrameSpan) -> list[TokenPeak]:
    """Return peaks of one token all over a stretch, which it covers then."""
    return [TokenPeak(token_index, frame) for frame in range(*span, WORD_REACH_FRAMES)]


def uncovered_spans(peaks: Iterable[TokenPeak], speech: Sequence[FrameSpan], end: int) -> list[FrameSpan]:
    """Return the stretches of a window with enough speech that no word covers.

    Parameters
    ----------
    peaks : iterable of TokenPeak
    speech : sequence of (int, int)
        Speech in frames of the window, in order and without overlap.
    end : int
        Frame behind the last one that the window's text is about.

    Returns
    -------
    list of (int, int)
        In order. Each begins and ends at a silence if there is one between it and the peak of the word beside it.
    """
    reach = WORD_REACH_FRAMES
    speech = [(first, min(last, end)) for first, last in speech if first < end]
    frames = sorted(peak.frame for peak in peaks)
    stretches = zip(
        [0, *(frame + reach for frame in frames)], [*(frame - reach for frame in frames), end], strict=True
    )
    return [
        _at_silences(stretch, speech, end)
        for stretch in stretches
        if _overlap(stretch, speech) >= MIN_SPEECH_FRAMES
    ]


def divide_at(
    spans: Iterable[FrameSpan],
    peaks: Sequence[TokenPeak],
    token_segments: Sequence[TokenSegment],
    tokenizer: Tokenizer,
    language: str,
) -> list[SpeechGap]:
    """Return uncovered stretches with the place of each in the text: where fewest words are on its wrong side.

    Parameters
    ----------
    spans : iterable of (int, int)
        From `uncovered_spans`.
    peaks : sequence of TokenPeak
    token_segments : sequence of TokenSegment
        Segments of the same tokens. If a place between two of them is as good as any, it is taken.
    tokenizer : Tokenizer
    language : str
        Code of the language of the text, which decides where words begin.
    """
    bounds = [*accumulate((len(segment.tokens) for segment in token_segments), initial=0)]
    places = {*bounds, *_word_starts(token_segments, tokenizer, language)}
    gaps: list[SpeechGap] = []
    for start, end in spans:
        middle = (start + end) / 2

        def badness(place: int, middle: float = middle) -> tuple[int, bool, int]:
            misplaced = sum((peak.frame > middle) == (peak.token_index < place) for peak in peaks)
            return misplaced, place not in bounds, -place

        earliest = gaps[-1].next_token if gaps else 0
        gaps.append(SpeechGap(start, end, min((p for p in places if p >= earliest), key=badness)))
    return gaps


def split_at_gaps(
    token_segments: Sequence[TokenSegment], gaps: Sequence[SpeechGap], end: int
) -> list[list[tuple[int, TokenSegment]]]:
    """Return the segments before the first gap, those between each two gaps, and those behind the last one.

    A segment that goes on behind a gap is divided. None reaches into a gap.

    Parameters
    ----------
    token_segments : sequence of TokenSegment
    gaps : sequence of SpeechGap
        In order.
    end : int
        Frame behind the last one of the window.

    Returns
    -------
    list of list of (int, TokenSegment)
        Each with the index of the segment that it is, or is a part of.
    """
    n_tokens = sum(len(segment.tokens) for segment in token_segments)
    token_bounds = pairwise([0, *(gap.next_token for gap in gaps), n_tokens])
    frame_bounds = zip([0, *(gap.end for gap in gaps)], [*(gap.start for gap in gaps), end], strict=True)
    return [
        [
            (index, _within(part, -(-first_frame // FRAMES_PER_POSITION), last_frame // FRAMES_PER_POSITION))
            for index, part in _parts(token_segments, first_token, last_token)
        ]
        for (first_token, last_token), (first_frame, last_frame) in zip(token_bounds, frame_bounds, strict=True)
    ]


def _is_of_word(token: int, tokenizer: Tokenizer) -> bool:
    """Return whether a token holds letters, digits, or bytes of a character."""
    return token < tokenizer.eot and any(
        char == "\ufffd" or unicodedata.category(char)[0] in "LMN" for char in tokenizer.decode((token,))
    )


def _at_silences(span: FrameSpan, speech: Sequence[FrameSpan], end: int) -> FrameSpan:
    """Return a stretch between two words that begins and ends at a silence, or else a little beside the words."""
    start, stop = span
    first_word, next_word = start - WORD_REACH_FRAMES, stop + WORD_REACH_FRAMES
    begins = [first for first, last in speech if first_word < first and last > start]
    ends = [last for first, last in speech if last < next_word and first < stop]
    if start and not (begins and begins[0] <= start) and _overlap((start, start + 1), speech):
        begins = [start - WORD_REACH_FRAMES + NEIGHBOUR_FRAMES]
    if stop < end and not (ends and ends[-1] >= stop) and _overlap((stop - 1, stop), speech):
        ends = [stop + WORD_REACH_FRAMES - NEIGHBOUR_FRAMES]
    return max(0, begins[0]), min(end, ends[-1])


def _overlap(span: FrameSpan, speech: Iterable[FrameSpan]) -> int:
    """Return the number of frames of speech in a stretch."""
    return sum(max(0, min(last, span[1]) - max(first, span[0])) for first, last in speech)


def _word_starts(token_segments: Iterable[TokenSegment], tokenizer: Tokenizer, language: str) -> Iterator[int]:
    """Yield the index of the first token of every word."""
    offset = 0
    for segment in token_segments:
        rows = [offset + i for i, token in enumerate(segment.tokens) if token < tokenizer.eot]
        offset += len(segment.tokens)
        _, groups = tokenizer.split_words([t for t in segment.tokens if t < tokenizer.eot], language)
        starts = accumulate((len(group) for group in groups), initial=0)
        for start, group in zip(starts, groups, strict=False):
            if any(_is_of_word(token, tokenizer) for token in group):
                yield rows[start]


def _parts(token_segments: Iterable[TokenSegment], first: int, last: int) -> Iterator[tuple[int, TokenSegment]]:
    """Yield the segments between two tokens with their indices, cut where they reach beyond."""
    offset = 0
    for index, segment in enumerate(token_segments):
        tokens = segment.tokens[max(0, first - offset) : max(0, last - offset)]
        offset += len(segment.tokens)
        if tokens:
            yield index, replace(segment, tokens=tokens)


def _within(segment: TokenSegment, first: int, last: int) -> TokenSegment:
    """Return a segment moved into a stretch of positions, which lasts one at least, if it has a duration."""
    if segment.start >= segment.end:
        return segment
    start = min(max(segment.start, first), max(first, last - 1))
    return replace(segment, start=start, end=max(start + 1, min(segment.end, last)))
