"""One stream: voice activity detection, endpointing, updates, final passes, and the events of all that.

Its methods are generators that yield a `ModelRequest` where they need the model (see `harken.streaming.worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.audio.vad import CHUNK_SAMPLES
from harken.contract import Floats
from harken.decoding import PartialHypothesis
from harken.results import Segment
from harken.streaming.config import StreamingConfig, StreamOptions, config_in_noise
from harken.streaming.events import Event, FinalSegment, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.streaming.latency import LatencyPlan
from harken.streaming.load_shedding import (
    LOAD_LEVELS,
    NO_EXACT_FINALS,
    LoadMonitor,
    apply_load_level,
    highest_level,
)
from harken.streaming.speech import Endpoint, Endpointer, SnrEstimator, is_noisy
from harken.streaming.utterance import ActiveUtterance, TimedToken
from harken.streaming.utterance_audio import (
    FINAL_SILENCE_FRAMES,
    WINDOW_BUCKET_FRAMES,
    EncoderChunk,
    UtteranceAudio,
)
from harken.streaming.worker import (
    FinalRequest,
    ModelRequest,
    ModelResponse,
    ModelWorker,
    PartialRequest,
    RequestGenerator,
)
from harken.transcribe.language_id import LanguageProbabilities
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE

SAMPLES_PER_POSITION = FRAMES_PER_POSITION * HOP_SAMPLES
MAX_TURN_FRAMES = 60 * FRAMES_PER_SECOND
"""Length from which on the parts of an utterance wait no longer for the next to be transcribed together."""
MIN_SENTENCE_FRAMES = 3 * FRAMES_PER_SECOND
"""Length of an utterance before the end of a sentence may end it."""


class SampleBuffer:
    """The recent samples of a stream, addressed by their number in it."""

    def __init__(self) -> None:
        self._samples = np.empty(0, np.float32)
        self._first = self._start = self._end = 0  # in the stream: of the array, of what is kept, and behind it

    @property
    def end(self) -> int:
        """Number of samples added so far."""
        return self._end

    def add(self, samples: Floats) -> None:
        """Append samples; those that were returned before stay where they are."""
        if self._end + len(samples) > self._first + len(self._samples):
            kept = self.between(self._start, self._end)
            self._samples = np.empty(2 * (len(kept) + len(samples)), np.float32)
            self._samples[: len(kept)] = kept
            self._first = self._start
        self._samples[self._end - self._first : self._end - self._first + len(samples)] = samples
        self._end += len(samples)

    def between(self, start: int, end: int) -> Floats:
        """Return samples `start` to `end - 1`, or fewer at the end of the stream."""
        assert start >= self._start, "these samples have been discarded"
        return self._samples[start - self._first : max(start, min(end, self._end)) - self._first]

    def discard_before(self, sample: int) -> None:
        """Discard the samples before `sample`."""
        self._start = min(max(self._start, sample), self._end)
        if self._start - self._first > self._end - self._start:  # more is discarded than kept
            self._samples = self.between(self._start, self._end).copy()
            self._first = self._start


class Stream:
    """The state of one stream.

    Parameters
    ----------
    worker : ModelWorker
        Computes the requests; the stream opens its encoders with the worker's backend.
    options : StreamOptions
    plan : LatencyPlan

    Attributes
    ----------
    events : list of Event
        Events since the last `pop_events`.
    """

    def __init__(self, worker: ModelWorker, options: StreamOptions, plan: LatencyPlan) -> None:
        self._worker, self._options, self._plan = worker, options, plan
        self._replacements = worker.options.replacements()
        self.events: list[Event] = []
        self._load_monitor = LoadMonitor(plan.config, level=plan.level, max_level=highest_level(options.finals))
        self._detector, self._snr = worker.speech_detector(), SnrEstimator()
        self._endpointer = Endpointer(
            worker.options.vad_options(),
            sentence_pause_s=options.sentence_pause_s,
            pause_s=options.pause_s,
            max_utterance_frames=FRAMES_PER_POSITION * worker.backend.dims.n_audio_ctx
            - FINAL_SILENCE_FRAMES
            - WINDOW_BUCKET_FRAMES,
        )
        self._samples, self._speech_probs = SampleBuffer(), SampleBuffer()
        self._now_sample = 0
        self._silence_start_frame: int | None = None  # before the last speech probability
        self._noisy = False
        self._utterance: ActiveUtterance | None = None
        self._following: ActiveUtterance | None = None  # which begins where one was split
        self._turn_frame: int | None = None  # of the first part of an utterance whose final waits for the last
        self._shown_text: tuple[str, str] = ("", "")
        self._shown_tokens, self._shown_words_end_s = 0, 0.0
        self._context_tokens: tuple[int, ...] = ()
        self._languages: LanguageProbabilities = {}  # of the stream so far
        self._n_segments = 0
        if plan.level:
            self._emit_load(level=plan.level, lag_s=0.0, detail=plan.detail)

    def feed(self, samples: Floats, waited_s: float = 0.0) -> RequestGenerator:
        """Take the next samples, float32 at 16 kHz, of which the last came `waited_s` ago."""
        self._samples.add(samples)
        if waited_s and self._worker.measures_time:
            self._load_monitor.wait_until(self._samples.end / SAMPLE_RATE + waited_s)
        yield from self._process_probabilities(self._detector.feed(samples))
        yield from self._run_updates_until(self._samples.end)

    def flush(self) -> RequestGenerator:
        """End the current utterance."""
        yield from self._end_by("flush")

    def close(self) -> RequestGenerator:
        """End the stream."""
        yield from self._process_probabilities(self._detector.flush())
        yield from self._end_by("close")

    def pop_events(self) -> list[Event]:
        """Return the events since the last call."""
        popped, self.events = self.events, []
        return popped

    def _process_probabilities(self, probabilities: Floats) -> RequestGenerator:
        """Process the chunks of these speech probabilities one by one, in order of time."""
        for probability in probabilities.tolist():
            start = self._speech_probs.end * CHUNK_SAMPLES
            end = min(start + CHUNK_SAMPLES, self._samples.end)
            yield from self._run_updates_until(end)
            self._now_sample = end
            self._speech_probs.add(np.array([probability], np.float32))
            if end - start == CHUNK_SAMPLES:
                self._snr.feed(self._samples.between(start, end), probability)
            self._silence_start_frame = self._endpointer.silence_start_frame
            yield from self._handle(self._endpointer.feed(probability, sentence_ended=self._sentence_ended))
            needed_frame = self._endpointer.earliest_needed_frame
            if self._turn_frame is not None:
                needed_frame = min(needed_frame, self._turn_frame)
            needed_sample = min(needed_frame * HOP_SAMPLES, self._now_sample)
            self._samples.discard_before(needed_sample)
            self._speech_probs.discard_before(needed_sample // CHUNK_SAMPLES)

    def _end_by(self, reason: str) -> RequestGenerator:
        self._now_sample = self._samples.end
        self._silence_start_frame = self._endpointer.silence_start_frame
        yield from self._handle(self._endpointer.end(self._samples.end // HOP_SAMPLES, reason))

    def _handle(self, endpoints: Sequence[Endpoint]) -> RequestGenerator:
        for endpoint in endpoints:
            if endpoint.reason:
                yield from self._end_utterance(endpoint)
            else:
                self._begin_utterance(endpoint.frame)

    def _begin_utterance(self, start_frame: int) -> None:
        self._utterance = self._following or self._new_utterance(start_frame)
        self._following = None
        self._shown_text, self._shown_tokens = ("", ""), len(self._utterance.committed)
        self._emit(SpeechStarted, start_frame / FRAMES_PER_SECOND)

    def _new_utterance(self, start_frame: int) -> ActiveUtterance:
        backend = self._worker.backend
        encoder = backend.open_encoder(self._plan.config.history_frames)
        audio = UtteranceAudio(encoder, backend.dims.n_mels, start_frame)
        return ActiveUtterance(audio=audio, tokenizer=self._worker.tokenizer)

    def _run_updates_until(self, end: int) -> RequestGenerator:
        """Run the updates that are due up to sample `end`."""
        while (utterance := self._utterance) is not None:
            config, audio = self._current_config(), utterance.audio
            update_sample = max(audio.next_update_sample(config), self._now_sample)
            if update_sample > end:
                break
            self._now_sample = update_sample
            if utterance.is_complete(self._endpointer.silence_start_frame) and audio.can_skip(config):
                utterance.skip_update(config)
                self._emit_interim(utterance)
                self._record_load()
                continue
            audio.add_samples(self._samples.between(audio.next_sample, update_sample))
            response = yield self._partial_request(utterance, audio.next_chunk(config))
            if response.language_known:
                utterance.language = response.language
            if hypothesis := self._accepted(utterance, response):
                utterance.update(hypothesis, config)
                self._emit_interim(utterance, response.compute_s)
            self._record_load(response.compute_s)

    def _end_utterance(self, utterance_end: Endpoint) -> RequestGenerator:
        """Emit the final segments of the current utterance, and its end."""
        utterance, self._utterance = self._utterance, None
        assert utterance, "an utterance that ends has begun"
        exact = self._options.finals != "streamed" and self._load_monitor.level < NO_EXACT_FINALS
        exact |= self._turn_frame is not None  # the final of its first part has waited
        response = ModelResponse()
        if exact:
            if request := self._final_request(utterance, utterance_end):
                response = yield request
        elif not utterance_end.is_continued and utterance.is_complete(self._silence_start_frame):
            utterance.finalize(utterance.uncommitted)
        elif not utterance_end.is_continued or not utterance.audio.has_decoded(utterance_end.frame):
            response = yield from self._decode_last_chunk(utterance, utterance_end.frame)
        if utterance_end.is_continued:
            next_frame = self._endpointer.utterance_start_frame
            assert next_frame is not None, "the next utterance has begun"
            self._following = self._new_utterance(next_frame)
            committed = utterance.split(utterance_end.frame, self._following)
        else:
            committed = utterance.committed_until(utterance_end.frame)
        compute_s = response.compute_s
        final_segments = response.segments if exact else self._committed_segments(utterance, committed)
        if response.segments:
            self._languages = response.languages
        elif not exact and utterance.language:
            self._languages = {utterance.language: 1.0}
        for segment in final_segments:
            self._emit(FinalSegment, segment.end_s, compute_s, segment=replace(segment, index=self._n_segments))
            self._n_segments += 1
        self._context_tokens = self._context_after(final_segments)
        self._emit(SpeechEnded, utterance_end.frame / FRAMES_PER_SECOND, compute_s, reason=utterance_end.reason)
        self._record_load(compute_s)

    def _final_request(self, utterance: ActiveUtterance, utterance_end: Endpoint) -> FinalRequest | None:
        """Return the request for an exact final; None if it waits for the next part of the turn."""
        is_first = self._turn_frame is None
        first_frame = utterance.audio.start_frame if self._turn_frame is None else self._turn_frame
        is_short = utterance_end.frame - first_frame < MAX_TURN_FRAMES
        waits = self._options.finals == "turns" and utterance_end.is_continued and is_short
        self._turn_frame = first_frame if waits else None
        if waits:
            return None
        # The samples of the last, incomplete frame of a stream count in its transcription as a recording too.
        end = self._samples.end if utterance_end.reason == "close" else utterance_end.frame * HOP_SAMPLES
        return FinalRequest(
            samples=self._samples.between(first_frame * HOP_SAMPLES, end),
            start_s=first_frame / FRAMES_PER_SECOND,
            draft_tokens=utterance.tokens if is_first else (),
            context_tokens=self._context_tokens,
            languages=self._languages,
        )

    def _decode_last_chunk(
        self, utterance: ActiveUtterance, end_frame: int
    ) -> Generator[ModelRequest, ModelResponse, ModelResponse]:
        """Decode the rest of an utterance, up to `end_frame`."""
        end, audio = min(end_frame * HOP_SAMPLES, self._samples.end), utterance.audio
        if end > audio.next_sample:
            audio.add_samples(self._samples.between(audio.next_sample, end))
        response = yield self._partial_request(utterance, audio.last_chunk(end_frame))
        utterance.language = utterance.language or response.language
        if hypothesis := self._accepted(utterance, response):
            utterance.finalize(hypothesis)
        return response

    def _committed_segments(self, utterance: ActiveUtterance, committed: Sequence[TimedToken]) -> list[Segment]:
        """Return the segments of streamed finals, without empty ones."""
        sentences = utterance.segments(committed, with_words=self._worker.options.word_timestamps)
        return [
            self._replacements.apply(segment, streamed=True) for segment in sentences if segment.text.strip()
        ]

    def _context_after(self, final_segments: Sequence[Segment]) -> tuple[int, ...]:
        """Return the tokens before the next utterance, as many as can fit into a prompt."""
        options = self._worker.options
        too_hot = any(segment.temperature > options.prompt_reset_temperature for segment in final_segments)
        if too_hot or not options.condition_on_previous_text:
            return ()
        eot, max_tokens = self._worker.tokenizer.eot, self._worker.backend.dims.n_text_ctx
        tokens = (token for segment in final_segments for token in segment.tokens if token < eot)
        return (*self._context_tokens, *tokens)[-max_tokens:]

    def _accepted(self, utterance: ActiveUtterance, response: ModelResponse) -> PartialHypothesis | None:
        """Return a hypothesis, unless it is rejected as a hallucination; it never is behind committed tokens."""
        hypothesis, threshold = response.hypothesis, self._worker.options.hallucination_threshold
        assert hypothesis, "an update gives a hypothesis"
        if utterance.committed or threshold is None:
            return hypothesis
        start = utterance.audio.start_sample // CHUNK_SAMPLES
        speech_probs = self._speech_probs.between(start, self._speech_probs.end)
        if not utterance.is_hallucination(hypothesis, speech_probs, threshold):
            return hypothesis
        utterance.reject(hypothesis)
        return None

    @property
    def _sentence_ended(self) -> bool:
        """True if the shorter pause may end the utterance; short ones are more accurate with their continuation."""
        utterance = self._utterance
        if utterance is None or utterance.audio.heard_frames < MIN_SENTENCE_FRAMES:
            return False
        return utterance.ends_sentence

    def _emit_interim(self, utterance: ActiveUtterance, compute_s: float = 0.0) -> None:
        """Emit the text of the utterance, if it has changed."""
        committed, tentative = (
            self._replacements.in_script(text, utterance.language) for text in utterance.text
        )
        previous_text, self._shown_text = self._shown_text, (committed, tentative)
        if self._shown_text != previous_text:
            new_tokens, self._shown_tokens = utterance.committed[self._shown_tokens :], len(utterance.committed)
            words = utterance.words(new_tokens, self._shown_words_end_s)
            self._shown_words_end_s = words[-1].end_s if words else self._shown_words_end_s
            self._emit(
                Interim,
                (utterance.audio.start_frame + utterance.audio.heard_frames) / FRAMES_PER_SECOND,
                compute_s,
                committed=committed,
                tentative=tentative,
                words=tuple(
                    replace(word, text=self._replacements.in_script(word.text, utterance.language))
                    for word in words
                ),
            )

    def _partial_request(self, utterance: ActiveUtterance, chunk: EncoderChunk) -> PartialRequest:
        return PartialRequest(
            encoder=utterance.audio.encoder,
            chunk=chunk,
            committed=tuple(token.token for token in utterance.committed),
            draft_tokens=utterance.tentative,
            context_tokens=self._context_tokens,
            language=utterance.language,
            previous_language=max(self._languages, key=self._languages.__getitem__, default=None),
            committed_end=utterance.committed[-1].end_position if utterance.committed else 0,
            speech=self._speech_of(utterance, chunk.positions),
        )

    def _speech_of(self, utterance: ActiveUtterance, n_positions: int) -> NDArray[np.bool_]:
        """Return of each position of an utterance whether it holds speech, as far as that is known."""
        samples = utterance.audio.start_sample + SAMPLES_PER_POSITION * np.arange(n_positions)
        chunks = samples // CHUNK_SAMPLES
        first, end = utterance.audio.start_sample // CHUNK_SAMPLES, self._speech_probs.end
        known = chunks[chunks < end] - first
        return self._speech_probs.between(first, end)[known] >= self._worker.options.vad_options().threshold

    def _current_config(self) -> StreamingConfig:
        """Return the configuration for the present noise and load level."""
        config = self._plan.config
        if self._options.adaptive:
            self._noisy = is_noisy(self._snr.snr_db, self._noisy)
            config = config_in_noise(config) if self._noisy else config
        return apply_load_level(self._load_monitor.level, config)

    def _record_load(self, compute_s: float = 0.0) -> None:
        monitor = self._load_monitor
        if monitor.record(self._now_sample / SAMPLE_RATE, compute_s):
            self._emit_load(level=monitor.level, lag_s=monitor.lag_s, detail=LOAD_LEVELS[monitor.level])

    def _emit_load(self, **fields: Any) -> None:
        self._emit(LoadChanged, self._now_sample / SAMPLE_RATE, **fields)

    def _emit(
        self, event_type: Callable[..., Event], audio_s: float, compute_s: float = 0.0, **fields: Any
    ) -> None:
        self.events.append(
            event_type(audio_s=audio_s, emitted_samples=self._now_sample, compute_s=compute_s, **fields)
        )
