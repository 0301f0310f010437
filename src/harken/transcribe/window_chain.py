"""A chain of windows, and the segments that come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from harken.decoding import DecodeStats
from harken.errors import AudioError, HarkenError
from harken.results import Segment, Word
from harken.transcribe.callbacks import Callbacks
from harken.transcribe.chunking import FrameSource, FrameSpans, total_frames
from harken.transcribe.hallucination import (
    HallucinationFeatures,
    HallucinationVerdict,
    attention_concentration,
    score_hallucination,
)
from harken.transcribe.options import TranscribeOptions
from harken.transcribe.segments import (
    TokenSegment,
    shift_timestamps,
    single_timestamp_ending,
    split_at_timestamps,
)
from harken.transcribe.window_decoder import DecodeRequest, LanguageProbabilities, WindowDecoder, WindowResult
from harken.transcribe.word_boundaries import refine_word_boundaries
from harken.transcribe.word_timestamps import (
    Alignment,
    align_decoded,
    align_tokens,
    text_tokens,
    words_by_segment,
)
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, TIMESTAMP_STEP_S


class ChainRecording(Protocol):
    """What the chains of one recording have in common (`harken.transcribe.recording.LongForm`)."""

    window_decoder: WindowDecoder
    options: TranscribeOptions
    callbacks: Callbacks
    finished: bool
    failure: HarkenError | None
    parallel: bool

    def frames_to_encode(self, content_frames: int) -> int: ...

    def resolve_language(
        self, seek: int, content_frames: int, probabilities: Callable[[], LanguageProbabilities]
    ) -> str: ...

    def build_prompt(self, language: str, previous_tokens: list[int]) -> tuple[int, ...]: ...

    def add_stats(self, stats: DecodeStats) -> None: ...

    def word_regions_s(self, start: int, end_s: float) -> list[tuple[float, float]] | None: ...

    def mean_speech_probability(self, spans: FrameSpans) -> float | None: ...


@dataclass(slots=True)
class ChainContext:
    """What windows know of those before them.

    Attributes
    ----------
    previous : list of int
        Text tokens said before.
    last_speech_s : float
        Where the last word ended.
    """

    previous_tokens: list[int] = field(default_factory=list)
    last_speech_s: float = 0.0


class WindowChain:
    """A chain of windows: each begins where what was said in the one before it ended.

    Parameters
    ----------
    form : Recording
    view : View
        What the windows slide over.
    context : Context
    first : bool
        Whether it begins the recording.
    previous : tuple of int
        What is said in its first window, as far as that is known; a draft.

    Attributes
    ----------
    ended : bool
        Whether it has no more windows.
    done_s : float
        How far it has come in the recording.
    """

    def __init__(
        self,
        recording: ChainRecording,
        frame_source: FrameSource,
        context: ChainContext,
        *,
        is_first: bool,
        draft_tokens: tuple[int, ...] = (),
    ) -> None:
        self._recording, self._frame_source, self._context, self._is_first = (
            recording,
            frame_source,
            context,
            is_first,
        )
        self._offset, self._content_frames = 0, 0
        self._language: str | None = None
        self._segments: list[tuple[Segment, str | None]] = []
        self._draft_tokens = draft_tokens
        self.ended = False
        self.decoded_until_s = 0.0

    def next_request(self) -> DecodeRequest | None:
        """The next window, if there is one."""
        recording = self._recording
        if recording.finished:
            return None
        try:
            mel, self._content_frames = self._frame_source.window(self._offset)
        except AudioError as failure:
            recording.failure, self._content_frames = failure, 0
        if not self._content_frames:
            self.ended = True
            return None
        return DecodeRequest(
            mel=mel,
            frames_to_encode=recording.frames_to_encode(self._content_frames),
            seek=self._seek,
            is_first=self._is_first and not self._offset,
            resolve_language=self._resolve_language,
            build_prompt=lambda language: recording.build_prompt(language, self._context.previous_tokens),
            add_stats=recording.add_stats,
            callbacks=recording.callbacks,
            draft_tokens=self._draft_tokens,
        )

    def add_result(self, result: WindowResult) -> None:
        """Cut what was said into segments and go on behind it."""
        recording, decoded = self._recording, result.decoded
        advance = self._content_frames / FRAMES_PER_POSITION
        self._draft_tokens = ()
        if not recording.options.is_silence(decoded):
            # A window without timestamps is one segment, whatever a model puts into it.
            tokenizer, tokens = recording.window_decoder.tokenizer, decoded.hypothesis.tokens
            timestamp_begin = tokenizer.timestamp_begin if recording.options.timestamps else tokenizer.n_vocab
            # A text that ran out of tokens is not all that is said, even where that ends in the window.
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
                advance = (
                    last_word_frame / FRAMES_PER_POSITION if round(last_word_frame) > 0 else advance
                )  # else it would stay
            self._draft_tokens = shift_timestamps(
                tokens[sum(len(token_segment.tokens) for token_segment in token_segments) :],
                timestamp_begin,
                round(advance),
            )
        self._offset += min(round(advance * FRAMES_PER_POSITION), self._content_frames)  # not into the padding
        self.decoded_until_s = self._frame_source.end_s(self._offset)
        if (
            not recording.parallel
        ):  # else other lanes may have gone on, and what is known of the language with them
            self._language = None

    def pop_segments(self) -> list[tuple[Segment, str | None]]:
        """What has been said since it was asked last, each with the reason if it was taken for invented."""
        popped, self._segments = self._segments, []
        return popped

    @property
    def _seek(self) -> int:
        """Frame of the recording where the next window begins."""
        return round(self._frame_source.start_s(self._offset) * FRAMES_PER_SECOND)

    def _resolve_language(self, probabilities: Callable[[], LanguageProbabilities]) -> str:
        """Settled once a window, however often it is encoded."""
        if self._language is None:
            self._language = self._recording.resolve_language(self._seek, self._content_frames, probabilities)
        return self._language

    def _add_segments(self, token_segments: Sequence[TokenSegment], result: WindowResult) -> float | None:
        """Keep the segments that say something; what they say is the next window's previous text.

        Returns
        -------
        float or None
            Where the last word ends, if words were asked for.
        """
        recording, decoded = self._recording, result.decoded
        options, tokenizer = recording.options, recording.window_decoder.tokenizer
        segments = [
            self._make_segment(piece, tokenizer.decode(piece.tokens), result) for piece in token_segments
        ]
        last_word_s = None
        if options.word_timestamps:
            segments = self._add_word_timestamps(segments, token_segments, result)
            last_word_s = next((its.words[-1].end_s for its in reversed(segments) if its.words), None)
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
        del self._context.previous_tokens[
            : -recording.window_decoder.backend.dims.n_text_ctx
        ]  # more than a prompt takes
        if decoded.temperature > options.prompt_reset_temperature or not options.condition_on_previous_text:
            self._context.previous_tokens.clear()
        return last_word_s

    def _make_segment(self, token_segment: TokenSegment, text: str, result: WindowResult) -> Segment:
        decoded = result.decoded
        start_s = self._frame_source.start_s(self._to_frame(token_segment.start))
        return Segment(
            index=0,
            start_s=start_s,
            end_s=max(start_s, self._frame_source.end_s(self._to_frame(token_segment.end))),
            text=text,
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
        """Frame of the view for a timestamp; those in the padding stand for the end of what the window holds."""
        return self._offset + min(position * FRAMES_PER_POSITION, self._content_frames)

    def _add_word_timestamps(
        self, segments: Sequence[Segment], token_segments: Sequence[TokenSegment], result: WindowResult
    ) -> list[Segment]:
        """Find out when each word was spoken, and correct the segments by it."""
        recording, options = self._recording, self._recording.options
        language = "en" if options.task == "translate" else result.language
        words, median_duration = words_by_segment(
            token_segments,
            self._align(token_segments, result),
            recording.window_decoder.tokenizer,
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
            speech=recording.word_regions_s(
                self._seek, self._frame_source.end_s(self._offset + self._content_frames)
            ),
        )
        return refined

    def _align(self, token_segments: Sequence[TokenSegment], result: WindowResult) -> Alignment:
        """By what decoding listened to, or as the reference does, by reading the text once more."""
        window_decoder, n_positions = (
            self._recording.window_decoder,
            self._content_frames // FRAMES_PER_POSITION,
        )
        if not window_decoder.exact:
            return align_decoded(
                result.decoded.hypothesis, token_segments, window_decoder.tokenizer, n_positions
            )
        return align_tokens(
            window_decoder.backend,
            result.features,
            result.audio_index,
            text_tokens(token_segments, window_decoder.tokenizer),
            window_decoder.tokenizer,
            n_positions,
            language=result.language,
            task=window_decoder.options.task,
        )

    def _hallucination_verdicts(
        self, token_segments: Sequence[TokenSegment], segments: Sequence[Segment], result: WindowResult
    ) -> list[HallucinationVerdict]:
        """How likely each segment was invented."""
        attention = result.decoded.hypothesis.attention
        eot, first_row, verdicts = self._recording.window_decoder.tokenizer.eot, 0, []
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
                speech_prob=self._recording.mean_speech_probability(spans),
                attention_concentration=None
                if attention is None
                else attention_concentration(attention[:, rows], self._content_frames // FRAMES_PER_POSITION),
            )
            verdicts.append(score_hallucination(features))
        return verdicts
