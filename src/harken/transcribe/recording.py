"""One recording on its way: windows that follow one another by what was said, and what becomes of it.

Source: openai/whisper, transcribe.py, transcribe; Radford et al. 2022, section 4.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from harken.contract import Floats
from harken.decoding import DecodeStats, make_prompt
from harken.errors import AudioError, Cancelled, HarkenError
from harken.results import DroppedSegment, Segment
from harken.text import to_language_code
from harken.transcribe.callbacks import Callbacks
from harken.transcribe.chunking import ClipSource, FrameSource, FrameSpans, PackedSpeech, SpeechSegmenter
from harken.transcribe.hallucination import mean_speech_probability
from harken.transcribe.language_id import LanguageFilter, LanguageVote
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.window_chain import ChainContext, WindowChain
from harken.transcribe.window_decoder import LanguageProbabilities, WindowDecoder
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

FINAL_SILENCE_FRAMES = 4 * FRAMES_PER_SECOND
"""How much silence behind the end is encoded with it; with 1 s the decoder loops (docs/decisions/fidelity.md)."""
ENCODE_BUCKET_FRAMES = 2 * FRAMES_PER_SECOND
"""To which the length of what is encoded is rounded up, so that there are few shapes to compile for."""
MAX_PARTIAL_WINDOW_RATIO = 2 / 3
"""Above this share a window is encoded whole: windows of one length can be decoded together."""


class RecordingTranscriber:
    """One pass over one recording.

    Parameters
    ----------
    hearing : Hearing
        Decodes its windows.
    blocks : iterator of ndarray
        Samples of the recording, mono float32 at 16 kHz.
    hooks : Hooks
    language : str or None
        Its language, where that is known without an option that says so.
    previous : tuple of int
        What is said in the beginning, as tokens, as far as that is known: a draft of the first window.

    Attributes
    ----------
    ready : deque of Segment
        What has been decoded and not been taken yet.
    finished : bool
        Whether nothing more will come.
    failure : HarkenError or None
        Why the recording broke off, or that it was cancelled.
    dropped : list of Dropped
        What was taken for invented.
    language : str or None
        Code of the language, once it is known.
    language_probability : float or None
        Probability of a language that was detected.
    parallel : bool
        Whether its lanes may be decoded together.
    stats : DecodeStats
        What decoding has cost so far; a pass over windows of several recordings counts for each of them.
    """

    def __init__(
        self,
        window_decoder: WindowDecoder,
        blocks: Iterator[Floats],
        callbacks: Callbacks | None = None,
        *,
        language: str | None = None,
        draft_tokens: tuple[int, ...] = (),
    ) -> None:
        self.window_decoder, self.options, self.callbacks = (
            window_decoder,
            window_decoder.options,
            callbacks or Callbacks(),
        )
        self.ready_segments: deque[Segment] = deque()
        self.dropped: list[DroppedSegment] = []
        self.finished = False
        self.failure: HarkenError | None = None
        language = language if self.options.language is None else self.options.language
        self.language = to_language_code(language) if language is not None else None
        self.language_probability: float | None = None
        self.stats = DecodeStats()
        self._language_filter = LanguageFilter()
        self._segmenter = SpeechSegmenter(blocks, self.options.vad_options()) if self.options.vad else None
        dims = window_decoder.backend.dims
        self._window_frames = FRAMES_PER_POSITION * dims.n_audio_ctx
        self._windows = MelWindows(
            self._segmenter.blocks() if self._segmenter else blocks,
            dims.n_mels,
            self._window_frames,
            pad_with_silence=not window_decoder.exact,
        )
        self._frame_sources = self._packed_sources(self._segmenter) if self._segmenter else self._clip_sources()
        # Clips share what they have read; windows that are conditioned on one another wait for one another.
        self.parallel = self._segmenter is not None and not self.options.condition_on_previous_text
        self._chains: deque[WindowChain] = deque()
        self._draft_tokens = draft_tokens
        self._n_chains_opened = 0
        self._exhausted = False
        self._initial_prompt_tokens = window_decoder.encode_text(self.options.initial_prompt)
        self._context = ChainContext(
            [] if self.options.carry_initial_prompt else list(self._initial_prompt_tokens)
        )
        self._n_segments = 0
        self._decoded_until_s = self._reported_s = 0.0

    @property
    def duration_s(self) -> float:
        """How much of the recording has been read."""
        return self._windows.frames_read / FRAMES_PER_SECOND

    @property
    def speech(self) -> tuple[tuple[float, float], ...] | None:
        """Where voice activity has been found so far, in seconds; None where it is not looked for."""
        if self._segmenter is None:
            return None
        return tuple(_to_seconds(region) for region in self._segmenter.regions)

    def word_regions_s(self, start: int, end_s: float) -> list[tuple[float, float]] | None:
        """Speech near some stretch of the recording, with the silences between words left out."""
        if self._segmenter is None:
            return None
        end = round(end_s * FRAMES_PER_SECOND)
        return [_to_seconds(region) for region in self._segmenter.word_regions(start, end)]

    def mean_speech_probability(self, spans: FrameSpans) -> float | None:
        """Mean probability of speech in some spans of the recording."""
        return (
            None if self._segmenter is None else mean_speech_probability(self._segmenter.probabilities, spans)
        )

    def next_chain(self) -> WindowChain | None:
        """The next chain of windows; None if there is none, or if it has to wait for one that is in work."""
        if self.finished or (self._chains and not (self.parallel and self._language_is_known)):
            return None
        try:
            frame_source = next(self._frame_sources, None)
        except AudioError as failure:
            self.failure, frame_source = failure, None
        if frame_source is None:
            self._exhausted = True
            return None
        context = (
            ChainContext(last_speech_s=frame_source.start_s(0))
            if self.parallel and self._n_chains_opened
            else self._context
        )
        self._chains.append(
            WindowChain(
                self, frame_source, context, is_first=not self._n_chains_opened, draft_tokens=self._draft_tokens
            )
        )
        self._draft_tokens = ()
        self._n_chains_opened += 1
        return self._chains[-1]

    def stop(self, cancelled: Cancelled | None = None) -> None:
        """Decode no more of it; its caller is told if it was cancelled."""
        self.failure = cancelled or self.failure
        self._finish()

    def collect_segments(self) -> None:
        """Take what lanes have to give, in the order of the recording."""
        while self._chains:
            chain = self._chains[0]
            for segment, reason in chain.pop_segments():
                numbered = replace(segment, index=self._n_segments)
                if reason is not None:
                    self.dropped.append(DroppedSegment(segment=numbered, reason=reason))
                    continue
                self.ready_segments.append(numbered)
                self._n_segments += 1
            self._decoded_until_s = max(self._decoded_until_s, chain.decoded_until_s)
            if not chain.ended:
                return
            self._chains.popleft()
        if self._exhausted and not self.finished:
            self._finish()
            self.failure = self.failure or self._windows.failure

    def report_progress(self) -> None:
        """Tell the caller how far it has come, once it has the segments up to there."""
        if self._decoded_until_s > self._reported_s:
            self._reported_s = self._decoded_until_s
            self.callbacks.on_progress(self._reported_s, False)
        if self.finished:
            self.callbacks.on_progress(self.duration_s, True)

    def frames_to_encode(self, content_frames: int) -> int:
        """How much of a window to encode first where so many of its frames hold sound; the rest is quiet."""
        if self.window_decoder.exact:
            return self._window_frames
        rounded_frames = (
            -(-(content_frames + FINAL_SILENCE_FRAMES) // ENCODE_BUCKET_FRAMES) * ENCODE_BUCKET_FRAMES
        )
        return (
            rounded_frames
            if rounded_frames <= self._window_frames * MAX_PARTIAL_WINDOW_RATIO
            else self._window_frames
        )

    def resolve_language(
        self, seek: int, content_frames: int, probabilities: Callable[[], LanguageProbabilities]
    ) -> str:
        """Language of a window: the one asked for, that of the recording, or its own where they may be mixed."""
        if self.options.multilingual:
            self._language_filter = self._language_filter.update(
                probabilities(), content_frames / FRAMES_PER_SECOND
            )
            self.language, self.language_probability = self._language_filter.result
        elif self.language is None:
            self.language, probability = self._vote_on_language(seek, probabilities()).result
            if self.window_decoder.tokenizer.multilingual:
                self.language_probability = probability
        return self.language

    def build_prompt(self, language: str, previous_tokens: list[int]) -> tuple[int, ...]:
        """What the decoder is told before a window."""
        options = self.options
        return make_prompt(
            self.window_decoder.tokenizer,
            self.window_decoder.backend.dims.n_text_ctx,
            language=language,
            task=options.task,
            timestamps=options.timestamps,
            initial_prompt_tokens=self._initial_prompt_tokens if options.carry_initial_prompt else (),
            previous_tokens=previous_tokens,
        )

    def detect_language(self) -> dict[str, float]:
        """Probabilities of the language, from as many windows as that takes; empty where nothing is spoken."""
        chain = self.next_chain()
        request = chain.next_request() if chain else None
        if self.failure:
            raise self.failure
        if not request:
            return {}
        (probabilities,) = self.window_decoder.detect_languages(request.mel[:, :, : request.frames_to_encode])
        return dict(self._vote_on_language(request.seek, probabilities).probabilities)

    def _finish(self) -> None:
        """Let go of all sound: a caller may keep many recordings for what was said in them."""
        self.finished = True
        self._chains.clear()
        self._frame_sources = iter(())
        self._windows.discard_before(self._windows.frames_read)

    def add_stats(self, stats: DecodeStats) -> None:
        """Add what decoding has cost."""
        self.stats += stats

    @property
    def _language_is_known(self) -> bool:
        return self.language is not None or self.options.multilingual

    def _clip_sources(self) -> Iterator[FrameSource]:
        for start, end in self.options.clips(FRAMES_PER_SECOND):
            yield ClipSource(self._windows, start, end)

    def _packed_sources(self, segmenter: SpeechSegmenter) -> Iterator[FrameSource]:
        clips = self.options.clips(FRAMES_PER_SECOND)
        for spans in segmenter.packed_spans(self._windows, clips, self._window_frames):
            yield PackedSpeech(self._windows, spans)

    def _vote_on_language(self, seek: int, probabilities: LanguageProbabilities) -> LanguageVote:
        """Vote on the language, by one window and what lies behind it as far as that is needed."""
        vote = LanguageVote(self.options.language_threshold, self.options.language_windows).update(
            probabilities
        )
        while vote.wants_more:
            seek += self._window_frames
            frames, ceiling = self._windows.read_spans([(seek, seek + self._window_frames)])
            if not frames.shape[1]:
                break
            (window_probabilities,) = self.window_decoder.detect_languages(
                self._windows.pad_and_normalize(frames, ceiling)
            )
            vote = vote.update(window_probabilities)
        return vote


def _to_seconds(region: tuple[int, int]) -> tuple[float, float]:
    return region[0] / FRAMES_PER_SECOND, region[1] / FRAMES_PER_SECOND
