"""The sliding loop over a recording: 30 s windows that seek by the last timestamp.

Source: openai/whisper, transcribe.py, transcribe; Radford et al. 2022, section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harken.contract import Backend, Features, Floats
from harken.decoding import (
    Decoded,
    DecodeStats,
    Observer,
    Rules,
    Step,
    Window,
    language_probabilities,
    make_prompt,
    make_rules,
)
from harken.errors import Cancelled
from harken.results import Attempt, Segment
from harken.text import Tokenizer, resolve
from harken.transcribe.fallback import decode_with_fallback
from harken.transcribe.options import TranscribeOptions
from harken.transcribe.segments import Cut, cut
from harken.transcribe.windows import MelWindows
from harken.types import FRAMES_PER_SECOND

FRAMES_PER_STEP = 2
"""Mel frames per frame of the encoder's output and per step of timestamps: the second convolution's stride."""
QUIET_FRAMES = 4 * FRAMES_PER_SECOND
"""How much silence behind the end is encoded with it; with 1 s the decoder loops (docs/decisions/fidelity.md)."""
ROUND_FRAMES = 2 * FRAMES_PER_SECOND
"""To which the length of what is encoded is rounded up, so that there are few shapes to compile for."""

Progress = Callable[[float, bool], None]
"""Called with the seconds of the recording that are done, and whether that is all of it."""
WindowObserver = Callable[[float, tuple[int, ...]], None]
"""Called with where a window begins, in seconds, and the prompt that it is decoded after."""
ResultObserver = Callable[[Decoded, tuple[Attempt, ...]], None]
"""Called with what was kept of a window, and what was tried for it, the one kept last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a caller wants to know and to decide while a recording is transcribed.

    Parameters
    ----------
    progress : callable
        Called after every window.
    observe : callable
        Called at every decoder step.
    window : callable
        Called before the first step of every window, and again where a window is encoded anew.
    decided : callable
        Called once a window has been decoded, before its segments.
    cancelled : callable
        Asked at every decoder step; once it answers True, `Cancelled` is raised.
    """

    progress: Progress = lambda done_s, finished: None
    observe: Observer = lambda step: None
    window: WindowObserver = lambda start_s, prompt: None
    decided: ResultObserver = lambda decoded, attempts: None
    cancelled: Callable[[], bool] = lambda: False

    def on_step(self, step: Step) -> None:
        """Ask, then tell."""
        if self.cancelled():
            raise Cancelled("cancelled by the caller")
        self.observe(step)


@dataclass(slots=True)
class LongForm:
    """One pass over one recording. Iterate over `segments`; the other attributes fill on the way.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    blocks : iterator of ndarray
        Samples of the recording, mono float32 at 16 kHz.
    options : TranscribeOptions
    hooks : Hooks

    Attributes
    ----------
    language : str or None
        Code of the language, once it is known.
    language_probability : float or None
        Probability of a language that was detected.
    duration_s : float
        How much of the recording has been read.
    stats : DecodeStats
        What decoding has cost so far.
    """

    backend: Backend
    tokenizer: Tokenizer
    blocks: Iterator[Floats]
    options: TranscribeOptions
    hooks: Hooks = field(default_factory=Hooks)
    language: str | None = None
    language_probability: float | None = None
    duration_s: float = 0.0
    stats: DecodeStats = field(default_factory=DecodeStats)
    _previous: list[int] = field(default_factory=list)
    _count: int = 0

    def segments(self) -> Iterator[Segment]:
        """Segments as windows are decoded.

        Raises
        ------
        AudioError
            Where the recording breaks off; after the segments before that.
        Cancelled
            Within one decoder step of the hook's answer.
        """
        options, dims = self.options, self.backend.dims
        if options.initial_prompt:
            self._previous = self.tokenizer.encode(" " + options.initial_prompt.strip())
        rules = make_rules(
            self.tokenizer,
            timestamps=options.timestamps,
            suppress_tokens=options.suppress_tokens,
            suppress_blank=options.suppress_blank,
            max_initial_timestamp_s=options.max_initial_timestamp_s,
        )
        # A window without timestamps is one segment, whatever a model puts into it.
        begin = self.tokenizer.timestamp_begin if options.timestamps else self.tokenizer.n_vocab
        exact = options.is_exact(self.backend.capabilities.precision)
        windows = MelWindows(self.blocks, dims.n_mels, FRAMES_PER_STEP * dims.n_audio_ctx, silence=not exact)
        for seek, end in options.clips(FRAMES_PER_SECOND):
            while end is None or seek < end:
                mel, frames = windows.window(seek, end)
                self.duration_s = windows.frames_read / FRAMES_PER_SECOND
                if not frames:
                    break
                heard = mel if exact else mel[:, :, : _with_quiet(frames)]
                decoded, attempts = self._decode(heard, mel, seek, rules)
                advance = frames / FRAMES_PER_STEP
                if not options.is_silence(decoded):
                    cuts, advance = cut(decoded.hypothesis.tokens, begin, advance)
                    yield from self._keep(cuts, seek, seek + frames, decoded, attempts)
                seek += min(round(advance * FRAMES_PER_STEP), frames)  # not into the padding
                self.hooks.progress(seek / FRAMES_PER_SECOND, False)
        self.hooks.progress(self.duration_s, True)
        if windows.failure:
            raise windows.failure

    def _decode(
        self, heard: Floats, mel: Floats, seek: int, rules: Rules
    ) -> tuple[Decoded, tuple[Attempt, ...]]:
        """Best result for one window, and what was tried for it.

        What was heard of the window is tried first, where that is less than all of it, and a result that fails a
        threshold or says that nothing was spoken is not relied on.
        """
        options = self.options
        rejected: tuple[Attempt, ...] = ()
        if heard.shape < mel.shape:
            decoded, attempts = self._descend(
                heard, seek, rules, replace(options, temperatures=options.temperatures[:1])
            )
            reason = options.rejection(decoded) or ("no speech" if options.is_silence(decoded) else None)
            if reason is None:
                self.hooks.decided(decoded, attempts)
                return decoded, attempts
            rejected = (replace(attempts[0], reason=f"{reason}, in the part of the window that was heard"),)
        decoded, attempts = self._descend(mel, seek, rules, options)
        self.hooks.decided(decoded, (*rejected, *attempts))
        return decoded, (*rejected, *attempts)

    def _descend(
        self, mel: Floats, seek: int, rules: Rules, options: TranscribeOptions
    ) -> tuple[Decoded, tuple[Attempt, ...]]:
        """Encode, and go down the fallback ladder."""
        features = self.backend.encode(mel)
        if self.language is None:
            self._settle_language(features)
        prompt = make_prompt(
            self.tokenizer,
            self.backend.dims.n_text_ctx,
            language=self.language,
            task=options.task,
            timestamps=options.timestamps,
            previous=self._previous,
        )
        self.hooks.window(seek / FRAMES_PER_SECOND, prompt)
        decoded, attempts, stats = decode_with_fallback(
            self.backend,
            features,
            Window(audio=0, prompt=prompt, seed=(options.seed, seek)),
            tokenizer=self.tokenizer,
            rules=rules,
            options=options,
            observe=self.hooks.on_step,
        )
        self.stats += stats
        return decoded, attempts

    def _keep(
        self, cuts: Sequence[Cut], seek: int, end: int, decoded: Decoded, attempts: tuple[Attempt, ...]
    ) -> Iterator[Segment]:
        """Segments of one window that say something; what they say is the next window's previous text."""
        options = self.options

        def time_s(step: float) -> float:
            """Time of a timestamp; those in the padding stand for the end of what the window holds."""
            return min(seek + step * FRAMES_PER_STEP, end) / FRAMES_PER_SECOND

        spoken = [(piece, self.tokenizer.decode(piece.tokens)) for piece in cuts if piece.start < piece.end]
        spoken = [(piece, text) for piece, text in spoken if text.strip()]
        kept = self.backend.dims.n_text_ctx  # more than a prompt takes
        self._previous = [*self._previous, *(token for piece, _ in spoken for token in piece.tokens)][-kept:]
        if decoded.temperature > options.prompt_reset_temperature or not options.condition_on_previous_text:
            self._previous = []
        for piece, text in spoken:
            yield Segment(
                index=self._count,
                start_s=time_s(piece.start),
                end_s=time_s(piece.end),
                text=text,
                tokens=piece.tokens,
                temperature=decoded.temperature,
                avg_logprob=decoded.hypothesis.avg_logprob,
                compression_ratio=decoded.compression_ratio,
                no_speech_prob=decoded.no_speech_prob,
                seek_s=seek / FRAMES_PER_SECOND,
                attempts=attempts,
            )
            self._count += 1

    def _settle_language(self, features: Features) -> None:
        """Take the language that was asked for, else the most probable one of the first window."""
        if self.options.language is not None:
            self.language = resolve(self.options.language)
            return
        (probabilities,) = language_probabilities(self.backend, features, self.tokenizer)
        self.language = next(iter(probabilities))
        if self.tokenizer.multilingual:
            self.language_probability = probabilities[self.language]


def _with_quiet(frames: int) -> int:
    """Frames of a window to encode where only the first `frames` hold sound; the rest of it is known to be quiet."""
    return -(-(frames + QUIET_FRAMES) // ROUND_FRAMES) * ROUND_FRAMES
