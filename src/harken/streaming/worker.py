"""What streams ask for, and who does it for several of them at once.

A stream is a generator that yields a piece of `Work` where it needs the model, and is sent what came of it. So it waits
for nobody, and whoever drives some of them decides what is done together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harken.audio import stream_audio
from harken.contract import Backend, Features, Floats, StreamingEncoderState
from harken.decoding import (
    DecodeStats,
    PartialHypothesis,
    PartialWindow,
    decode_partial,
    language_probabilities,
    make_logit_rules,
    make_prompt,
)
from harken.results import Segment
from harken.streaming.utterance import EncoderChunk
from harken.text import to_language_code
from harken.transcribe import RecordingTranscriber, Scheduler, WindowDecoder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinalRequest:
    """A stretch of a stream that has ended.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
    start_s : float
        Where it begins in the stream.
    previous : tuple of int
        Tokens that were heard in it, with timestamps or without.
    language : str or None
        Code or name of its language; if None it is detected, unless the options say what it is.
    """

    samples: Floats
    start_s: float
    draft_tokens: tuple[int, ...] = ()
    language: str | None = None


class FinalPass:
    """Transcribes utterances of one stream or of several, as many windows together as may be.

    Parameters
    ----------
    hearing : Hearing
        The model and its options. Without a speculator drafts go unused, which costs time and changes no word.
    batch_size : int
        Most windows to decode together.
    """

    def __init__(self, window_decoder: WindowDecoder, batch_size: int) -> None:
        self._window_decoder, self._batch_size = window_decoder, batch_size

    def transcribe(self, requests: Sequence[FinalRequest]) -> list[tuple[Segment, ...]]:
        """Transcribe some utterances.

        Returns
        -------
        list of tuple of Segment
            What is said in each, as `harken.Recognizer.transcribe` would have it, in the times of the stream; numbered
            from 0 in each.

        Raises
        ------
        AudioError
            If there are no samples, or some are not finite.
        OptionError
            If a language is unknown.
        """
        recordings = [
            RecordingTranscriber(
                self._window_decoder,
                stream_audio(request.samples),
                language=request.language,
                draft_tokens=request.draft_tokens,
            )
            for request in requests
        ]
        scheduler = Scheduler(self._window_decoder, recordings, self._batch_size, first_window_alone=False)
        return [
            tuple(_shifted(segment, its.start_s) for segment in scheduler.segments(work))
            for its, work in zip(requests, recordings, strict=True)
        ]


def _shifted(segment: Segment, offset_s: float) -> Segment:
    """A segment with the times of the stream."""
    return replace(
        segment,
        start_s=segment.start_s + offset_s,
        end_s=segment.end_s + offset_s,
        seek_s=segment.seek_s + offset_s,
        words=tuple(replace(w, start_s=w.start_s + offset_s, end_s=w.end_s + offset_s) for w in segment.words),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialRequest:
    """Hear the next window of an utterance, and what is said in it by now.

    Parameters
    ----------
    encoder : Encoder
    history_frames : int
        With which the encoder was opened.
    sound : Sound
    committed, previous : tuple of int
        As for `harken.decoding.Growing`.
    before : tuple of int
        Text of the stream before the utterance.
    language : str or None
        Its code, if it is known.
    likely : str or None
        That of the utterance before it.
    """

    encoder: StreamingEncoderState
    history_frames: int
    chunk: EncoderChunk
    committed: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    language: str | None
    previous_language: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialResult:
    """What came of an update.

    Parameters
    ----------
    grown : Grown
    language : str
        In which it is.
    sure : bool
        Whether that is known, by enough of the sound.
    """

    hypothesis: PartialHypothesis
    language: str
    language_known: bool = True


MIN_LANGUAGE_POSITIONS = 100
"""2 s: of less sound a language is often mistaken."""

ModelRequest = PartialRequest | FinalRequest
"""Of an utterance that goes on, or one that has ended (see `harken.streaming.worker`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """A piece of work that has been done.

    Parameters
    ----------
    updated : Updated or None
        What came of an update.
    segments : tuple of Segment
        What came of an utterance.
    compute_s : float
        What it took, with whatever was done together with it.
    """

    partial: PartialResult | None = None
    segments: tuple[Segment, ...] = ()
    compute_s: float = 0.0


RequestGenerator = Generator[ModelRequest, ModelResponse, None]
"""A stream that goes on as far as it can, asking for work on the way."""


class ModelWorker:
    """Does the work of streams.

    Parameters
    ----------
    hearing : Hearing
        The model, and the options of a transcription.
    clock : callable
        Seconds, for the account of what computing takes.
    batch_size : int
        Most utterances to decode together.

    Attributes
    ----------
    stats : DecodeStats
        What all updates have cost.
    compute_s : float
        What all work has taken.
    """

    def __init__(
        self, window_decoder: WindowDecoder, clock: Callable[[], float] = float, batch_size: int = 16
    ) -> None:
        self.backend: Backend = window_decoder.backend
        self.tokenizer, self.options = window_decoder.tokenizer, window_decoder.options
        self.stats = DecodeStats()
        self.compute_s = 0.0
        self._clock = clock
        self._final_pass = FinalPass(window_decoder, batch_size)
        self._fixed_language = (
            to_language_code(self.options.language) if self.options.language is not None else None
        )
        options = self.options
        self._logit_rules = make_logit_rules(
            self.tokenizer,
            timestamps=False,
            suppress_tokens=options.suppress_tokens,
            suppress_blank=options.suppress_blank,
            suppress_regex=options.suppress_regex,
            hotwords=options.hotwords,
        )
        self._initial_prompt_tokens = tuple(window_decoder.initial_prompt_tokens)

    def run(self, streams: Sequence[RequestGenerator]) -> None:
        """Let streams go on as far as they can; what they ask for at the same time is done together."""
        pending = {i: request for i, stream in enumerate(streams) if (request := next(stream, None))}
        while pending:
            responses = self._compute([*pending.values()])
            pending = {
                i: request
                for i, response in zip([*pending], responses, strict=True)
                if (request := _next_request(streams[i], response)) is not None
            }

    def _compute(self, requests: Sequence[ModelRequest]) -> list[ModelResponse]:
        partial_requests = [request for request in requests if isinstance(request, PartialRequest)]
        final_requests = [work for work in requests if isinstance(work, FinalRequest)]
        start_s = self._clock()
        partials = iter(self._decode_partials(partial_requests) if partial_requests else [])
        partial_compute_s = self._clock() - start_s
        segments = iter(self._final_pass.transcribe(final_requests) if final_requests else [])
        total_compute_s = self._clock() - start_s
        self.compute_s += total_compute_s
        return [
            ModelResponse(partial=next(partials), compute_s=partial_compute_s)
            if isinstance(work, PartialRequest)
            else ModelResponse(segments=next(segments), compute_s=total_compute_s)
            for work in requests
        ]

    def _decode_partials(self, requests: Sequence[PartialRequest]) -> list[PartialResult]:
        self._encode_chunks(requests)
        features = self.backend.stream_features([request.encoder for request in requests])
        languages = self._detect_languages(requests, features)
        windows = [
            PartialWindow(
                window_index=window,
                prompt=self._prompt(language, update.context_tokens),
                committed=update.committed,
                draft_tokens=update.draft_tokens,
                n_positions=update.chunk.positions,
                frame_threshold=update.chunk.frame_threshold,
            )
            for window, (update, (language, _)) in enumerate(zip(requests, languages, strict=True))
        ]
        hypotheses, stats = decode_partial(self.backend, features, windows, self._logit_rules, self.tokenizer)
        self.stats += stats
        return [
            PartialResult(hypothesis=hypothesis, language=language, language_known=known)
            for hypothesis, (language, known) in zip(hypotheses, languages, strict=True)
        ]

    def _encode_chunks(self, requests: Sequence[PartialRequest]) -> None:
        """Encode windows of one size together."""
        shapes = [
            (request.chunk.mel.shape, request.chunk.final_frames, request.history_frames)
            for request in requests
        ]
        for shape in dict.fromkeys(shapes):
            same_shape = [update for update, its in zip(requests, shapes, strict=True) if its == shape]
            mel = np.stack([update.chunk.mel for update in same_shape])
            self.backend.encode_chunk(
                [update.encoder for update in same_shape], mel, same_shape[0].chunk.final_frames
            )

    def _detect_languages(
        self, requests: Sequence[PartialRequest], features: Features
    ) -> list[tuple[str, bool]]:
        """Language of each, and whether it is known; if not, that of the utterance before is as good a guess."""
        known = [update.language or self._fixed_language for update in requests]
        if None not in known:
            return [(language, True) for language in known if language is not None]
        probabilities = language_probabilities(self.backend, features, self.tokenizer, self.options.languages)
        languages = []
        for request, language, probability_of in zip(requests, known, probabilities, strict=True):
            best, probability = next(iter(probability_of.items()))
            long_enough = request.chunk.positions >= MIN_LANGUAGE_POSITIONS or not self.tokenizer.multilingual
            confident = long_enough and probability >= self.options.language_threshold
            languages.append(
                (language, True)
                if language
                else (best if confident else request.previous_language or best, confident)
            )
        return languages

    def _prompt(self, language: str, context_tokens: Sequence[int]) -> tuple[int, ...]:
        return make_prompt(
            self.tokenizer,
            self.backend.dims.n_text_ctx,
            language=language,
            task=self.options.task,
            timestamps=False,
            initial_prompt_tokens=self._initial_prompt_tokens,
            previous_tokens=context_tokens,
        )


def _next_request(stream: RequestGenerator, response: ModelResponse) -> ModelRequest | None:
    try:
        return stream.send(response)
    except StopIteration:
        return None
