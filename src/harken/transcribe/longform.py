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
from harken.results import Dropped, Segment
from harken.text import resolve
from harken.transcribe.guard import speech_under
from harken.transcribe.hearing import Hearing, Probabilities
from harken.transcribe.hooks import Hooks
from harken.transcribe.lane import Context, Lane
from harken.transcribe.languages import Tracker, Vote
from harken.transcribe.listener import Listener
from harken.transcribe.packing import Spans
from harken.transcribe.views import Clip, Pack, View
from harken.transcribe.windows import MelWindows
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP

QUIET_FRAMES = 4 * FRAMES_PER_SECOND
"""How much silence behind the end is encoded with it; with 1 s the decoder loops (docs/decisions/fidelity.md)."""
ROUND_FRAMES = 2 * FRAMES_PER_SECOND
"""To which the length of what is encoded is rounded up, so that there are few shapes to compile for."""
MOST_OF_A_WINDOW = 2 / 3
"""Above this share a window is encoded whole: windows of one length can be decoded together."""


class LongForm:
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
        hearing: Hearing,
        blocks: Iterator[Floats],
        hooks: Hooks | None = None,
        *,
        language: str | None = None,
        previous: tuple[int, ...] = (),
    ) -> None:
        self.hearing, self.options, self.hooks = hearing, hearing.options, hooks or Hooks()
        self.ready: deque[Segment] = deque()
        self.dropped: list[Dropped] = []
        self.finished = False
        self.failure: HarkenError | None = None
        language = language if self.options.language is None else self.options.language
        self.language = resolve(language) if language is not None else None
        self.language_probability: float | None = None
        self.stats = DecodeStats()
        self._tracker = Tracker()
        self._listener = Listener(blocks, self.options.vad_options()) if self.options.vad else None
        dims = hearing.backend.dims
        self._window_frames = FRAMES_PER_STEP * dims.n_audio_ctx
        self._windows = MelWindows(
            self._listener.blocks() if self._listener else blocks,
            dims.n_mels,
            self._window_frames,
            silence=not hearing.exact,
        )
        self._views = self._packs(self._listener) if self._listener else self._clips()
        # Clips share what they have read; windows that are conditioned on one another wait for one another.
        self.parallel = self._listener is not None and not self.options.condition_on_previous_text
        self._lanes: deque[Lane] = deque()
        self._previous = previous
        self._opened = 0
        self._exhausted = False
        self._prompted = hearing.encode(self.options.initial_prompt)
        self._context = Context([] if self.options.carry_initial_prompt else list(self._prompted))
        self._count = 0
        self._done_s = self._told_s = 0.0

    @property
    def duration_s(self) -> float:
        """How much of the recording has been read."""
        return self._windows.frames_read / FRAMES_PER_SECOND

    @property
    def speech(self) -> tuple[tuple[float, float], ...] | None:
        """Where voice activity has been found so far, in seconds; None where it is not looked for."""
        if self._listener is None:
            return None
        return tuple(_seconds(region) for region in self._listener.regions)

    def speech_between(self, start: int, end_s: float) -> list[tuple[float, float]] | None:
        """Speech near some stretch of the recording, with the silences between words left out."""
        if self._listener is None:
            return None
        end = round(end_s * FRAMES_PER_SECOND)
        return [_seconds(region) for region in self._listener.between_words(start, end)]

    def speech_under(self, spans: Spans) -> float | None:
        """Mean probability of speech in some spans of the recording."""
        return None if self._listener is None else speech_under(self._listener.probabilities, spans)

    def new_lane(self) -> Lane | None:
        """The next chain of windows; None if there is none, or if it has to wait for one that is in work."""
        if self.finished or (self._lanes and not (self.parallel and self._language_is_settled)):
            return None
        try:
            view = next(self._views, None)
        except AudioError as failure:
            self.failure, view = failure, None
        if view is None:
            self._exhausted = True
            return None
        context = Context(last_speech_s=view.start_s(0)) if self.parallel and self._opened else self._context
        self._lanes.append(Lane(self, view, context, first=not self._opened, previous=self._previous))
        self._previous = ()
        self._opened += 1
        return self._lanes[-1]

    def stop(self, cancelled: Cancelled | None = None) -> None:
        """Decode no more of it; its caller is told if it was cancelled."""
        self.failure = cancelled or self.failure
        self._end()

    def collect(self) -> None:
        """Take what lanes have to give, in the order of the recording."""
        while self._lanes:
            lane = self._lanes[0]
            for segment, reason in lane.take_segments():
                numbered = replace(segment, index=self._count)
                if reason is not None:
                    self.dropped.append(Dropped(segment=numbered, reason=reason))
                    continue
                self.ready.append(numbered)
                self._count += 1
            self._done_s = max(self._done_s, lane.done_s)
            if not lane.ended:
                return
            self._lanes.popleft()
        if self._exhausted and not self.finished:
            self._end()
            self.failure = self.failure or self._windows.failure

    def report(self) -> None:
        """Tell the caller how far it has come, once it has the segments up to there."""
        if self._done_s > self._told_s:
            self._told_s = self._done_s
            self.hooks.progress(self._told_s, False)
        if self.finished:
            self.hooks.progress(self.duration_s, True)

    def heard_frames(self, frames: int) -> int:
        """How much of a window to encode first where so many of its frames hold sound; the rest is quiet."""
        if self.hearing.exact:
            return self._window_frames
        heard = -(-(frames + QUIET_FRAMES) // ROUND_FRAMES) * ROUND_FRAMES
        return heard if heard <= self._window_frames * MOST_OF_A_WINDOW else self._window_frames

    def settle_language(self, seek: int, frames: int, probabilities: Callable[[], Probabilities]) -> str:
        """Language of a window: the one asked for, that of the recording, or its own where they may be mixed."""
        if self.options.multilingual:
            self._tracker = self._tracker.hear(probabilities(), frames / FRAMES_PER_SECOND)
            self.language, self.language_probability = self._tracker.result
        elif self.language is None:
            self.language, probability = self._elect(seek, probabilities()).result
            if self.hearing.tokenizer.multilingual:
                self.language_probability = probability
        return self.language

    def prompt(self, language: str, previous: list[int]) -> tuple[int, ...]:
        """What the decoder is told before a window."""
        options = self.options
        return make_prompt(
            self.hearing.tokenizer,
            self.hearing.backend.dims.n_text_ctx,
            language=language,
            task=options.task,
            timestamps=options.timestamps,
            carried=self._prompted if options.carry_initial_prompt else (),
            previous=previous,
        )

    def detect_language(self) -> dict[str, float]:
        """Probabilities of the language, from as many windows as that takes; empty where nothing is spoken."""
        lane = self.new_lane()
        job = lane.job() if lane else None
        if self.failure:
            raise self.failure
        if not job:
            return {}
        (probabilities,) = self.hearing.languages(job.mel[:, :, : job.heard])
        return dict(self._elect(job.seek, probabilities).probabilities)

    def _end(self) -> None:
        """Let go of all sound: a caller may keep many recordings for what was said in them."""
        self.finished = True
        self._lanes.clear()
        self._views = iter(())
        self._windows.forget(self._windows.frames_read)

    def account(self, stats: DecodeStats) -> None:
        """Add what decoding has cost."""
        self.stats += stats

    @property
    def _language_is_settled(self) -> bool:
        return self.language is not None or self.options.multilingual

    def _clips(self) -> Iterator[View]:
        for start, end in self.options.clips(FRAMES_PER_SECOND):
            yield Clip(self._windows, start, end)

    def _packs(self, listener: Listener) -> Iterator[View]:
        clips = self.options.clips(FRAMES_PER_SECOND)
        for spans in listener.packs(self._windows, clips, self._window_frames):
            yield Pack(self._windows, spans)

    def _elect(self, seek: int, probabilities: Probabilities) -> Vote:
        """Vote on the language, by one window and what lies behind it as far as that is needed."""
        vote = Vote(self.options.language_threshold, self.options.language_windows).hear(probabilities)
        while vote.wants_more:
            seek += self._window_frames
            frames, ceiling = self._windows.gather([(seek, seek + self._window_frames)])
            if not frames.shape[1]:
                break
            (more,) = self.hearing.languages(self._windows.padded(frames, ceiling))
            vote = vote.hear(more)
        return vote


def _seconds(region: tuple[int, int]) -> tuple[float, float]:
    return region[0] / FRAMES_PER_SECOND, region[1] / FRAMES_PER_SECOND
