"""The gaps in the text of a window: each is decoded once more on a window of its own, and what it gives is put in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from harken.results import Segment, UnwrittenSpeech, Word
from harken.transcribe.chunking import FrameSource, FrameSpan, SpeechSegmenter
from harken.transcribe.coverage import (
    SpeechGap,
    TokenPeak,
    divide_at,
    has_enough_speech,
    speech_in_window,
    split_at_gaps,
    token_peaks,
    uncovered_spans,
)
from harken.transcribe.window_decoder import WindowDecoder, WindowResult
from harken.transcribe.window_segments import ScoredText, SegmentMaker, WindowText
from harken.types import FRAMES_PER_POSITION

ScoredSegment = tuple[ScoredText, Segment]


class GapFilling:
    """The text of a window, and those of its gaps, which come one after another.

    Parameters
    ----------
    window_decoder : WindowDecoder
    frame_source : FrameSource
        The frames that the window was read from.
    segmenter : SpeechSegmenter or None
        Speech of the recording; without it there are no gaps.
    maker : SegmentMaker
    window : WindowText

    Attributes
    ----------
    window : WindowText
    pending : deque of SpeechGap
        Gaps that are to be decoded, in order.
    unwritten : list of UnwrittenSpeech
        Speech that stays without words.
    """

    def __init__(
        self,
        window_decoder: WindowDecoder,
        frame_source: FrameSource,
        segmenter: SpeechSegmenter | None,
        maker: SegmentMaker,
        window: WindowText,
    ) -> None:
        self._decoder, self._options = window_decoder, window_decoder.options
        self._frame_source, self._segmenter, self._maker = frame_source, segmenter, maker
        self.window = window
        self._filled: list[tuple[SpeechGap, WindowText]] = []
        self.pending: deque[SpeechGap] = deque()
        self.unwritten: list[UnwrittenSpeech] = []
        if segmenter is None or not self._options.fill_gaps:
            return
        peaks = self._peaks(window)
        spans = self._uncovered_spans(window, peaks)
        if window.has_words:
            language, tokenizer = window.result.language, window_decoder.tokenizer
            self.pending.extend(divide_at(spans, peaks, window.token_segments, tokenizer, language))
        else:  # it would be the same window once more
            self._report(window, spans, self._rejection_reason(window.result) or "no words")

    @property
    def next_span(self) -> FrameSpan | None:
        """First frame of the source of the next gap to decode, and the one behind its last; None if there is none."""
        if not self.pending:
            return None
        gap, offset = self.pending[0], self.window.offset
        return offset + gap.start, offset + gap.end

    def add_result(self, result: WindowResult, n_frames: int) -> None:
        """Take the result of the next gap, in so many frames of audio, if it passes the thresholds and has words."""
        gap = self.pending.popleft()
        text = self._maker.read(result, self.window.offset + gap.start, n_frames)
        reason = self._rejection_reason(result)
        if reason or not any(scored.is_segment for scored in text.scored):
            self._report(self.window, [(gap.start, gap.end)], reason or "no words")
            return
        self._filled.append((gap, text))
        self._report(text, self._uncovered_spans(text, self._peaks(text)), "no words")
        rest = replace(gap, start=gap.start + text.end_frame)
        if has_enough_speech((rest.start, rest.end), self._speech(self.window)):
            self.pending.appendleft(rest)

    def segments(self) -> tuple[list[ScoredSegment], float]:
        """Return the segments of the window and of its gaps in order, and the median duration of the window's words."""
        if not self._filled:
            segments, median_duration = self._maker.segments(self.window)
            return list(zip(self.window.scored, segments, strict=True)), median_duration
        window, gaps = self.window, [gap for gap, _ in self._filled]
        groups = split_at_gaps(window.token_segments, gaps, window.n_frames)
        scored = [
            self._maker.with_tokens(window.scored[index], tokens) for group in groups for index, tokens in group
        ]
        segments, median_duration = self._maker.segments(replace(window, scored=tuple(scored)))
        parts = iter(zip(scored, segments, strict=True))
        starts, ends = [0, *(gap.end for gap in gaps)], [*(gap.start for gap in gaps), window.n_frames]
        merged: list[ScoredSegment] = []
        for index, group in enumerate(groups):
            bounds = self._source_times((window.offset + starts[index], window.offset + ends[index]))
            merged += [(text, _within(segment, *bounds)) for text, segment in islice(parts, len(group))]
            if index < len(gaps):
                _, text = self._filled[index]
                merged += zip(text.scored, self._maker.segments(text)[0], strict=True)
        return merged, median_duration

    def _uncovered_spans(self, text: WindowText, peaks: Iterable[TokenPeak]) -> list[FrameSpan]:
        """Return the stretches of a text's audio with speech that no word covers, up to where the text goes on."""
        dropped = [
            (round(FRAMES_PER_POSITION * scored.tokens.start), round(FRAMES_PER_POSITION * scored.tokens.end))
            for scored in text.scored
            if scored.drop_reason is not None
        ]
        return uncovered_spans(peaks, self._speech(text), text.end_frame, reported=dropped)

    def _peaks(self, text: WindowText) -> list[TokenPeak]:
        if not text.scored:
            return []
        return token_peaks(text.result.decoded.hypothesis, self._decoder.tokenizer, text.n_positions)

    def _speech(self, text: WindowText) -> list[FrameSpan]:
        """Return the detected speech of a text's audio, in frames from its start."""
        assert self._segmenter, "there are gaps in detected speech only"
        spans = self._frame_source.spans(text.offset, text.offset + text.n_frames)
        return speech_in_window(spans, self._segmenter.word_regions(spans[0][0], spans[-1][1]))

    def _rejection_reason(self, result: WindowResult) -> str | None:
        """Return the reason not to take the text of a gap."""
        if self._options.is_silence(result.decoded):
            return f"no-speech probability {result.decoded.no_speech_prob:.2f}"
        return self._options.rejection_reason(result.decoded)

    def _report(self, text: WindowText, spans: Iterable[FrameSpan], reason: str) -> None:
        """Report stretches of a text's audio as speech without words."""
        for start, end in spans:
            start_s, end_s = self._source_times((text.offset + start, text.offset + end))
            self.unwritten.append(UnwrittenSpeech(start_s=start_s, end_s=end_s, reason=reason))

    def _source_times(self, span: FrameSpan) -> tuple[float, float]:
        """Return start and end of frames of the source, in seconds of the recording."""
        return self._frame_source.start_s(span[0]), self._frame_source.end_s(span[1])


def _within(segment: Segment, start_s: float, end_s: float) -> Segment:
    """Return a segment with its words moved into a stretch of time: alignment stretches them over a gap."""

    def moved(word: Word) -> Word:
        return replace(
            word,
            start_s=min(max(word.start_s, start_s), end_s),
            end_s=min(max(word.end_s, start_s), end_s),
        )

    return replace(segment, words=tuple(moved(word) for word in segment.words))
