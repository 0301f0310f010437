"""The text of a decoded window as segments: their times in the recording, their words, their hallucination scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harken.results import Segment, Word
from harken.transcribe.chunking import FrameSource, FrameSpan, SpeechSegmenter, speech_in_window, total_frames
from harken.transcribe.hallucination import (
    HallucinationFeatures,
    attended_stretch,
    attention_concentration,
    mean_speech_probability,
    score_hallucination,
)
from harken.transcribe.segments import TokenSegment, split_at_timestamps
from harken.transcribe.window_decoder import WindowDecoder, WindowResult
from harken.transcribe.word_timestamps import (
    Alignment,
    align_decoded,
    align_tokens,
    text_tokens,
    words_by_segment,
)
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredText(TokenSegment):
    """A segment of a window with its text, before it has times in the recording.

    Parameters
    ----------
    text : str
    score : float
        Its hallucination score.
    drop_reason : str or None
        Reason to leave it out as a hallucination.
    """

    text: str
    score: float
    drop_reason: str | None

    @property
    def is_segment(self) -> bool:
        """True if it has text and a duration; else nothing is made of it."""
        return self.start < self.end and bool(self.text.strip())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowText:
    """The text of a window, or of a part of one that was decoded on its own.

    Parameters
    ----------
    offset : int
        Frame of the source at which it begins.
    n_frames : int
        Frames of it that hold audio.
    result : WindowResult
    scored : tuple of ScoredText
        Its segments; their tokens are the first ones of the result, one segment after the other. None in silence.
    advance : float
        Positions from its start to where the text goes on.
    """

    offset: int
    n_frames: int
    result: WindowResult
    scored: tuple[ScoredText, ...]
    advance: float

    @property
    def has_words(self) -> bool:
        """True if it has a segment that is not left out."""
        return any(scored.is_segment and scored.drop_reason is None for scored in self.scored)

    @property
    def end_frame(self) -> int:
        """Frame of it at which the text goes on; not in the padding."""
        return min(round(self.advance * FRAMES_PER_POSITION), self.n_frames)

    @property
    def n_positions(self) -> int:
        """Positions of it that hold audio."""
        return self.n_frames // FRAMES_PER_POSITION

    def source_frame(self, position: float) -> float:
        """Return the frame of the source for a timestamp; one in the padding stands for the end of the audio."""
        return self.offset + min(position * FRAMES_PER_POSITION, self.n_frames)


class SegmentMaker:
    """Maker of the segments of a chain of windows.

    Parameters
    ----------
    window_decoder : WindowDecoder
    frame_source : FrameSource
        The frames that the windows were read from.
    segmenter : SpeechSegmenter or None
        Speech of the recording, for the hallucination score.

    Attributes
    ----------
    decoder, frame_source, segmenter
        As given.
    """

    def __init__(
        self, window_decoder: WindowDecoder, frame_source: FrameSource, segmenter: SpeechSegmenter | None
    ) -> None:
        self.decoder, self._options = window_decoder, window_decoder.options
        self.frame_source, self.segmenter = frame_source, segmenter

    @property
    def timestamp_begin(self) -> int:
        """Id of the first timestamp; without timestamps a window is one segment, even if the model writes some."""
        tokenizer = self.decoder.tokenizer
        return tokenizer.timestamp_begin if self._options.timestamps else tokenizer.n_vocab

    def speech(self, offset: int, n_frames: int) -> list[FrameSpan]:
        """Return the detected speech of a window, in frames from its start; none without voice activity detection."""
        if self.segmenter is None:
            return []
        spans = self.frame_source.spans(offset, offset + n_frames)
        return speech_in_window(spans, self.segmenter.word_regions(spans[0][0], spans[-1][1]))

    def read(self, result: WindowResult, offset: int, n_frames: int) -> WindowText:
        """Return the text of a window that begins at a frame of the source and has so many frames of audio."""
        decoded = result.decoded
        advance = n_frames / FRAMES_PER_POSITION
        text = WindowText(offset=offset, n_frames=n_frames, result=result, scored=(), advance=advance)
        if self._options.is_silence(decoded):
            return text
        hypothesis = decoded.hypothesis
        # A text that ran out of tokens is not complete, even if its last timestamp lies in the window.
        complete = len(hypothesis.logprobs) > len(hypothesis.tokens)
        token_segments, advance = split_at_timestamps(
            hypothesis.tokens,
            self.timestamp_begin,
            advance,
            self_contained=self.frame_source.self_contained and complete,
        )
        return replace(text, scored=tuple(self._score(token_segments, text)), advance=advance)

    def _score(self, token_segments: Iterable[TokenSegment], window: WindowText) -> Iterator[ScoredText]:
        """Yield the segments of a window, each with the probability that it is a hallucination."""
        decoded, attention = window.result.decoded, window.result.decoded.hypothesis.attention
        tokenizer, limit, first_row = self.decoder.tokenizer, self._options.hallucination_threshold, 0
        for segment in token_segments:
            text = tokenizer.decode(segment.tokens)
            rows = [first_row + i for i, token in enumerate(segment.tokens) if token < tokenizer.eot]
            first_row += len(segment.tokens)
            start, end = segment.start, segment.end
            if attention is not None and rows:  # timestamps may leave out the words
                start, end = attended_stretch(attention[:, rows], window.n_positions)
            spans = self.frame_source.spans(round(window.source_frame(start)), round(window.source_frame(end)))
            verdict = score_hallucination(
                HallucinationFeatures(
                    text=text,
                    n_tokens=len(rows),
                    duration_s=total_frames(spans) / FRAMES_PER_SECOND,
                    avg_logprob=decoded.hypothesis.avg_logprob,
                    no_speech_prob=decoded.no_speech_prob,
                    compression_ratio=decoded.compression_ratio,
                    speech_prob=None
                    if self.segmenter is None
                    else mean_speech_probability(self.segmenter.probabilities, spans),
                    attention_concentration=None
                    if attention is None
                    else attention_concentration(attention[:, rows], window.n_positions),
                )
            )
            dropped = limit is not None and verdict.score >= limit
            yield ScoredText(
                start=segment.start,
                end=segment.end,
                tokens=segment.tokens,
                text=text,
                score=verdict.score,
                drop_reason=(verdict.reason or f"score {verdict.score:.2f}") if dropped else None,
            )

    def segments(self, window: WindowText) -> tuple[list[Segment], float | None]:
        """Return the segments of a window, with words if they are asked for, and the words' median duration."""
        segments = [self._make_segment(scored, window) for scored in window.scored]
        return self._add_words(segments, window) if self._options.word_timestamps else (segments, None)

    def _make_segment(self, scored: ScoredText, window: WindowText) -> Segment:
        source, result = self.frame_source, window.result
        decoded = result.decoded
        start_s = source.start_s(window.source_frame(scored.start))
        return Segment(
            index=0,
            start_s=start_s,
            end_s=max(start_s, source.end_s(window.source_frame(scored.end))),
            text=scored.text,
            tokens=scored.tokens,
            temperature=decoded.temperature,
            avg_logprob=decoded.hypothesis.avg_logprob,
            compression_ratio=decoded.compression_ratio,
            no_speech_prob=decoded.no_speech_prob,
            seek_s=round(source.start_s(window.offset) * FRAMES_PER_SECOND) / FRAMES_PER_SECOND,
            attempts=result.attempts,
            language=result.language,
            hallucination_score=round(scored.score, 4),
        )

    def _add_words(self, segments: Iterable[Segment], window: WindowText) -> tuple[list[Segment], float | None]:
        """Add the words to segments, with the times of the alignment."""
        options = self._options
        words, median_duration = words_by_segment(
            window.scored,
            self._align(window),
            self.decoder.tokenizer,
            language="en" if options.task == "translate" else window.result.language,
            prepend_punctuations=options.prepend_punctuations,
            append_punctuations=options.append_punctuations,
        )

        def word(text: str, start: float, end: float, probability: float) -> Word:
            start_s = self.frame_source.start_s(window.source_frame(start))
            end_s = max(start_s, self.frame_source.end_s(window.source_frame(end)))
            return Word(text=text, start_s=start_s, end_s=end_s, probability=probability)

        return [
            replace(
                segment,
                words=tuple(
                    word(timing.text, timing.start, timing.end, timing.probability) for timing in timings
                ),
            )
            for segment, timings in zip(segments, words, strict=True)
        ], median_duration

    def _align(self, window: WindowText) -> Alignment:
        """Align by the cross-attention of decoding, or as the reference does, in a pass of its own."""
        decoder, result = self.decoder, window.result
        if not decoder.exact:
            return align_decoded(
                result.decoded.hypothesis,
                window.scored,
                decoder.tokenizer,
                window.n_positions,
                decoder.backend.word_heads,
            )
        return align_tokens(
            decoder.backend,
            result.encoded.batch.features,
            result.encoded.index,
            text_tokens(window.scored, decoder.tokenizer),
            decoder.tokenizer,
            window.n_positions,
            language=result.language,
            task=self._options.task,
        )
