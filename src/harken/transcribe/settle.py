"""Settle the words of a window in the recording: no drawn-out words, no silence in them, no overlaps.

Dynamic time warping gives every moment to some token, silence too: a word before or behind a pause lasts over it. The
reference mends that by how long words usually last. Where voice activity is known, silence is cut out as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from harken.results import Segment, Word

Region = tuple[float, float]

SHORTEST_S = 0.02
"""What a word is left with where there is speech for it: one step of timestamps."""
FAR_S = 0.5
"""From a word this much longer than its segment, the segment is believed."""


def settle(
    segments: Sequence[Segment],
    *,
    usual_s: float,
    last_speech_s: float,
    speech: Sequence[Region] | None = None,
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
        The same with their words settled. Words neither overlap nor run backwards; where speech is known each lies in
        one region of it and lasts at least `SHORTEST_S`, as far as the region has room.
    last_speech_s : float
        Where the last word ends; the end of the last segment where none has words.

    Notes
    -----
    Source: openai/whisper, timing.py, add_word_timestamps, and transcribe.py, get_end.
    """
    settled: list[Segment] = []
    last_s = last_speech_s
    for segment in segments:
        settled.append(_corrected(segment, usual_s, last_s) if segment.words else segment)
        if segment.words:
            last_s = settled[-1].end_s
    words = [word for segment in settled for word in segment.words]
    if not words:
        return settled, settled[-1].end_s if settled else last_speech_s
    regions = [
        (max(start, last_speech_s), end)
        for start, end in speech or ()
        if end > max(last_speech_s, words[0].start_s) and start < words[-1].end_s
    ]
    words = _within(words, regions) if regions else _in_order(words, last_speech_s)
    return _with_words(settled, words), words[-1].end_s


def _corrected(segment: Segment, usual_s: float, last_speech_s: float) -> Segment:
    """Shorten what is too long at either end of a segment, and let the segment begin and end with its words."""
    words = list(segment.words)
    longest_s = 2 * usual_s
    if words[0].end_s - last_speech_s > 2 * longest_s:
        words[:2] = _shortened_after_pause(words[:2], longest_s)

    first = words[0]
    if first.start_s + FAR_S < segment.start_s < first.end_s:
        words[0] = _timed(first, max(0.0, min(first.end_s - usual_s, segment.start_s)), first.end_s)
        start_s = segment.start_s
    else:
        start_s = first.start_s

    last = words[-1]
    if last.start_s < segment.end_s < last.end_s - FAR_S:
        words[-1] = _timed(last, last.start_s, max(last.start_s + usual_s, segment.end_s))
        end_s = segment.end_s
    else:
        end_s = last.end_s
    return replace(segment, start_s=start_s, end_s=max(start_s, end_s), words=tuple(words))


def _shortened_after_pause(words: Sequence[Word], longest_s: float) -> list[Word]:
    """The first two words behind a pause, neither longer than that."""
    first, *others = words
    reach_s = others[0].end_s - first.start_s if others else 0.0
    if _duration_s(first) <= longest_s and reach_s <= 2 * longest_s:
        return list(words)
    end_s = first.end_s
    if others and _duration_s(others[0]) > longest_s:
        end_s = max(others[0].end_s / 2, others[0].end_s - longest_s)
        others = [_timed(others[0], end_s, others[0].end_s)]
    return [_timed(first, max(0.0, end_s - longest_s), end_s), *others]


def _in_order(words: Iterable[Word], not_before_s: float) -> list[Word]:
    """Words none of which begins before the one before it has ended."""
    ordered = []
    for word in words:
        start_s = max(word.start_s, not_before_s)
        not_before_s = max(word.end_s, start_s)
        ordered.append(_timed(word, start_s, not_before_s))
    return ordered


def _within(words: Sequence[Word], regions: Sequence[Region]) -> list[Word]:
    """Words, each in the one region of which it covers the most."""
    its = accumulate((_region_of(word, regions) for word in words), max)
    placed = []
    for region, group in groupby(zip(its, words, strict=True), key=lambda pair: pair[0]):
        placed += _fitted([word for _, word in group], *regions[region])
    return placed


def _region_of(word: Word, regions: Sequence[Region]) -> int:
    """Index of the region that a word covers the most of, or else of the nearest."""

    def covered_s(region: Region) -> float:
        # Below 0: how far it is away.
        return min(word.end_s, region[1]) - max(word.start_s, region[0])

    return max(range(len(regions)), key=lambda i: covered_s(regions[i]))


def _fitted(words: Sequence[Word], start_s: float, end_s: float) -> list[Word]:
    """Words in one region, each with at least the shortest duration, as far as there is room for all of them."""
    shortest_s = min(SHORTEST_S, (end_s - start_s) / len(words))
    forwards = []
    for word in words:
        begin_s = min(max(word.start_s, start_s), end_s)
        start_s = max(min(word.end_s, end_s), begin_s + shortest_s)
        forwards.append((begin_s, start_s))
    fitted = []
    for word, (begin_s, until_s) in zip(reversed(words), reversed(forwards), strict=True):
        until_s = min(until_s, end_s)
        end_s = min(begin_s, until_s - shortest_s)
        fitted.append(_timed(word, end_s, until_s))
    return fitted[::-1]


def _with_words(segments: Sequence[Segment], words: Sequence[Word]) -> list[Segment]:
    """Segments with new words in place of theirs, moved where their words have been moved."""
    bounds = accumulate((len(segment.words) for segment in segments), initial=0)
    renewed = []
    for segment, (first, last) in zip(segments, pairwise(bounds), strict=True):
        own = tuple(words[first:last])
        moved = own and (own[0].start_s, own[-1].end_s) != (segment.words[0].start_s, segment.words[-1].end_s)
        start_s, end_s = (own[0].start_s, own[-1].end_s) if moved else (segment.start_s, segment.end_s)
        renewed.append(replace(segment, start_s=start_s, end_s=end_s, words=own))
    return renewed


def _timed(word: Word, start_s: float, end_s: float) -> Word:
    return replace(word, start_s=round(start_s, 3), end_s=round(max(start_s, end_s), 3))


def _duration_s(word: Word) -> float:
    return word.end_s - word.start_s
