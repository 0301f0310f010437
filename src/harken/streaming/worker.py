"""The requests of streams to the model, and the worker that computes those of several streams in batches.

A stream is a generator that yields a `ModelRequest` where it needs the model, and is sent the `ModelResponse`. So a
stream never waits, and the worker that runs several of them decides which requests to batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harken.audio import stream_audio
from harken.contract import Backend, Features, Floats, StreamingEncoderState
from harken.decoding import DecodeStats, PartialHypothesis, PartialWindow, decode_partial
from harken.results import Segment, shifted
from harken.streaming.utterance_audio import EncoderChunk
from harken.transcribe import RecordingTranscriber, Scheduler, WindowDecoder
from harken.transcribe.language_id import LanguageProbabilities

MIN_LANGUAGE_POSITIONS = 100
"""2 s: language detection often fails with less audio."""
FINAL_BATCH_SIZE = 16
"""Most windows of completed utterances to decode together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinalRequest:
    """A request to transcribe a completed utterance.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
    start_s : float
        Start of the utterance in the stream.
    draft_tokens : tuple of int
        Tokens of its last hypothesis, with timestamps or without.
    context_tokens : tuple of int
        As for `PartialRequest`.
    languages : mapping
        Probability of each language in the stream before it; empty at its start.
    """

    samples: Floats
    start_s: float
    draft_tokens: tuple[int, ...] = ()
    context_tokens: tuple[int, ...] = ()
    languages: LanguageProbabilities = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialRequest:
    """A request to encode the next window of an utterance and decode the utterance so far.

    Parameters
    ----------
    encoder : StreamingEncoderState
    chunk : EncoderChunk
    committed, draft_tokens : tuple of int
        As for `harken.decoding.PartialWindow`.
    context_tokens : tuple of int
        Text of the stream before the utterance.
    language : str or None
        Code of its language, if it is known.
    previous_language : str or None
        Code of the language of the stream before it.
    committed_end : int
    speech : ndarray of shape (positions,), bool
        As for `harken.decoding.PartialWindow`.
    """

    encoder: StreamingEncoderState
    chunk: EncoderChunk
    committed: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    language: str | None
    previous_language: str | None
    committed_end: int
    speech: NDArray[np.bool_]


ModelRequest = PartialRequest | FinalRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """The response to a request.

    Parameters
    ----------
    hypothesis : PartialHypothesis or None
        The result of a partial request.
    language : str or None
        Code of the language in which it was decoded.
    language_known : bool
        False if there was too little audio, or too low a probability, to detect the language.
    segments : tuple of Segment
        The result of a final request.
    languages : mapping
        Probability of each language after it; empty if the language was given.
    compute_s : float
        Computing time of its batch; 0 without a clock.
    """

    hypothesis: PartialHypothesis | None = None
    language: str | None = None
    language_known: bool = True
    segments: tuple[Segment, ...] = ()
    languages: LanguageProbabilities = field(default_factory=dict)
    compute_s: float = 0.0


RequestGenerator = Generator[ModelRequest, ModelResponse, None]
"""A stream that runs as far as its samples reach and yields requests on the way."""


