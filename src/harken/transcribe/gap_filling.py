"""The gaps in the text of a window: each is decoded once more on a window of its own, and what it gives is put in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate, islice, pairwise, zip_longest

from harken.results import Segment, UnwrittenSpeech, Word
from harken.transcribe.chunking import FrameSpan
from harken.transcribe.coverage import (
    SpeechGap,
    TokenPeak,
    divide_at,
    span_peaks,
    split_at_gaps,
    token_peaks,
    uncovered_spans,
)
from harken.transcribe.window_decoder import WindowResult
from harken.transcribe.window_segments import ScoredText, SegmentMaker, WindowText
from harken.types import FRAMES_PER_POSITION

ScoredSegment = tuple[ScoredText, Segment]


MAX_DEPTH = 2
"""Gaps in a window are decoded again, and gaps in the text of such a gap; what is missing then stays so."""


class GapFilling:
    """The text of a window, and those of its gaps, which come one after another.

    Parameters
    ----------
    maker : SegmentMaker
    window : WindowText
    end : int
        Frame of the window up to which speech should have words.
    depth : int
        0 for a window of the chain, 1 for one of its gaps.

    Attributes
    ----------
    window : WindowText
    """

    def __init__(self, maker: SegmentMaker, window: WindowText, end: int, depth: int = 0) -> None:
        self._maker, self._depth, self.window = maker, depth, window
        self._options = maker.decoder.options
        self._pending: deque[SpeechGap] = deque()
        self._filled: list[tuple[SpeechGap, GapFilling]] = []
        self._unwritten: list[UnwrittenSpeech] = []
        if not maker.segmenter or not self._options.fill_gaps:
            return
        peaks = self._peaks() if window.scored else []
        spans = uncovered_spans(peaks, maker.speech(window.offset, window.n_frames), end)
        # Without words it would be the same window once more.
        if window.has_words and depth < MAX_DEPTH:
            language, tokenizer = window.result.language, maker.decoder.tokenizer
            self._pending.extend(divide_at(spans, peaks, window.token_segments, tokenizer, language))
        else:
            self._report(spans, self._rejection_reason(window.result) or "no words")

    @property
    def next_span(self) -> FrameSpan | None:
        """First frame of the source of the next gap to decode, and the one behind its last; None if there is none."""
        if self._filled and (span := self._filled[-1][1].next_span):
            return span
        if not self._pending:
            return None
        gap, offset = self._pending[0], self.window.offset
        return offset + gap.start, offset + gap.end

    @property
    def unwritten(self) -> list[UnwrittenSpeech]:
        """Speech that stays without words, in order."""
        inner = (speech for _, filling in self._filled for speech in filling.unwritten)
        return sorted([*self._unwritten, *inner], key=lambda speech: speech.start_s)

    def add_result(self, result: WindowResult, n_frames: int) -> None:
        """Take the result of the next gap, in so many frames of audio, if it passes the thresholds and has words."""
        if self._filled and self._filled[-1][1].next_span:
            self._filled[-1][1].add_result(result, n_frames)
            return
        gap = self._pending.popleft()
        text = self._maker.read(result, self.window.offset + gap.start, n_frames)
        reason = self._rejection_reason(result)
        if reason or not any(scored.is_segment for scored in text.scored):
            self._report([(gap.start, gap.end)], reason or "no words")
        else:
            self._filled.append((gap, GapFilling(self._maker, text, n_frames, self._depth + 1)))

    def segments(self) -> tuple[list[ScoredSegment], float]:
        """Return the segments of the window and of its gaps in order, and the median duration of the window's words."""
        window, gaps = self.window, [gap for gap, _ in self._filled]
        if not gaps:
            segments, median_duration = self._maker.segments(window)
            return list(zip(window.scored, segments, strict=True)), median_duration
        groups = split_at_gaps(window.token_segments, gaps, window.n_frames)
        scored = [
            self._maker.with_tokens(window.scored[index], tokens) for group in groups for index, tokens in group
        ]
        segments, median_duration = self._maker.segments(replace(window, scored=tuple(scored)))
        own = iter(zip(scored, segments, strict=True))
        bounds = zip(
            [0, *(gap.end for gap in gaps)], [*(gap.start for gap in gaps), window.n_frames], strict=True
        )
        merged: list[ScoredSegment] = []
        for group, span, filled in zip_longest(groups, bounds, self._filled):
            times_s = self._times_s(span)
            merged += [(text, _within(segment, *times_s)) for text, segment in islice(own, len(group))]
            merged += filled[1].segments()[0] if filled else []
        return merged, median_duration

    def _peaks(self) -> list[TokenPeak]:
        """Return where the tokens of the window's segments attend to.

        What is left out as a hallucination is reported as that, so it covers its time; what is no segment covers none.
        """
        window, tokenizer = self.window, self._maker.decoder.tokenizer
        bounds = pairwise(accumulate((len(tokens.tokens) for tokens in window.token_segments), initial=0))
        segments = [pair for pair in zip(window.scored, bounds, strict=True) if pair[0].is_segment]
        indices = [index for _, (first, last) in segments for index in range(first, last)]
        peaks = token_peaks(window.result.decoded.hypothesis, indices, tokenizer, window.n_positions)
        for scored, (first, _) in segments:
            if scored.drop_reason is not None:
                start, end = scored.tokens.start, scored.tokens.end
                peaks += span_peaks(
                    first, (round(FRAMES_PER_POSITION * start), round(FRAMES_PER_POSITION * end))
                )
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
