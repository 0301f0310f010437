"""One recording on its way: windows that follow one another by what was said, and what becomes of it.

Source: openai/whisper, transcribe.py, transcribe; Radford et al. 2022, section 4.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harken.contract import Floats
from harken.decoding import DecodeStats, make_prompt
from harken.errors import AudioError
from harken.results import Dropped, Segment
from harken.text import resolve
from harken.transcribe.hearing import Hearing, Job, Outcome, Probabilities
from harken.transcribe.hooks import Hooks
from harken.transcribe.languages import Tracker, Vote
from harken.transcribe.listener import Listener
from harken.transcribe.packing import Packer
from harken.transcribe.segments import Cut, cut
from harken.transcribe.views import Clip, Pack, View
from harken.transcribe.windows import MelWindows
from harken.types import FRAMES_PER_SECOND

FRAMES_PER_STEP = 2
"""Mel frames per frame of the encoder's output and per step of timestamps: the second convolution's stride."""
QUIET_FRAMES = 4 * FRAMES_PER_SECOND
"""How much silence behind the end is encoded with it; with 1 s the decoder loops (docs/decisions/fidelity.md)."""
ROUND_FRAMES = 2 * FRAMES_PER_SECOND
"""To which the length of what is encoded is rounded up, so that there are few shapes to compile for."""


class LongForm:
    """One pass over one recording.

    Parameters
    ----------
    hearing : Hearing
        Decodes its windows.
    blocks : iterator of ndarray
        Samples of the recording, mono float32 at 16 kHz.
    hooks : Hooks

    Attributes
    ----------
    ready : deque of Segment
        What has been decoded and not been taken yet.
    finished : bool
        Whether nothing more will come.
    failure : AudioError or None
        Why the recording broke off.
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

    def __init__(self, hearing: Hearing, blocks: Iterator[Floats], hooks: Hooks | None = None) -> None:
        self.hearing, self.options, self.hooks = hearing, hearing.options, hooks or Hooks()
        self.ready: deque[Segment] = deque()
        self.dropped: list[Dropped] = []
        self.finished = False
        self.failure: AudioError | None = None
        self.language = resolve(self.options.language) if self.options.language is not None else None
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
        self._opened = 0
        self._exhausted = False
        self._prompted = self._encode(self.options.initial_prompt)
        self._previous = [] if self.options.carry_initial_prompt else list(self._prompted)
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
        return tuple(
            (start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in self._listener.regions
        )

    def new_lane(self) -> Lane | None:
        """The next chain of windows; None if there is none, or if it has to wait for one that is in work."""
        if self._lanes and not (self.parallel and self._language_is_settled):
            return None
        try:
            view = next(self._views, None)
        except AudioError as failure:
            self.failure, view = failure, None
        if view is None:
            self._exhausted = True
            return None
        previous = self._previous if not (self.parallel and self._opened) else []
        self._lanes.append(Lane(self, view, previous, first=not self._opened))
        self._opened += 1
        return self._lanes[-1]

    def stop(self) -> None:
        """Decode no more of it."""
        self._lanes.clear()
        self._exhausted = self.finished = True

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
            self.finished = True
            self.failure = self.failure or self._windows.failure

    def report(self) -> None:
        """Tell the caller how far it has come, once it has the segments up to there."""
        if self._done_s > self._told_s:
            self._told_s = self._done_s
            self.hooks.progress(self._told_s, False)
        if self.finished:
            self.hooks.progress(self.duration_s, True)

    def heard_frames(self, frames: int) -> int:
        """How much of a window to encode first where so many of its frames hold sound; the rest is known to be quiet."""
        if self.hearing.exact:
            return self._window_frames
        return min(-(-(frames + QUIET_FRAMES) // ROUND_FRAMES) * ROUND_FRAMES, self._window_frames)

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

    def prompt(self, language: str, previous: list[int], seek: int) -> tuple[int, ...]:
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
        """Vote on the language, by one window and the stretches of the recording behind it as far as they are needed."""
        vote = Vote(self.options.language_threshold, self.options.language_windows).hear(probabilities)
        while vote.wants_more:
            seek += self._window_frames
            frames, ceiling = self._windows.gather([(seek, seek + self._window_frames)])
            if not frames.shape[1]:
                break
            (more,) = self.hearing.languages(self._windows.padded(frames, ceiling))
            vote = vote.hear(more)
        return vote

    def _encode(self, text: str | None) -> list[int]:
        return self.hearing.tokenizer.encode(" " + text.strip()) if text else []


class Lane:
    """A chain of windows: each begins where what was said in the one before it ended.

    Attributes
    ----------
    ended : bool
        Whether it has no more windows.
    done_s : float
        How far it has come in the recording.
    """

    def __init__(self, form: LongForm, view: View, previous: list[int], *, first: bool) -> None:
        self._form, self._view, self._previous, self._first = form, view, previous, first
        self._at, self._frames = 0, 0
        self._language: str | None = None
        self._segments: list[tuple[Segment, str | None]] = []
        self.ended = False
        self.done_s = 0.0

    def job(self) -> Job | None:
        """The next window, if there is one."""
        form = self._form
        if form.finished:
            return None
        try:
            mel, self._frames = self._view.window(self._at)
        except AudioError as failure:
            form.failure, self._frames = failure, 0
        if not self._frames:
            self.ended = True
            return None
        return Job(
            mel=mel,
            heard=form.heard_frames(self._frames),
            seek=self._seek,
            opens=self._first and not self._at,
            language=self._settle_language,
            prompt=lambda language: form.prompt(language, self._previous, self._seek),
            account=form.account,
            hooks=form.hooks,
        )

    def take(self, outcome: Outcome) -> None:
        """Cut what was said into segments and go on behind it."""
        form, decoded = self._form, outcome.decoded
        advance = self._frames / FRAMES_PER_STEP
        if not form.options.is_silence(decoded):
            # A window without timestamps is one segment, whatever a model puts into it.
            tokenizer = form.hearing.tokenizer
            begin = tokenizer.timestamp_begin if form.options.timestamps else tokenizer.n_vocab
            cuts, advance = cut(decoded.hypothesis.tokens, begin, advance, whole=self._view.whole)
            self._keep(cuts, outcome)
        self._at += min(round(advance * FRAMES_PER_STEP), self._frames)  # not into the padding
        self.done_s = self._view.end_s(self._at)
        if not form.parallel:  # else other lanes may have gone on, and what is known of the language with them
            self._language = None

    def take_segments(self) -> list[tuple[Segment, str | None]]:
        """What has been said since it was asked last, each with the reason if it was taken for invented."""
        taken, self._segments = self._segments, []
        return taken

    @property
    def _seek(self) -> int:
        """Frame of the recording where the next window begins."""
        return round(self._view.start_s(self._at) * FRAMES_PER_SECOND)

    def _settle_language(self, probabilities: Callable[[], Probabilities]) -> str:
        """Settled once a window, however often it is encoded."""
        if self._language is None:
            self._language = self._form.settle_language(self._seek, self._frames, probabilities)
        return self._language

    def _keep(self, cuts: Sequence[Cut], outcome: Outcome) -> None:
        """Segments that say something; what they say is the next window's previous text."""
        form, decoded = self._form, outcome.decoded
        options, tokenizer = form.options, form.hearing.tokenizer
        spoken = [(piece, tokenizer.decode(piece.tokens)) for piece in cuts if piece.start < piece.end]
        spoken = [(piece, text) for piece, text in spoken if text.strip()]
        self._previous += [token for piece, _ in spoken for token in piece.tokens]
        del self._previous[: -form.hearing.backend.dims.n_text_ctx]  # more than a prompt takes
        if decoded.temperature > options.prompt_reset_temperature or not options.condition_on_previous_text:
            self._previous.clear()
        for piece, text in spoken:
            segment = Segment(
                index=0,
                start_s=self._view.start_s(self._place(piece.start)),
                end_s=self._view.end_s(self._place(piece.end)),
                text=text,
                tokens=piece.tokens,
                temperature=decoded.temperature,
                avg_logprob=decoded.hypothesis.avg_logprob,
                compression_ratio=decoded.compression_ratio,
                no_speech_prob=decoded.no_speech_prob,
                seek_s=self._seek / FRAMES_PER_SECOND,
                attempts=outcome.attempts,
                language=outcome.language,
            )
            self._segments.append((segment, None))

    def _place(self, step: float) -> float:
        """Frame of the view for a timestamp; those in the padding stand for the end of what the window holds."""
        return self._at + min(step * FRAMES_PER_STEP, self._frames)