class ModelWorker:
    """Computes the requests of streams, those that are pending at the same time as a batch.

    The encoders of all of them have the same history.

    Parameters
    ----------
    window_decoder : WindowDecoder
        The model, and the options of a transcription. Without a clock no computing times are measured, and they are 0.

    Attributes
    ----------
    stats : DecodeStats
        Decoding statistics of all partial requests.
    compute_s : float
        Computing time of all requests.
    measures_time : bool
        True with a clock.
    """

    def __init__(self, window_decoder: WindowDecoder) -> None:
        self.backend: Backend = window_decoder.backend
        self.tokenizer, self.options = window_decoder.tokenizer, window_decoder.options
        self.speech_detector = window_decoder.speech_detector
        self.stats = DecodeStats()
        self.compute_s = 0.0
        self.measures_time = window_decoder.clock is not None
        self._window_decoder = window_decoder
        self._logit_rules = window_decoder.make_rules(timestamps=False)

    def run(self, streams: Sequence[RequestGenerator]) -> None:
        """Run streams to their ends; requests that are pending at the same time are computed together."""
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
        final_requests = [request for request in requests if isinstance(request, FinalRequest)]
        now_s = self._window_decoder.now_s
        start_s = now_s()
        partials = iter(self._decode_partials(partial_requests) if partial_requests else [])
        partial_compute_s = now_s() - start_s
        finals = iter(final_pass(self._window_decoder, final_requests))
        total_compute_s = now_s() - start_s
        self.compute_s += total_compute_s
        return [
            replace(next(partials), compute_s=partial_compute_s)
            if isinstance(request, PartialRequest)
            else replace(next(finals), compute_s=total_compute_s)
            for request in requests
        ]

    def _decode_partials(self, requests: Sequence[PartialRequest]) -> list[ModelResponse]:
        self._encode_chunks(requests)
        features = self.backend.stream_features([request.encoder for request in requests])
        languages = self._detect_languages(requests, features)
        windows = [
            PartialWindow(
                window_index=window,
                prompt=self._window_decoder.build_prompt(language, request.context_tokens, partial=True),
                committed=request.committed,
                draft_tokens=request.draft_tokens,
                n_positions=request.chunk.positions,
                frame_threshold=request.chunk.frame_threshold,
                committed_end=request.committed_end,
                speech=request.speech,
            )
            for window, (request, (language, _)) in enumerate(zip(requests, languages, strict=True))
        ]
        hypotheses, stats = decode_partial(self.backend, features, windows, self._logit_rules, self.tokenizer)
        self.stats += stats
        return [
            ModelResponse(hypothesis=hypothesis, language=language, language_known=known)
            for hypothesis, (language, known) in zip(hypotheses, languages, strict=True)
        ]

    def _encode_chunks(self, requests: Sequence[PartialRequest]) -> None:
        """Encode the windows of the requests, those of one shape together."""
        by_shape: dict[tuple[tuple[int, ...], int], list[PartialRequest]] = {}
        for request in requests:
            by_shape.setdefault((request.chunk.mel.shape, request.chunk.final_frames), []).append(request)
        for (_, final_frames), same_shape in by_shape.items():
            mel = np.stack([request.chunk.mel for request in same_shape])
            self.backend.encode_chunk([request.encoder for request in same_shape], mel, final_frames)

    def _detect_languages(
        self, requests: Sequence[PartialRequest], features: Features
    ) -> list[tuple[str, bool]]:
        """Return the language of each request, and if it is known; if not, use that of the stream before."""
        known = [request.language or self.options.language_code for request in requests]
        if None not in known:
            return [(language, True) for language in known if language is not None]
        probabilities = self._window_decoder.languages_of(features)
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


def _next_request(stream: RequestGenerator, response: ModelResponse) -> ModelRequest | None:
    try:
        return stream.send(response)
    except StopIteration:
        return None


def final_pass(window_decoder: WindowDecoder, requests: Sequence[FinalRequest]) -> list[ModelResponse]:
    """Transcribe completed utterances of one stream or of several, up to `FINAL_BATCH_SIZE` windows together.

    Parameters
    ----------
    window_decoder : WindowDecoder
        The model and its options. Without a speculator drafts go unused; the text is the same.
    requests : sequence of FinalRequest

    Returns
    -------
    list of ModelResponse
        The segments that `harken.Recognizer.transcribe` returns for each utterance, with times in the stream; numbered
        from 0 in each.

    Raises
    ------
    AudioError
        If an utterance has no samples, or some are not finite.
    """
    recordings = [
        RecordingTranscriber(
            window_decoder,
            stream_audio(request.samples),
            draft=request.draft_tokens,
            previous_tokens=request.context_tokens,
            languages=request.languages,
        )
        for request in requests
    ]
    scheduler = Scheduler(window_decoder, recordings, FINAL_BATCH_SIZE, first_window_alone=False)
    return [
        ModelResponse(
            segments=tuple(shifted(segment, request.start_s) for segment in scheduler.segments(recording)),
            languages=recording.language_posterior,
        )
        for request, recording in zip(requests, recordings, strict=True)
    ]
