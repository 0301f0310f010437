"""The gaps in the text of a window: detected speech that no word covers, decoded once more on windows of its own.

The timestamps of a window may jump over speech, its text may end early, and a segment may be stretched over words that
are not in it. In each case no token attends to the audio that was left out, so the attention shows it, where the times
of segments show it in part of the cases only (docs/decisions/unwritten.md).
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

from harken.audio.vad import FrameSpan
from harken.decoding import Hypothesis
from harken.results import Segment, UnwrittenSpeech, Word
from harken.text import Tokenizer
from harken.transcribe.hallucination import attended_stretch
from harken.transcribe.window_decoder import WindowResult
from harken.transcribe.window_segments import SegmentMaker, TokenSegment, WindowText
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

ScoredSegment = tuple[TokenSegment, Segment]


MIN_SPEECH_FRAMES = FRAMES_PER_SECOND
"""Less speech than this without words is no gap: a cough, a hesitation, a word that is attended to late."""
WORD_REACH_FRAMES = FRAMES_PER_SECOND // 2
"""A token covers this much speech before and behind the position that it attends to most."""
MAX_DEPTH = 2
"""Gaps in a window are decoded again, and gaps in the text of such a gap; what is missing then stays so."""
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


def token_peaks(
    hypothesis: Hypothesis, indices: Iterable[int], tokenizer: Tokenizer, n_positions: int
) -> list[TokenPeak]:
    """Return where some tokens of a text attend to, as far as they are of words, within the positions that hold audio.

    Punctuation is left out: it attends to the pause behind a word, or to the next word.
    """
    assert hypothesis.attention is not None, "the hypothesis was decoded with attention"
    of_words = [index for index in indices if _is_of_word(hypothesis.tokens[index], tokenizer)]
    weights = hypothesis.attention[:, : len(hypothesis.tokens), : max(1, n_positions)].sum(axis=0)[of_words]
    frames = FRAMES_PER_POSITION * weights.argmax(axis=1) if of_words else ()
    return [TokenPeak(index, int(frame)) for index, frame in zip(of_words, frames, strict=True)]


def uncovered_spans(
    peaks: Iterable[TokenPeak], speech: Sequence[FrameSpan], end: int, min_frames: int = MIN_SPEECH_FRAMES
) -> list[FrameSpan]:
    """Return the stretches of a window with enough speech that no word covers, in frames.

    The text of the window is about all before `end`. Each stretch begins and ends at a silence if there is one between
    it and the peak of the word beside it.
    """
    reach = WORD_REACH_FRAMES
    speech = [(first, min(last, end)) for first, last in speech if first < end]
    frames = sorted(peak.frame for peak in peaks)
    stretches = zip(
        [0, *(frame + reach for frame in frames)], [*(frame - reach for frame in frames), end], strict=True
    )
    return [
        _at_silences(stretch, speech, end) for stretch in stretches if _overlap(stretch, speech) >= min_frames
    ]


def beside_words(
    unwritten: Iterable[UnwrittenSpeech], segments: Iterable[Segment]
) -> Iterator[UnwrittenSpeech]:
    """Yield what is left of speech without words beside the words of segments, where that is enough speech.

    The times of words, if there are any, are more exact than the positions that tokens attend to most.
    """
    words = [word for segment in segments for word in segment.words]
    for speech in unwritten:
        inside = [word for word in words if word.start_s < speech.end_s and word.end_s > speech.start_s]
        starts = [speech.start_s, *(word.end_s for word in inside)]
        ends = [*(word.start_s for word in inside), speech.end_s]
        for start_s, end_s in zip(starts, ends, strict=True):
            if not inside or end_s - start_s >= MIN_SPEECH_FRAMES / FRAMES_PER_SECOND:
                yield replace(speech, start_s=start_s, end_s=end_s)


def _divide_at(
    spans: Iterable[FrameSpan],
    speech: FrameSpan,
    peaks: Sequence[TokenPeak],
    token_segments: Sequence[TokenSegment],
    tokenizer: Tokenizer,
    language: str,
) -> list[SpeechGap]:
    """Return uncovered stretches with the place of each in the text: where fewest words are on its wrong side.

    It is where a word begins in that language. If a place between two segments is as good as any, it is taken. Gaps
    without text between them are one, and one without text before or behind it has all the speech there.
    """
    bounds = {0, *(segment.behind for segment in token_segments)}
    places = {*bounds, *_word_starts(token_segments, tokenizer, language)}
    gaps: list[SpeechGap] = []
    for start, end in spans:
        middle = (start + end) / 2

        def badness(place: int, middle: float = middle) -> tuple[int, bool, int]:
            misplaced = sum((peak.frame > middle) == (peak.token_index < place) for peak in peaks)
            return misplaced, place not in bounds, -place

        earliest = gaps[-1].next_token if gaps else 0
        place = min((p for p in places if p >= earliest), key=badness)
        if place == earliest:
            start = gaps.pop().start if gaps else min(start, speech[0])
        gaps.append(SpeechGap(start, max(end, speech[1]) if place == max(places) else end, place))
    return gaps


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
    for segment in token_segments:
        indices = segment.text_indices(tokenizer.eot)
        _, groups = tokenizer.split_words([t for t in segment.tokens if t < tokenizer.eot], language)
        starts = accumulate((len(group) for group in groups), initial=0)
        for start, group in zip(starts, groups, strict=False):
            if any(_is_of_word(token, tokenizer) for token in group):
                yield indices[start]


def _parts(
    segments: Iterable[TokenSegment], first: int, last: int, tokenizer: Tokenizer
) -> Iterator[TokenSegment]:
    """Yield the segments between two tokens, cut where they reach beyond."""
    for segment in segments:
        begin, end = max(first, segment.first), min(last, segment.behind)
        if begin < end:
            tokens = segment.tokens[begin - segment.first : end - segment.first]
            yield replace(segment, tokens=tokens, text=tokenizer.decode(tokens), first=begin)


def _clipped(segment: TokenSegment, first: int, last: int) -> TokenSegment:
    """Return a segment moved into a stretch of positions, which lasts one at least, if it has a duration."""
    if segment.start >= segment.end:
        return segment
    start = min(max(segment.start, first), max(first, last - 1))
    return replace(segment, start=start, end=max(start + 1, min(segment.end, last)))


def _in_order(parts: Sequence[TokenSegment]) -> Sequence[TokenSegment]:
    """Return segments in the order of the text, which share their time by their tokens if that is not its order."""
    timed = [part for part in parts if part.is_segment]
    if all(before.end <= part.start for before, part in pairwise(timed)):
        return parts
    start, end = min(part.start for part in timed), max(part.end for part in timed)
    counts = [len(part.tokens) if part.is_segment else 0 for part in parts]
    shares = accumulate((count / sum(counts) for count in counts), initial=0.0)
    times = pairwise(start + (end - start) * share for share in shares)
    return [replace(part, start=begin, end=behind) for part, (begin, behind) in zip(parts, times, strict=True)]


class GapFilling:
    """The text of a window, and those of its gaps, which come one after another.

    Parameters
    ----------
    maker : SegmentMaker
    window : WindowText
    depth : int
        0 for a window of the chain, 1 for one of its gaps.

    Attributes
    ----------
    window : WindowText
    """

    def __init__(self, maker: SegmentMaker, window: WindowText, depth: int = 0) -> None:
        self._maker, self._depth, self.window = maker, depth, window
        self._options = maker.decoder.options
        self._pending: deque[SpeechGap] = deque()
        self._decoded: list[tuple[SpeechGap, GapFilling | None]] = []  # None where no words were found
        self._unwritten: list[UnwrittenSpeech] = []
        if not maker.segmenter or not self._options.fill_gaps:
            return
        peaks = self._peaks()
        # The next window decodes what is behind this one's text.
        end = window.n_frames if depth else window.end_frame
        # Of a window without any text, even the shortest speech is told.
        min_frames = MIN_SPEECH_FRAMES if peaks or window.has_words else 1
        speech = maker.speech(window.offset, window.n_frames)
        spans = uncovered_spans(peaks, speech, end, min_frames)
        # Without words it would be the same window once more.
        if spans and window.has_words and depth < MAX_DEPTH:
            language, tokenizer = window.result.language, maker.decoder.tokenizer
            whole = speech[0][0], min(speech[-1][1], end)
            self._pending.extend(_divide_at(spans, whole, peaks, window.scored, tokenizer, language))
        else:
            self._report(spans, self._rejection_reason(window.result) or "no words")

    @property
    def next_span(self) -> FrameSpan | None:
        """First frame of the source of the next gap to decode, and the one behind its last; None if there is none."""
        if (inner := self._last_filling) and (span := inner.next_span):
            return span
        if not self._pending:
            return None
        gap, offset = self._pending[0], self.window.offset
        return offset + gap.start, offset + gap.end

    @property
    def unwritten(self) -> list[UnwrittenSpeech]:
        """Speech that stays without words, in order."""
        inner = (speech for _, filling in self._decoded if filling for speech in filling.unwritten)
        return sorted([*self._unwritten, *inner], key=lambda speech: speech.start_s)

    def add_result(self, result: WindowResult, n_frames: int) -> None:
        """Take the result of the next gap, in so many frames of audio, if it passes the thresholds and has words."""
        if (inner := self._last_filling) and inner.next_span:
            inner.add_result(result, n_frames)
            return
        gap = self._pending.popleft()
        text = self._maker.read(result, self.window.offset + gap.start, n_frames)
        reason = self._rejection_reason(result)
        if reason or not any(scored.is_segment for scored in text.scored):
            self._report([(gap.start, gap.end)], reason or "no words")
            self._decoded.append((gap, None))
        else:
            self._decoded.append((gap, GapFilling(self._maker, text, self._depth + 1)))

    def segments(self) -> tuple[list[ScoredSegment], float | None]:
        """Return the segments of the window and of its gaps in order, and the median duration of the window's words.

        A gap without words divides no segment, but none reaches into it from beside it.
        """
        window = self.window
        bounds = {0, *(scored.behind for scored in window.scored)}
        decoded = [(gap, filling) for gap, filling in self._decoded if filling or gap.next_token in bounds]
        gaps = [gap for gap, _ in decoded]
        if not gaps:
            segments, median_duration = self._maker.segments(window)
            return list(zip(window.scored, segments, strict=True)), median_duration
        spans = list(
            zip([0, *(gap.end for gap in gaps)], [*(gap.start for gap in gaps), window.n_frames], strict=True)
        )
        parts = list(self._split_at(gaps, spans))
        segments, median_duration = self._maker.segments(
            replace(window, scored=tuple(part for _, part in parts))
        )
        placed = [
            (place, (part, _within(segment, *self._times_s(spans[place]))))
            for (place, part), segment in zip(parts, segments, strict=True)
        ]
        for place, (_, filling) in enumerate(decoded):
            placed += [(place, each) for each in filling.segments()[0]] if filling else []
        return [each for _, each in sorted(placed, key=itemgetter(0))], median_duration

    @property
    def _last_filling(self) -> GapFilling | None:
        """The text of the gap that was decoded last, if it has words."""
        return self._decoded[-1][1] if self._decoded else None

    def _split_at(
        self, gaps: Sequence[SpeechGap], spans: Sequence[FrameSpan]
    ) -> Iterator[tuple[int, TokenSegment]]:
        """Yield the window's segments with the span that each is in: before, between or behind the gaps.

        None reaches into a gap. One that goes on behind a gap is divided, and its score holds for each part.
        """
        scored, tokenizer = self.window.scored, self._maker.decoder.tokenizer
        attention = self.window.result.decoded.hypothesis.attention
        assert attention is not None, "gaps are found by it"
        token_bounds = pairwise([0, *(gap.next_token for gap in gaps), scored[-1].behind])
        for place, (tokens, (start, end)) in enumerate(zip(token_bounds, spans, strict=True)):
            first, last = -(-start // FRAMES_PER_POSITION), end // FRAMES_PER_POSITION
            parts = []
            for part in _parts(scored, *tokens, tokenizer):
                if part.is_segment and not (part.start < last and part.end > first):
                    # Its timestamps are those of a gap.
                    rows = part.text_indices(tokenizer.eot)
                    stretch = attended_stretch(attention[:, rows], self.window.n_positions)
                    part = replace(part, start=stretch[0], end=stretch[1]) if stretch else part
                parts.append(_clipped(part, first, last))
            yield from ((place, part) for part in _in_order(parts))

    def _peaks(self) -> list[TokenPeak]:
        """Return where the tokens of the window's segments attend to.

        What is left out as a hallucination is reported as that, so it covers its time, as a translation does, which
        attends in another order, or to little of what it is about. What is no segment covers none.
        """
        window, tokenizer = self.window, self._maker.decoder.tokenizer
        translated = self._options.task == "translate"
        segments = [scored for scored in window.scored if scored.is_segment]
        written = [] if translated else segments
        indices = [index for scored in written for index in scored.text_indices(tokenizer.eot)]
        peaks = token_peaks(window.result.decoded.hypothesis, indices, tokenizer, window.n_positions)
        for scored in segments:
            if translated or scored.drop_reason is not None:
                start, end = (round(FRAMES_PER_POSITION * time) for time in (scored.start, scored.end))
                peaks += [TokenPeak(scored.first, frame) for frame in range(start, end, WORD_REACH_FRAMES)]
        return peaks

    def _rejection_reason(self, result: WindowResult) -> str | None:
        """Return the reason not to take the text of a gap."""
        if self._options.is_silence(result.decoded):
            return f"no-speech probability {result.decoded.no_speech_prob:.2f}"
        return self._options.rejection_reason(result.decoded)

    def _report(self, spans: Iterable[FrameSpan], reason: str) -> None:
        """Report stretches of the window as speech without words."""
        for span in spans:
            start_s, end_s = self._times_s(span)
            self._unwritten.append(UnwrittenSpeech(start_s=start_s, end_s=end_s, reason=reason))

    def _times_s(self, span: FrameSpan) -> tuple[float, float]:
        """Return start and end of a stretch of the window, in seconds of the recording."""
        source, offset = self._maker.frame_source, self.window.offset
        return source.start_s(offset + span[0]), source.end_s(offset + span[1])


def _within(segment: Segment, start_s: float, end_s: float) -> Segment:
    """Return a segment with its words moved into a stretch of time: alignment stretches them over a gap."""

    def moved(word: Word) -> Word:
        return replace(
            word,
            start_s=min(max(word.start_s, start_s), end_s),
            end_s=min(max(word.end_s, start_s), end_s),
        )

    return replace(segment, words=tuple(moved(word) for word in segment.words))
