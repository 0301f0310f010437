"""A chain of windows: where each begins, what it knows of the ones before, and the segments of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harken.results import Segment, Word
from harken.transcribe.chunking import FrameSource, SpeechSegmenter, total_frames
from harken.transcribe.hallucination import (
    HallucinationFeatures,
    HallucinationVerdict,
    attention_concentration,
    mean_speech_probability,
    score_hallucination,
)
from harken.transcribe.language_id import LanguageProbabilities
from harken.transcribe.segments import (
    TokenSegment,
    shift_timestamps,
    single_timestamp_ending,
    split_at_timestamps,
)
from harken.transcribe.window_decoder import (
    AudioWindow,
    DecodeRequest,
    EncodedWindow,
    WindowDecoder,
    WindowResult,
)
from harken.transcribe.word_boundaries import refine_word_boundaries
from harken.transcribe.word_timestamps import (
    Alignment,
    align_decoded,
    align_tokens,
    text_tokens,
    words_by_segment,
)
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, TIMESTAMP_STEP_S


@dataclass(slots=True)
class ChainContext:
    """State that a window takes over from the windows before it.

    Attributes
    ----------
    previous_tokens : list of int
        Text tokens before the window, for its prompt.
    last_speech_s : float
        End of the last word, in seconds of the recording.
    """

    previous_tokens: list[int] = field(default_factory=list)
    last_speech_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageState:
    """The language of a window, and what decides on the language of the next one.

    Attributes
    ----------
    code : str
    probability : float or None
        Probability of a language that was detected.
    posterior : mapping
        State of the `harken.transcribe.language_id.LanguageFilter` of a recording whose language may change.
    """

    code: str
    probability: float | None
    posterior: LanguageProbabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOutcome:
    """Everything that the result of a window changes in its chain, so that it can be restored without decoding.

    Attributes
    ----------
    segments : tuple of (Segment, str or None)
        Segments of the window, each with the reason if it was taken for a hallucination.
    next_offset : int
        Frame of the chain's source at which the next window begins.
    previous_tokens : tuple of int
    last_speech_s : float
        The context of the next window, as in `ChainContext`.
    draft_tokens : tuple of int
        Tokens expected in the next window.
    """

    segments: tuple[tuple[Segment, str | None], ...]
    next_offset: int
    previous_tokens: tuple[int, ...]
    last_speech_s: float
    draft_tokens: tuple[int, ...]


class WindowChain:
    """A chain of windows: each begins where the text of the one before it ended.

    Parameters
    ----------
    window_decoder : WindowDecoder
    frame_source : FrameSource
        The frames that the windows are read from.
    segmenter : SpeechSegmenter or None
        Speech of the recording, for the times of words and the hallucination score.
    context : ChainContext
    index : int
        Its place in the recording, from 0.
    draft_tokens : tuple of int
        Tokens expected in its first window.

    Attributes
    ----------
    offset : int
        Frame of the source at which the next window begins.
    language : LanguageState or None
        Language of the next window, once it is known.
    ended : bool
        True if it has no more windows.
    decoded_until_s : float
        End of the part that has been decoded, in seconds of the recording.
    """

    def __init__(
        self,
        window_decoder: WindowDecoder,
        frame_source: FrameSource,
        segmenter: SpeechSegmenter | None,
        context: ChainContext,
        *,
        index: int,
        draft_tokens: tuple[int, ...] = (),
    ) -> None:
        self._decoder, self._options = window_decoder, window_decoder.options
        self._frame_source, self._segmenter, self._context = frame_source, segmenter, context
        self.index, self._draft_tokens = index, draft_tokens
        self.offset, self._content_frames = 0, 0
        self._segments: list[tuple[Segment, str | None]] = []
        self.language: LanguageState | None = None
        self.ended = False
        self.decoded_until_s = 0.0

    def next_window(self) -> AudioWindow | None:
        """Read the next window, if there is one.

        Raises
        ------
        AudioError
            If the recording cannot be read on.
        """
        mel, self._content_frames = self._frame_source.window(self.offset)
        if not self._content_frames:
            self.ended = True
            return None
        return AudioWindow(
            mel=mel,
            content_frames=self._content_frames,
            seek=self._seek,
            is_first=not self.index and not self.offset,
        )

    def request(self, encoded: EncodedWindow, language: str) -> DecodeRequest:
        """Return the request to decode the window that was read last."""
        return DecodeRequest(
            encoded=encoded,
            language=language,
            prompt=self._decoder.build_prompt(language, self._context.previous_tokens),
            draft_tokens=self._draft_tokens,
        )

    def add_result(self, result: WindowResult) -> WindowOutcome:
        """Split the tokens of a result into segments, and go on behind them."""
        n_segments = len(self._segments)
        options, decoded = self._options, result.decoded
        advance = self._content_frames / FRAMES_PER_POSITION
        self._draft_tokens = ()
        if not options.is_silence(decoded):
            # Without timestamps a window is one segment, even if the model writes some.
            tokenizer, tokens = self._decoder.tokenizer, decoded.hypothesis.tokens
            timestamp_begin = tokenizer.timestamp_begin if options.timestamps else tokenizer.n_vocab
            # A text that ran out of tokens is not complete, even if its last timestamp lies in the window.
            complete = len(decoded.hypothesis.logprobs) > len(tokens)
            token_segments, advance = split_at_timestamps(
                tokens, timestamp_begin, advance, self_contained=self._frame_source.self_contained and complete
            )
            last_word_s = self._add_segments(token_segments, result)
            # Source: openai/whisper, transcribe.py: with words, the next window begins behind the last of them.
            if last_word_s is not None and not (
                self._frame_source.self_contained or single_timestamp_ending(tokens, timestamp_begin)
            ):
                last_word_frame = last_word_s * FRAMES_PER_SECOND - self._seek
                if round(last_word_frame) > 0:  # else the next window would be this one again
                    advance = last_word_frame / FRAMES_PER_POSITION
            self._draft_tokens = shift_timestamps(
                tokens[sum(len(token_segment.tokens) for token_segment in token_segments) :],
                timestamp_begin,
                round(advance),
            )
        self._advance_to(
            self.offset
            + min(round(advance * FRAMES_PER_POSITION), self._content_frames)  # not into the padding
        )
        return WindowOutcome(
            segments=tuple(self._segments[n_segments:]),
            next_offset=self.offset,
            previous_tokens=tuple(self._context.previous_tokens),
            last_speech_s=self._context.last_speech_s,
            draft_tokens=tuple(self._draft_tokens),
        )

    def restore(self, outcome: WindowOutcome) -> None:
        """Take the outcome of the window that was read last, instead of a result."""
        self._segments += outcome.segments
        self._context.previous_tokens[:] = outcome.previous_tokens
        self._context.last_speech_s = outcome.last_speech_s
        self._draft_tokens = outcome.draft_tokens
        self._advance_to(outcome.next_offset)

    def pop_segments(self) -> list[tuple[Segment, str | None]]:
        """Return the segments since the last call, each with the reason if it was taken for a hallucination."""
        popped, self._segments = self._segments, []
        return popped

    def _advance_to(self, offset: int) -> None:
        self.offset = offset
        self.decoded_until_s = self._frame_source.end_s(offset)

    @property
    def _seek(self) -> int:
        """Frame of the recording at which the next window begins."""
        return round(self._frame_source.start_s(self.offset) * FRAMES_PER_SECOND)

    def _add_segments(self, token_segments: Sequence[TokenSegment], result: WindowResult) -> float | None:
        """Add the segments that have text; their tokens are the previous text of the next window.

        Returns
        -------
        float or None
            End of the last word in seconds, if words were asked for.
        """
        options, decoded = self._options, result.decoded
        segments = [self._make_segment(token_segment, result) for token_segment in token_segments]
        last_word_s = None
        if options.word_timestamps:
            segments = self._add_word_timestamps(segments, token_segments, result)
            last_word_s = next(
                (segment.words[-1].end_s for segment in reversed(segments) if segment.words), None
            )
        verdicts = self._hallucination_verdicts(token_segments, segments, result)
        for token_segment, segment, verdict in zip(token_segments, segments, verdicts, strict=True):
            if token_segment.start >= token_segment.end or not segment.text.strip():
                continue
            segment = replace(segment, hallucination_score=round(verdict.score, 4))
            limit = options.hallucination_threshold
            if limit is not None and verdict.score >= limit:
                self._segments.append((segment, verdict.reason or f"score {verdict.score:.2f}"))
                continue
            self._segments.append((segment, None))
            self._context.previous_tokens += token_segment.tokens
        del self._context.previous_tokens[: -self._decoder.backend.dims.n_text_ctx]  # a prompt takes no more
        if decoded.temperature > options.prompt_reset_temperature or not options.condition_on_previous_text:
            self._context.previous_tokens.clear()
        return last_word_s

    def _make_segment(self, token_segment: TokenSegment, result: WindowResult) -> Segment:
        decoded = result.decoded
        start_s = self._frame_source.start_s(self._to_frame(token_segment.start))
        return Segment(
            index=0,
            start_s=start_s,
            end_s=max(start_s, self._frame_source.end_s(self._to_frame(token_segment.end))),
            text=self._decoder.tokenizer.decode(token_segment.tokens),
            tokens=token_segment.tokens,
            temperature=decoded.temperature,
            avg_logprob=decoded.hypothesis.avg_logprob,
            compression_ratio=decoded.compression_ratio,
            no_speech_prob=decoded.no_speech_prob,
            seek_s=self._seek / FRAMES_PER_SECOND,
            attempts=result.attempts,
            language=result.language,
        )

    def _to_frame(self, position: float) -> float:
        """Return the frame of the source for a timestamp; one in the padding stands for the end of the audio."""
        return self.offset + min(position * FRAMES_PER_POSITION, self._content_frames)

    def _add_word_timestamps(
        self, segments: Sequence[Segment], token_segments: Sequence[TokenSegment], result: WindowResult
    ) -> list[Segment]:
        """Add the times of words to segments, and correct the times of the segments by them."""
        options = self._options
        language = "en" if options.task == "translate" else result.language
        words, median_duration = words_by_segment(
            token_segments,
            self._align(token_segments, result),
            self._decoder.tokenizer,
            language=language,
            prepend_punctuations=options.prepend_punctuations,
            append_punctuations=options.append_punctuations,
        )

        def word(text: str, start: float, end: float, probability: float) -> Word:
            start_s = self._frame_source.start_s(self._to_frame(start))
            end_s = max(start_s, self._frame_source.end_s(self._to_frame(end)))
            return Word(text=text, start_s=start_s, end_s=end_s, probability=probability)

        timed = [
            replace(
                segment,
                words=tuple(
                    word(timing.text, timing.start, timing.end, timing.probability) for timing in timings
                ),
            )
            for segment, timings in zip(segments, words, strict=True)
        ]
        refined, self._context.last_speech_s = refine_word_boundaries(
            timed,
            median_duration_s=median_duration * TIMESTAMP_STEP_S,
            last_speech_s=self._context.last_speech_s,
            speech=self._word_regions_s(),
        )
        return refined

    def _word_regions_s(self) -> list[tuple[float, float]] | None:
        """Return speech near the window in seconds, without the silences between words."""
        if self._segmenter is None:
            return None
        end = round(self._frame_source.end_s(self.offset + self._content_frames) * FRAMES_PER_SECOND)
        return [
            (first / FRAMES_PER_SECOND, last / FRAMES_PER_SECOND)
            for first, last in self._segmenter.word_regions(self._seek, end)
        ]

    def _align(self, token_segments: Sequence[TokenSegment], result: WindowResult) -> Alignment:
        """Align by the cross-attention of decoding, or as the reference does, in a pass of its own."""
        decoder, n_positions = self._decoder, self._content_frames // FRAMES_PER_POSITION
        if not decoder.exact:
            return align_decoded(result.decoded.hypothesis, token_segments, decoder.tokenizer, n_positions)
        return align_tokens(
            decoder.backend,
            result.encoded.batch.features,
            result.encoded.index,
            text_tokens(token_segments, decoder.tokenizer),
            decoder.tokenizer,
            n_positions,
            language=result.language,
            task=self._options.task,
        )

    def _hallucination_verdicts(
        self, token_segments: Sequence[TokenSegment], segments: Sequence[Segment], result: WindowResult
    ) -> list[HallucinationVerdict]:
        """Score each segment for the likelihood that it is a hallucination."""
        attention = result.decoded.hypothesis.attention
        eot, first_row, verdicts = self._decoder.tokenizer.eot, 0, []
        for token_segment, segment in zip(token_segments, segments, strict=True):
            spans = self._frame_source.spans(
                round(self._to_frame(token_segment.start)), round(self._to_frame(token_segment.end))
            )
            rows = [first_row + i for i, token in enumerate(token_segment.tokens) if token < eot]
            first_row += len(token_segment.tokens)
            features = HallucinationFeatures(
                text=segment.text,
                n_tokens=len(rows),
                duration_s=total_frames(spans) / FRAMES_PER_SECOND,
                avg_logprob=segment.avg_logprob,
                no_speech_prob=segment.no_speech_prob,
                compression_ratio=segment.compression_ratio,
                speech_prob=None
                if self._segmenter is None
                else mean_speech_probability(self._segmenter.probabilities, spans),
                attention_concentration=None
                if attention is None
                else attention_concentration(attention[:, rows], self._content_frames // FRAMES_PER_POSITION),
            )
            verdicts.append(score_hallucination(features))
        return verdicts
