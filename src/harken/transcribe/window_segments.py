"""The text of a decoded window as segments: split at timestamps, with times in the recording, words and scores.

Source: openai/whisper, transcribe.py, transcribe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harken.audio.vad import FrameSpan
from harken.results import Segment, Word
from harken.transcribe.chunking import FrameSource, SpeechSegmenter, speech_in_window, total_frames
from harken.transcribe.hallucination import (
    HallucinationFeatures,
    attended_stretch,
    attention_concentration,
    mean_speech_probability,
    score_hallucination,
)
from harken.transcribe.window_decoder import WindowDecoder, WindowResult
from harken.transcribe.word_timestamps import (
    Alignment,
    WordTiming,
    align_decoded,
    align_tokens,
    words_by_segment,
)
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

_TIMESTAMP_ERROR_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSegment:
    """One segment of a window, before it has times in the recording.

    Parameters
    ----------
    start, end : float
        Positions of 0.02 s from the start of the window.
    tokens : tuple of int
    first : int
        Index of its first token in the text of the window.
    text : str
    score : float
        Its hallucination score.
    drop_reason : str or None
        Reason to leave it out as a hallucination. These three are known once it has been scored.
    """

    start: float
    end: float
    tokens: tuple[int, ...]
    first: int = 0
    text: str = ""
    score: float = 0.0
    drop_reason: str | None = None

    @property
    def is_segment(self) -> bool:
        """True if it has text and a duration; else nothing is made of it."""
        return self.start < self.end and bool(self.text.strip())

    @property
    def behind(self) -> int:
        """Index of the token behind it in the text of the window."""
        return self.first + len(self.tokens)

    def text_indices(self, eot: int) -> list[int]:
        """Return the indices of its text tokens in the text of the window."""
        return [index for index, token in enumerate(self.tokens, self.first) if token < eot]


def split_at_timestamps(
    tokens: Sequence[int], timestamp_begin: int, window_positions: float, *, self_contained: bool = False
) -> tuple[list[TokenSegment], float]:
    """Split the tokens of a window into segments at pairs of timestamps, and return where the next window begins.

    An unfinished segment behind a pair of timestamps is left to the next window, which begins at the pair; in a
    self-contained window it ends with the window. A window that ends with a single timestamp has no unfinished segment.

    Parameters
    ----------
    tokens : sequence of int
        Decoded tokens, without the end of text.
    timestamp_begin : int
        Id of <|0.00|>.
    window_positions : float
        Length of the window's part of the recording, in positions of 0.02 s.
    self_contained : bool
        Whether speech in the window also ends in it, as in one that was packed between silences.

    Returns
    -------
    token_segments : list of TokenSegment
    advance : float
        Positions from the start of this window to that of the next; above 0.
    """
    is_timestamp = [token >= timestamp_begin for token in tokens]
    slice_ends = [i + 1 for i, (a, b) in enumerate(pairwise(is_timestamp)) if a and b]
    if not slice_ends:
        last = next((token - timestamp_begin for token in reversed(tokens) if token >= timestamp_begin), 0)
        return [TokenSegment(start=0, end=last or window_positions, tokens=tuple(tokens))], window_positions
    ends_with_single = single_timestamp_ending(tokens, timestamp_begin)
    if ends_with_single:
        slice_ends.append(len(tokens))
    token_segments = [
        TokenSegment(
            start=tokens[a] - timestamp_begin,
            end=tokens[b - 1] - timestamp_begin,
            tokens=tuple(tokens[a:b]),
            first=a,
        )
        for a, b in pairwise([0, *slice_ends])
    ]
    behind = slice_ends[-1]
    rest = tuple(tokens[behind:])
    if self_contained and any(token < timestamp_begin for token in rest):
        start = rest[0] - timestamp_begin
        end = max(window_positions, start + 1)
        return [
            *token_segments,
            TokenSegment(start=start, end=end, tokens=rest, first=behind),
        ], window_positions
    advance = 0 if ends_with_single else tokens[behind - 1] - timestamp_begin
    return token_segments, advance or window_positions


def single_timestamp_ending(tokens: Sequence[int], timestamp_begin: int) -> bool:
    """Return whether the last token is a timestamp and the one before it is not."""
    return [token >= timestamp_begin for token in tokens[-2:]] == [False, True]


def shift_timestamps(tokens: Sequence[int], timestamp_begin: int, n_positions: int) -> tuple[int, ...]:
    """Return the tokens with timestamps of a window that begins a number of positions later."""
    return tuple(
        max(token - n_positions, timestamp_begin) if token >= timestamp_begin else token for token in tokens
    )


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
    scored : tuple of TokenSegment
        Its scored segments; their tokens are the first ones of the result, one after the other. None in silence.
    advance : float
        Positions from its start to where the text goes on.
    """

    offset: int
    n_frames: int
    result: WindowResult
    scored: tuple[TokenSegment, ...]
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

    It has the source of frames that the windows were read from, and the speech of the recording for their scores.
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

    def _score(self, token_segments: Sequence[TokenSegment], window: WindowText) -> Iterator[TokenSegment]:
        """Yield the segments of a window, each with the probability that it is a hallucination."""
        decoded, attention = window.result.decoded, window.result.decoded.hypothesis.attention
        tokenizer, limit = self.decoder.tokenizer, self._options.hallucination_threshold
        next_starts = [*(segment.start for segment in token_segments[1:]), window.n_positions]
        behind = 0.0
        for segment, next_start in zip(token_segments, next_starts, strict=True):
            text, rows = tokenizer.decode(segment.tokens), segment.text_indices(tokenizer.eot)
            start, end = segment.start, segment.end
            speech_prob = concentration = None
            if attention is not None:
                own_attention = attention[:, rows]
                concentration = attention_concentration(own_attention, window.n_positions)
                # Timestamps may leave out the words. But if they are in the padding, nobody said these.
                stretch = attended_stretch(own_attention, window.n_positions)
                if stretch and start < window.n_positions:
                    start, end = stretch
                    # With fewer positions than tokens, the model has closed the segment before its words.
                    if 0 < segment.end - segment.start < len(rows):
                        longer = min(segment.start, max(start, behind)), max(segment.end, min(end, next_start))
                        segment = replace(segment, start=longer[0], end=longer[1])
            behind = segment.end
            spans = self.frame_source.spans(round(window.source_frame(start)), round(window.source_frame(end)))
            if self.segmenter is not None:
                speech_prob = mean_speech_probability(self.segmenter.probabilities, spans)
            features = HallucinationFeatures(
                text=text,
                n_tokens=len(rows),
                duration_s=total_frames(spans) / FRAMES_PER_SECOND,
                avg_logprob=decoded.hypothesis.avg_logprob,
                no_speech_prob=decoded.no_speech_prob,
                compression_ratio=decoded.compression_ratio,
                speech_prob=speech_prob,
                attention_concentration=concentration,
            )
            score, reason = score_hallucination(features)
            dropped = limit is not None and score >= limit
            yield replace(
                segment,
                text=text,
                score=score,
                drop_reason=(reason or f"score {score:.2f}") if dropped else None,
            )

    def segments(self, window: WindowText) -> tuple[list[Segment], float | None]:
        """Return the segments of a window, with words if they are asked for, and the words' median duration."""
        segments = [self._make_segment(scored, window) for scored in window.scored]
        return self._add_words(segments, window) if self._options.word_timestamps else (segments, None)

    def _make_segment(self, scored: TokenSegment, window: WindowText) -> Segment:
        result, decoded = window.result, window.result.decoded
        # A timestamp in the audio kept around speech would lengthen the segment by all of the silence left out there.
        slack = (self._options.vad_speech_pad_s + _TIMESTAMP_ERROR_S) * FRAMES_PER_SECOND
        start_s, end_s = self._times_s(window, scored.start, scored.end, slack)
        if start_s == end_s:  # all of it is so near to silence
            start_s, end_s = self._times_s(window, scored.start, scored.end)
        return Segment(
            index=0,
            start_s=start_s,
            end_s=end_s,
            text=scored.text,
            tokens=scored.tokens,
            temperature=decoded.temperature,
            avg_logprob=decoded.hypothesis.avg_logprob,
            compression_ratio=decoded.compression_ratio,
            no_speech_prob=decoded.no_speech_prob,
            seek_s=round(self.frame_source.start_s(window.offset) * FRAMES_PER_SECOND) / FRAMES_PER_SECOND,
            attempts=result.attempts,
            language=result.language,
            hallucination_score=round(scored.score, 4),
        )

    def _add_words(self, segments: Iterable[Segment], window: WindowText) -> tuple[list[Segment], float | None]:
        """Add the words to segments, with the times of the alignment."""
        options = self._options
        words, median_duration = words_by_segment(
            [scored.tokens for scored in window.scored],
            self._align(window),
            self.decoder.tokenizer,
            language="en" if options.task == "translate" else window.result.language,
            prepend_punctuations=options.prepend_punctuations,
            append_punctuations=options.append_punctuations,
        )

        def word(timing: WordTiming) -> Word:
            start_s, end_s = self._times_s(window, timing.start, timing.end)
            return Word(text=timing.text, start_s=start_s, end_s=end_s, probability=timing.probability)

        return [
            replace(segment, words=tuple(map(word, timings)))
            for segment, timings in zip(segments, words, strict=True)
        ], median_duration

    def _times_s(self, window: WindowText, start: float, end: float, slack: float = 0) -> tuple[float, float]:
        """Return the times in the recording of two positions of a window, with the slack of the frame source."""
        start_s = self.frame_source.start_s(window.source_frame(start), slack)
        return start_s, max(start_s, self.frame_source.end_s(window.source_frame(end), slack))

    def _align(self, window: WindowText) -> Alignment:
        """Align by the cross-attention of decoding, or as the reference does, in a pass of its own."""
        decoder, result, tokenizer = self.decoder, window.result, self.decoder.tokenizer
        tokens = [token for scored in window.scored for token in scored.tokens]
        if not decoder.exact:
            heads = decoder.backend.word_heads
            return align_decoded(result.decoded.hypothesis, len(tokens), tokenizer, window.n_positions, heads)
        return align_tokens(
            decoder.backend,
            result.encoded.batch.features,
            result.encoded.index,
            [token for token in tokens if token < tokenizer.eot],
            tokenizer,
            window.n_positions,
            language=result.language,
            task=self._options.task,
        )
