"""One recording that is transcribed: its frame sources, its chains of windows, its language and its segments.

Source: openai/whisper, transcribe.py, transcribe; Radford et al. 2022, section 4.5.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from harken.contract import Floats
from harken.decoding import DecodeStats
from harken.errors import AudioError, OutputError
from harken.results import DroppedSegment, Segment, UnwrittenSpeech
from harken.transcribe.chunking import ClipSource, FrameSource, PackedSpeech, SpeechSegmenter
from harken.transcribe.journal import Journal
from harken.transcribe.language_id import LanguageProbabilities, next_posterior, vote_on_language
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.options import Callbacks
from harken.transcribe.window_chain import ChainContext, KnownText, LanguageState, WindowChain
from harken.transcribe.window_decoder import (
    AudioWindow,
    DecodeRequest,
    EncodedWindow,
    WindowDecoder,
    WindowResult,
)
from harken.transcribe.window_segments import SegmentMaker
from harken.types import FRAMES_PER_SECOND

MAX_BLOCKS_WITHOUT_SPEECH = 10
"""Blocks of half a minute to read in one step: as much work as a window of a small model."""


class RecordingTranscriber:
    """One pass over one recording.

    Parameters
    ----------
    window_decoder : WindowDecoder
    blocks : iterator of ndarray
        Samples of the recording, mono float32 at 16 kHz.
    callbacks : Callbacks or None
    draft : sequence of int
        Text tokens that the recording is expected to have: drafts of all windows.
    previous_tokens : tuple of int
        Text tokens before the recording, for the prompt.
    languages : mapping or None
        Of an utterance of a stream, `language_posterior` of the one before it; empty for the first one.
    journal : Journal or None
        Windows that an earlier process has decoded, and where those decoded now are written.

    Attributes
    ----------
    ready_segments : deque of Segment
        Segments that have been decoded and not been fetched yet.
    finished : bool
        True once no more segments will come.
    failure : Exception or None
        The error that ended the recording early, of a callback or a cancellation included.
    dropped : list of DroppedSegment
        Segments taken for hallucinations.
    unwritten : list of UnwrittenSpeech
        Speech that has no words.
    language : str or None
        Code of the language, once it is known.
    language_probability : float or None
        Probability of a language that was detected.
    language_posterior : mapping
        Probability of each language so far, where it may change: between windows, or between utterances of a stream.
    reads_on : bool
        True if there was no speech in what the last request for a chain has read, and there is more to read.
    parallel : bool
        True if its chains may be decoded together.
    stats : DecodeStats
        Cost of decoding so far; a pass over windows of several recordings counts for each of them.
    """

    def __init__(
        self,
        window_decoder: WindowDecoder,
        blocks: Iterator[Floats],
        callbacks: Callbacks | None = None,
        *,
        draft: Sequence[int] = (),
        previous_tokens: tuple[int, ...] = (),
        languages: LanguageProbabilities | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.window_decoder, self.options = window_decoder, window_decoder.options
        self.callbacks = callbacks or Callbacks()
        self.ready_segments: deque[Segment] = deque()
        self.dropped: list[DroppedSegment] = []
        self.unwritten: list[UnwrittenSpeech] = []
        self.finished = False
        self.failure: Exception | None = None
        self.language = self.options.language_code
        self.language_probability: float | None = None
        self.stats = DecodeStats()
        self.language_posterior = languages or {}
        self._is_utterance = languages is not None
        self._segmenter = (
            SpeechSegmenter(blocks, self.options.vad_options(), window_decoder.speech_detector)
            if self.options.vad
            else None
        )
        self._window_frames = window_decoder.window_frames
        self._windows = MelWindows(
            self._segmenter.blocks() if self._segmenter else blocks,
            window_decoder.backend.dims.n_mels,
            self._window_frames,
        )
        self._frame_sources: Iterator[FrameSource | None] = (
            self._packed_sources(self._segmenter)
            if self._segmenter
            else (ClipSource(self._windows, *clip) for clip in self.options.clips)
        )
        # Clips share what they have read; windows that are conditioned on one another wait for one another.
        self.parallel = self._segmenter is not None and not self.options.condition_on_previous_text
        self._chains: deque[WindowChain] = deque()
        self._known_text = KnownText(draft, window_decoder.backend.dims.n_text_ctx) if draft else None
        self._journal = journal
        self._n_chains_opened = 0
        self._exhausted = self.reads_on = False
        initial = () if self.options.carry_initial_prompt else window_decoder.initial_prompt_tokens
        self._context = ChainContext((*initial, *previous_tokens))
        self._n_segments = 0
        self._replacements = self.options.replacements()
        self._decoded_until_s = self._reported_s = 0.0

    @property
    def duration_s(self) -> float:
        """Seconds of the recording that have been read."""
        return self._windows.frames_read / FRAMES_PER_SECOND

    @property
    def done_s(self) -> float:
        """Seconds of the recording up to the end of its last decoded window; all of them once it has finished."""
        return self.duration_s if self.finished else self._decoded_until_s

    @property
    def speech(self) -> tuple[tuple[float, float], ...] | None:
        """Speech of the clips found so far, start and end in seconds; None without voice activity detection."""
        if self._segmenter is None:
            return None
        spans = (
            (max(first, start), last if end is None else min(last, end))
            for start, end in self.options.clips
            for first, last in self._segmenter.regions
        )
        return tuple((a / FRAMES_PER_SECOND, b / FRAMES_PER_SECOND) for a, b in spans if a < b)

    @property
    def peak(self) -> float | None:
        """Largest magnitude of the samples read so far; None without voice activity detection."""
        return self._segmenter.peak if self._segmenter else None

    def next_chain(self) -> WindowChain | None:
        """Return the next chain of windows; None if there is none, or not yet.

        It may have to wait for an active one, or the last minutes had no speech.
        """
        language_is_known = self.language is not None or self.options.multilingual
        if self.finished or (self._chains and not (self.parallel and language_is_known)):
            return None
        frame_source = self._next_frame_source()
        if frame_source is None:
            return None
        context = (
            ChainContext(last_speech_s=frame_source.start_s(0))
            if self.parallel and self._n_chains_opened
            else self._context
        )
        self._chains.append(
            WindowChain(
                SegmentMaker(self.window_decoder, frame_source, self._segmenter),
                context,
                index=self._n_chains_opened,
                known_text=self._known_text,
            )
        )
        self._n_chains_opened += 1
        return self._chains[-1]

    def next_window(self, chain: WindowChain) -> AudioWindow | None:
        """Return the next window to decode of a chain; None behind its last one, or once the recording has finished."""
        if self.finished:
            return None
        try:
            while window := chain.next_window():
                outcome = self._journal and self._journal.take(chain.index, chain.offset)
                if not outcome:
                    return window
                chain.take(outcome)
                self.language, self.language_probability = outcome.language.code, outcome.language.probability
                self.language_posterior = outcome.language.posterior
                self._forget_language_of_window(chain)
        except AudioError as failure:
            self.failure, chain.ended = failure, True
        except OutputError as failure:
            self._end_with(failure)
        return None

    def request(self, chain: WindowChain, encoded: EncodedWindow) -> DecodeRequest:
        """Return the request to decode an encoded window of a chain, in the language resolved for it."""
        if chain.language is None:
            chain.language = self._resolve_language(encoded)
        return chain.request(encoded, chain.language.code, self.callbacks)

    def add_result(self, chain: WindowChain, result: WindowResult) -> None:
        """Add the result of a window to its chain, and its outcome to the journal."""
        outcome = chain.add_result(result)
        if outcome is None:
            return
        self._forget_language_of_window(chain)
        if self._journal and not self.finished:
            self.collect_segments()  # what is in the journal is in a transcript so far, too
            try:
                self._journal.append(outcome)
            except OutputError as failure:
                self._end_with(failure)

    def stop(self, failure: Exception | None = None) -> None:
        """End the recording, with a failure if one is given."""
        self.failure = failure or self.failure
        self._finish()

    def collect_segments(self) -> None:
        """Collect the segments of its chains, in the order of the recording."""
        while self._chains:
            chain = self._chains[0]
            for outcome in chain.pop_outcomes():
                self.unwritten += outcome.unwritten
                for segment, reason in outcome.segments:
                    numbered = replace(segment, index=self._n_segments)
                    if reason is not None:
                        self.dropped.append(DroppedSegment(segment=numbered, reason=reason))
                        continue
                    self.ready_segments.append(self._replacements.apply(numbered))
                    self._n_segments += 1
            self._decoded_until_s = max(self._decoded_until_s, chain.decoded_until_s)
            if not chain.ended:
                return
            self._chains.popleft()
        if self._exhausted and not self.finished:
            self._finish()
            self.failure = self.failure or self._windows.failure

    def report_progress(self) -> None:
        """Report to the caller how far it has come, once the caller has the segments up to there."""
        if self._decoded_until_s > self._reported_s:
            self._reported_s = self._decoded_until_s
            self.callbacks.on_progress(self._reported_s, False)
        if self.finished and self._reported_s < inf:
            self._reported_s = inf
            self.callbacks.on_progress(self.duration_s, True)

    def detect_language(self) -> dict[str, float]:
        """Return language probabilities from as many windows as that takes; empty for a recording without speech."""
        while not (chain := self.next_chain()) and not self._exhausted:
            pass
        window = self.next_window(chain) if chain else None
        if self.failure:
            raise self.failure
        if not window:
            return {}
        (encoded,) = self.window_decoder.encode([window])
        return self._vote_on_language(encoded)

    def _end_with(self, failure: OutputError) -> None:
        """End the recording, as its journal cannot be kept."""
        self.collect_segments()
        self.stop()
        self.failure = failure

    def _finish(self) -> None:
        """Release all audio, and its file: a caller may keep many recordings for their text."""
        self.finished = True
        self._chains.clear()
        self._frame_sources = iter(())
        self._windows.close()
        if self._journal:
            self._journal.close()

    def _next_frame_source(self) -> FrameSource | None:
        """Return the next frame source; None behind the last, or after minutes without speech."""
        self.reads_on = False
        for _ in range(MAX_BLOCKS_WITHOUT_SPEECH):
            try:
                frame_source = next(self._frame_sources)
            except StopIteration:
                self._exhausted = True
                break
            except AudioError as failure:
                self.failure, self._exhausted = failure, True
                break
            if frame_source:
                return frame_source
        else:
            self.reads_on = True
        return None

    def _packed_sources(self, segmenter: SpeechSegmenter) -> Iterator[FrameSource | None]:
        """Yield packed speech, and None wherever none is complete after another block."""
        # The language changes between regions; a window has only one.
        apart = self.options.multilingual
        for spans in segmenter.packed_spans(
            self._windows, self.options.clips, self._window_frames, apart=apart
        ):
            yield PackedSpeech(self._windows, spans) if spans else None

    def _forget_language_of_window(self, chain: WindowChain) -> None:
        if not self.parallel:  # else other chains may have gone on, and changed the language of the recording
            chain.language = None

    def _resolve_language(self, encoded: EncodedWindow) -> LanguageState:
        """Return the language of a window: that of the recording, or its own if languages may be mixed."""
        multilingual = self.options.multilingual
        if multilingual or (self._is_utterance and self.language is None):
            probabilities_of = (
                self.window_decoder.language_probabilities if multilingual else self._vote_on_language
            )
            speech_s = encoded.window.content_frames / FRAMES_PER_SECOND
            self.language_posterior = next_posterior(
                self.language_posterior, probabilities_of(encoded), speech_s
            )
            likeliest = max(self.language_posterior.items(), key=lambda item: item[1])
            self.language, self.language_probability = likeliest
        elif self.language is None:
            self.language, probability = next(iter(self._vote_on_language(encoded).items()))
            if self.window_decoder.tokenizer.multilingual:
                self.language_probability = probability
        return LanguageState(
            code=self.language,
            probability=self.language_probability,
            posterior=self.language_posterior,
        )

    def _vote_on_language(self, encoded: EncodedWindow) -> dict[str, float]:
        """Return the probability of each language, from one window and as many of those behind it as needed."""
        windows = map(self.window_decoder.language_probabilities, self._encoded_from(encoded))
        return vote_on_language(windows, self.options.language_threshold, self.options.language_windows)

    def _encoded_from(self, encoded: EncodedWindow) -> Iterator[EncodedWindow]:
        """Yield an encoded window, and those behind it in its clip, whole and as they are."""
        yield encoded
        first = encoded.window.seek
        ends = (end or sys.maxsize for start, end in self.options.clips if start <= first)
        clip_end = next((end for end in ends if first < end), sys.maxsize)
        for seek in range(first + self._window_frames, clip_end, self._window_frames):
            mel, n_frames = self._windows.window(seek, clip_end)
            if not n_frames:
                return
            window = AudioWindow(mel=mel, content_frames=n_frames, seek=seek, is_first=False)
            yield from self.window_decoder.encode([window], whole=True)
