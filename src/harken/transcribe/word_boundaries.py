"""Refinement of the word boundaries of a window: no words stretched over pauses, no silence in them, no overlaps.

Dynamic time warping assigns every position to some token, silence too, so a word next to a pause is stretched over it.
The reference corrects this with the median duration of words. Where speech regions are known, silence is cut out too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, pairwise

from harken.results import Segment, Word

SpeechInterval = tuple[float, float]
"""Start and end of speech, in seconds."""

MIN_WORD_S = 0.02
"""Shortest duration of a word where there is room: one timestamp position."""
SEGMENT_TOLERANCE_S = 0.5
"""Farthest that a word may reach out of its segment before the segment's time is used instead; also the farthest
that speech may be from the words of a window to be used for them."""


def refine_word_boundaries(
    segments: Sequence[Segment],
    *,
    median_duration_s: float | None,
    last_speech_s: float,
    speech: Sequence[SpeechInterval],
) -> tuple[list[Segment], float]:
    """Correct the words of a window with the times of its segments, and the segments with those of their words.

    Parameters
    ----------
    segments : sequence of Segment
    median_duration_s : float or None
        Median duration of the window's words (from `words_by_segment`); None leaves their lengths as they are, but for
        silence.
    last_speech_s : float
        End of the last word before this window, as returned for the window before; 0 for the first window.
    speech : sequence of (float, float)
        Empty without voice activity detection.

    Returns
    -------
    segments : list of Segment
        The same segments, each as long as its words. Words neither overlap nor run backwards, and each lasts at least
        `MIN_WORD_S`; where there is speech, as far as there is room in the one region of it in which the word lies, or
        in its segment if none is near.
    last_speech_s : float
        End of the last word; end of the last segment where no segment has words.

    Notes
    -----
    Source: openai/whisper, timing.py, add_word_timestamps, and transcribe.py, get_end.
    """
    words = _words(segments)
    if not words:
        return list(segments), segments[-1].end_s if segments else last_speech_s
    regions = [
        (max(start, last_speech_s), end)
        for start, end in speech
        if end > max(last_speech_s, words[0].start_s - SEGMENT_TOLERANCE_S)
        and start < words[-1].end_s + SEGMENT_TOLERANCE_S
    ]
    if regions:
        fit = partial(fit_to_speech, regions=regions)
    elif speech:
        fit = partial(_fit_to_segments, segments=segments, not_before_s=last_speech_s)
    else:
        fit = partial(one_after_another, not_before_s=last_speech_s)
    fitted = _replace_words(segments, fit(words))
    if median_duration_s is not None:
        # Silence has been cut out first: a word that is still too long is so for another reason.
        corrected = list(_correct_segments(fitted, median_duration_s, last_speech_s))
        fitted = _replace_words(corrected, fit(_words(corrected)))
    return [_fit_to_words(segment) for segment in fitted], _words(fitted)[-1].end_s


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
    """Return a segment with its first and last words shortened where they are too long."""
    words = list(segment.words)
    max_duration_s = 2 * median_duration_s
    # Rounded as times are: where both are equal, floating-point noise would decide.
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
    """Return the first two words behind a pause, neither of them longer than a duration."""
    first, *others = words
    total_s = others[0].end_s - first.start_s if others else 0.0
    if _duration_s(first) <= max_duration_s and total_s <= 2 * max_duration_s:
        return list(words)
    end_s = first.end_s
    if others and _duration_s(others[0]) > max_duration_s:
        end_s = max(others[0].end_s / 2, others[0].end_s - max_duration_s)
        others = [_with_times(others[0], end_s, others[0].end_s)]
    return [_with_times(first, max(0.0, end_s - max_duration_s), end_s), *others]


def one_after_another(words: Sequence[Word], not_before_s: float) -> list[Word]:
    """Return the words without overlaps, none before a time, each of the shortest duration or longer.

    Many behind the last one's end are moved as far behind it as they need.
    """
    if not words:
        return []
    return _fit_to_region(words, not_before_s, max(words[-1].end_s, not_before_s + len(words) * MIN_WORD_S))


def _fit_to_segments(words: Sequence[Word], segments: Iterable[Segment], not_before_s: float) -> list[Word]:
    """Return the words, each moved into its segment: of words that attend to no speech, only its times tell."""
    fitted: list[Word] = []
    for segment in segments:
        if own := words[len(fitted) : len(fitted) + len(segment.words)]:
            start_s = max(segment.start_s, not_before_s)
            fitted += _fit_to_region(own, start_s, max(segment.end_s, start_s))
            not_before_s = fitted[-1].end_s
    return fitted


def fit_to_speech(words: Sequence[Word], regions: Sequence[SpeechInterval]) -> list[Word]:
    """Return the words, each moved into the one speech region that it overlaps most."""
    region_indices = accumulate((_nearest_region(word, regions) for word in words), max)
    fitted = []
    for region, group in groupby(zip(region_indices, words, strict=True), key=lambda pair: pair[0]):
        fitted += _fit_to_region([word for _, word in group], *regions[region])
    return fitted


def _nearest_region(word: Word, regions: Sequence[SpeechInterval]) -> int:
    """Return the index of the region that a word overlaps most, or else of the nearest."""

    def overlap_s(region: SpeechInterval) -> float:
        # Negative where they do not overlap: minus the distance.
        return min(word.end_s, region[1]) - max(word.start_s, region[0])

    return max(range(len(regions)), key=lambda i: overlap_s(regions[i]))


def _fit_to_region(words: Sequence[Word], start_s: float, end_s: float) -> list[Word]:
    """Return the words fitted into one region, each of the shortest duration or longer as far as there is room."""
    min_duration_s = min(MIN_WORD_S, (end_s - start_s) / len(words))
    spans_s, earliest_s = [], start_s
    for word in words:
        word_start_s = max(word.start_s, earliest_s)
        earliest_s = max(word.end_s, word_start_s + min_duration_s)
        spans_s.append((word_start_s, earliest_s))
    fitted, latest_s = [], end_s
    for word, (word_start_s, word_end_s) in zip(reversed(words), reversed(spans_s), strict=True):
        word_end_s = min(word_end_s, latest_s)
        latest_s = min(word_start_s, word_end_s - min_duration_s)
        fitted.append(_with_times(word, latest_s, word_end_s))
    return fitted[::-1]


def _replace_words(segments: Sequence[Segment], words: Sequence[Word]) -> list[Segment]:
    """Return the segments with their words replaced by as many new ones."""
    bounds = pairwise(accumulate((len(segment.words) for segment in segments), initial=0))
    return [
        replace(segment, words=tuple(words[first:last]))
        for segment, (first, last) in zip(segments, bounds, strict=True)
    ]


def _fit_to_words(segment: Segment) -> Segment:
    """Return a segment with the start of its first word and the end of its last."""
    if not segment.words:
        return segment
    return replace(segment, start_s=segment.words[0].start_s, end_s=segment.words[-1].end_s)


def _with_times(word: Word, start_s: float, end_s: float) -> Word:
    return replace(word, start_s=round(start_s, 3), end_s=round(max(start_s, end_s), 3))


def _duration_s(word: Word) -> float:
    return word.end_s - word.start_s
