"""Settle the words of a window in the recording: no drawn-out words, no silence in them, no overlaps.

Dynamic time warping gives every moment to some token, silence too: a word before or behind a pause lasts over it. The
reference mends that by how long words usually last. Where voice activity is known, silence is cut out as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, pairwise

from harken.audio.vad import VadOptions
from harken.results import Segment, Word

SpeechInterval = tuple[float, float]

MIN_WORD_S = 0.02
"""What a word is left with where there is speech for it: one step of timestamps."""
SEGMENT_TOLERANCE_S = 0.5
"""Where a word reaches this far out of its segment, the segment is believed; speech farther away attracts no word."""
WORD_VAD_OPTIONS = VadOptions(min_silence_s=0.3, speech_pad_s=0.05)
"""Speech as `settle` needs it: with the silences in it that are too short to divide windows at."""


def refine_word_boundaries(
    segments: Sequence[Segment],
    *,
    median_duration_s: float,
    last_speech_s: float,
    speech: Sequence[SpeechInterval] | None = None,
) -> tuple[list[Segment], float]:
    """Correct the words of a window by its segments, and the segments by their words.

    Parameters
    ----------
    segments : sequence of Segment
        Of one window, with their words, all in seconds of the recording and in order.
    usual_s : float
        Median duration of the window's words, in seconds (from `window_words`).
    last_speech_s : float
        Where the last word before this window ends, 0 at first; what this function has returned last.
    speech : sequence of (float, float), optional
        Where there is speech, in seconds, in order and without overlap.

    Returns
    -------
    segments : list of Segment
        The same, each as long as its words. Words neither overlap nor run backwards; where speech is known each lies in
        one region of it and lasts at least `SHORTEST_S`, as far as the region has room.
    last_speech_s : float
        Where the last word ends; the end of the last segment where none has words.

    Notes
    -----
    Source: openai/whisper, timing.py, add_word_timestamps, and transcribe.py, get_end.
    """
    words = _words(segments)
    if not words:
        return list(segments), segments[-1].end_s if segments else last_speech_s
    regions = [
        (max(start, last_speech_s), end)
        for start, end in speech or ()
        if end > max(last_speech_s, words[0].start_s - SEGMENT_TOLERANCE_S)
        and start < words[-1].end_s + SEGMENT_TOLERANCE_S
    ]
    fit = (
        partial(fit_to_speech, regions=regions)
        if regions
        else partial(_without_overlaps, not_before_s=last_speech_s)
    )
    # Silence is cut out first: what then is still too long is so for another reason.
    corrected = list(_correct_segments(_replace_words(segments, fit(words)), median_duration_s, last_speech_s))
    words = fit(_words(corrected))
    return [_fit_to_words(segment) for segment in _replace_words(corrected, words)], words[-1].end_s


def _words(segments: Iterable[Segment]) -> list[Word]:
    return [word for segment in segments for word in segment.words]


def _correct_segments(
    segments: Iterable[Segment], median_duration_s: float, last_speech_s: float
) -> Iterator[Segment]:
    for segment in segments:
        if segment.words:
            segment = _correct_segment(segment, median_duration_s, last_speech_s)
            last_speech_s = segment.words[-1].end_s
        yield segment


def _correct_segment(segment: Segment, median_duration_s: float, last_speech_s: float) -> Segment:
    """Shorten what is too long at either end of a segment."""
    words = list(segment.words)
    max_duration_s = 2 * median_duration_s
    # Rounded, as times are: between floats, noise would decide where both are equal.
    if round(words[0].end_s - last_speech_s - 2 * max_duration_s, 3) > 0:
        words[:2] = _shorten_after_pause(words[:2], max_duration_s)

    first = words[0]
    if first.start_s + SEGMENT_TOLERANCE_S < segment.start_s < first.end_s:
        words[0] = _with_times(
            first, max(0.0, min(first.end_s - median_duration_s, segment.start_s)), first.end_s
        )
    last = words[-1]
    if last.start_s < segment.end_s < last.end_s - SEGMENT_TOLERANCE_S:
        words[-1] = _with_times(last, last.start_s, max(last.start_s + median_duration_s, segment.end_s))
    return replace(segment, words=tuple(words))


def _shorten_after_pause(words: Sequence[Word], max_duration_s: float) -> list[Word]:
    """The first two words behind a pause, neither longer than that."""
    first, *others = words
    total_s = others[0].end_s - first.start_s if others else 0.0
    if _duration_s(first) <= max_duration_s and total_s <= 2 * max_duration_s:
        return list(words)
    end_s = first.end_s
    if others and _duration_s(others[0]) > max_duration_s:
        end_s = max(others[0].end_s / 2, others[0].end_s - max_duration_s)
        others = [_with_times(others[0], end_s, others[0].end_s)]
    return [_with_times(first, max(0.0, end_s - max_duration_s), end_s), *others]


def _without_overlaps(words: Iterable[Word], not_before_s: float) -> list[Word]:
    """Words none of which begins before the one before it has ended."""
    ordered = []
    for word in words:
        start_s = max(word.start_s, not_before_s)
        not_before_s = max(word.end_s, start_s)
        ordered.append(_with_times(word, start_s, not_before_s))
    return ordered


def fit_to_speech(words: Sequence[Word], regions: Sequence[SpeechInterval]) -> list[Word]:
    """Words, each in the one region of which it covers the most."""
    region_indices = accumulate((_nearest_region(word, regions) for word in words), max)
    fitted = []
    for region, group in groupby(zip(region_indices, words, strict=True), key=lambda pair: pair[0]):
        fitted += _fit_to_region([word for _, word in group], *regions[region])
    return fitted


def _nearest_region(word: Word, regions: Sequence[SpeechInterval]) -> int:
    """Index of the region that a word covers the most of, or else of the nearest."""

    def covered_s(region: SpeechInterval) -> float:
        # Below 0: how far it is away.
        return min(word.end_s, region[1]) - max(word.start_s, region[0])

    return max(range(len(regions)), key=lambda i: covered_s(regions[i]))


def _fit_to_region(words: Sequence[Word], start_s: float, end_s: float) -> list[Word]:
    """Words in one region, each with at least the shortest duration, as far as there is room for all of them."""
    min_duration_s = min(MIN_WORD_S, (end_s - start_s) / len(words))
    forwards = []
    for word in words:
        begin_s = min(max(word.start_s, start_s), end_s)
        start_s = max(min(word.end_s, end_s), begin_s + min_duration_s)
        forwards.append((begin_s, start_s))
    fitted = []
    for word, (begin_s, until_s) in zip(reversed(words), reversed(forwards), strict=True):
        until_s = min(until_s, end_s)
        end_s = min(begin_s, until_s - min_duration_s)
        fitted.append(_with_times(word, end_s, until_s))
    return fitted[::-1]


def _replace_words(segments: Sequence[Segment], words: Sequence[Word]) -> list[Segment]:
    """Segments with new words in place of as many of theirs."""
    bounds = pairwise(accumulate((len(segment.words) for segment in segments), initial=0))
    return [
        replace(segment, words=tuple(words[first:last]))
        for segment, (first, last) in zip(segments, bounds, strict=True)
    ]


def _fit_to_words(segment: Segment) -> Segment:
    """A segment that begins and ends with its words."""
    if not segment.words:
        return segment
    return replace(segment, start_s=segment.words[0].start_s, end_s=segment.words[-1].end_s)


def _with_times(word: Word, start_s: float, end_s: float) -> Word:
    return replace(word, start_s=round(start_s, 3), end_s=round(max(start_s, end_s), 3))


def _duration_s(word: Word) -> float:
    return word.end_s - word.start_s
