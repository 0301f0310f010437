"""How long a word takes: what it waits for, which follows from the setting, and what this machine computes.

::

    T_total = T_wait + T_process

A word is shown by the first update whose window ends behind it, and windows end every hop. It is committed
once there is `hold` more sound behind it, and an update for every further hypothesis that has to agree. Half an
FFT window more is needed at the edge of what was heard. This holds for sessions that do an update as soon as
its last sample is there, and hear an utterance from its first hop on, in windows that grow until there is a
history. docs/streaming.md derives it, and says what it does not cover.

`T_process` is one update with the longest of these windows, as measured: where updates take less than a hop,
none waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from harken.audio.mel import FFT_SAMPLES
from harken.audio.vad import CHUNK_SAMPLES, VadOptions
from harken.contract import Backend
from harken.errors import OptionError
from harken.streaming.config import (
    PRESETS,
    StreamingConfig,
    StreamOptions,
    interpolated_presets,
    scale_window,
    with_overrides,
)
from harken.streaming.snr import NOISY_WINDOW_FRAMES
from harken.streaming.utterance import ALIGNATT_THRESHOLD_FRAMES, TRAILING_SILENCE_FRAMES
from harken.text import Tokenizer
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, SAMPLE_RATE

STFT_LOOK_AHEAD_S = FFT_SAMPLES / 2 / SAMPLE_RATE
"""The convolutions see one frame behind a window, which is centred on the first sample behind it."""
MAX_UTILISATION = 0.8
"""Most of a hop that an update may take: finals, and whatever else the machine does, need some of it too."""
FAST_SPEECH_TOKENS_PER_S = 6.0
"""Of fast speech: more than 4 words a second, with their punctuation."""
HOP_STEP_FRAMES = 10

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCost:
    """What an update takes on one machine, with one model, for so many streams at once.

    Parameters
    ----------
    base_s : float
        Whatever its size.
    frame_s : float
        For each mel frame of its window.
    token_s : float
        For each token that is chosen in it.
    """

    base_s: float = 0.0
    per_frame_s: float = 0.0
    per_token_s: float = 0.0

    def update_s(self, window_frames: int, tokens: float) -> float:
        """Seconds that an update takes."""
        return self.base_s + self.per_frame_s * window_frames + self.per_token_s * tokens


def measure_update_cost(
    run_update: Callable[[int, int], object],
    clock: Callable[[], float],
    *,
    windows: tuple[int, int] = (100, 1400),
    tokens: tuple[int, int] = (4, 24),
    repeats: int = 3,
) -> UpdateCost:
    """Find out what an update takes.

    Parameters
    ----------
    update : callable
        Does an update with a window of so many frames that chooses so many tokens, behind as much text as an
        utterance may have.
    clock : callable
        Seconds, from wherever; if it stands still, nothing costs anything.
    windows, tokens : tuple of two int
        The smallest and the largest: the longest windows of the presets lie between. There an update costs less
        than the line through both ends says, since attention grows faster than that; beyond them it costs more.
    repeats : int
        How often each is timed, after one that is not.

    Returns
    -------
    Cost
        Through the medians: what a machine does beside it for a moment is not for it to refuse a delay by.
    """

    def timed(window_frames: int, n_tokens: int) -> float:
        run_update(window_frames, n_tokens)
        seconds = []
        for _ in range(repeats):
            start = clock()
            run_update(window_frames, n_tokens)
            seconds.append(clock() - start)
        return median(seconds)

    smallest_s = timed(windows[0], tokens[0])
    per_frame_s = max(0.0, timed(windows[1], tokens[0]) - smallest_s) / (windows[1] - windows[0])
    per_token_s = max(0.0, timed(windows[0], tokens[1]) - smallest_s) / (tokens[1] - tokens[0])
    base_s = max(0.0, smallest_s - per_frame_s * windows[0] - per_token_s * tokens[0])
    return UpdateCost(base_s=base_s, per_frame_s=per_frame_s, per_token_s=per_token_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBound:
    """How long a word takes at most, from its end, in seconds.

    Parameters
    ----------
    wait_s : float
        Until all samples are there that it is committed by.
    interim_wait_s : float
        Until those are there that it is shown by.
    process_s : float
        What the update takes that does it.
    hop_s : float
        From one update to the next.
    """

    wait_s: float
    interim_wait_s: float
    process_s: float
    hop_s: float

    @property
    def total_s(self) -> float:
        """Until a word is committed."""
        return self.wait_s + self.process_s

    @property
    def interim_s(self) -> float:
        """Until a word is shown."""
        return self.interim_wait_s + self.process_s

    @property
    def total_ms(self) -> int:
        """`total_s` in whole milliseconds, rounded up."""
        return _ceil_ms(self.total_s)

    @property
    def utilisation(self) -> float:
        """How much of the time updates take."""
        return self.process_s / self.hop_s

    @property
    def sustainable(self) -> bool:
        """Whether updates can be kept up."""
        return self.utilisation <= MAX_UTILISATION

    @property
    def breakdown(self) -> str:
        """What the time to a commit is made of, in words."""
        wait_ms = _ceil_ms(self.wait_s)
        return f"{wait_ms} ms of waiting + {self.total_ms - wait_ms} ms of computing"

    @property
    def overload_reason(self) -> str:
        """Why it is not sustainable, in words."""
        hop_ms = self.hop_s * _MS_PER_S
        limit = f"{MAX_UTILISATION:.0%} of the {hop_ms:.0f} ms between two"
        return f"an update takes {self.process_s * _MS_PER_S:.0f} ms, more than {limit}"

    def __str__(self) -> str:
        return f"shown within {self.interim_s:.2f} s, committed within {self.total_s:.2f} s ({self.breakdown})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlan:
    """A setting, and how long a word takes with it."""

    config: StreamingConfig
    bound: LatencyBound


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlanner:
    """What a machine can keep, of what is asked of it.

    Parameters
    ----------
    cost : Cost
        Nothing costs anything by default: what is left is what a word waits for.
    options : StreamOptions
    margin_frames : int
        A word that the decoder listens to within so many frames of the edge is not shown yet (AlignAtt).
    min_speech_s : float
        Speech that has to be heard before an utterance begins.
    """

    cost: UpdateCost = UpdateCost()
    options: StreamOptions = field(default_factory=StreamOptions)
    alignatt_threshold_frames: int = ALIGNATT_THRESHOLD_FRAMES
    min_speech_s: float = VadOptions().min_speech_s

    def bound(self, config: StreamingConfig) -> LatencyBound:
        """How long a word takes with a setting."""
        hop_s = config.hop_frames / FRAMES_PER_SECOND
        alignatt_threshold_s = self.alignatt_threshold_frames / FRAMES_PER_SECOND
        commit_delay_s = max(config.commit_delay_frames / FRAMES_PER_SECOND, alignatt_threshold_s)
        longest = scale_window(config, NOISY_WINDOW_FRAMES) if self.options.adaptive else config
        return LatencyBound(
            wait_s=self._window_wait_s(commit_delay_s, hop_s) + (config.local_agreement - 1) * hop_s,
            interim_wait_s=self._window_wait_s(alignatt_threshold_s, hop_s),
            process_s=self.cost.update_s(longest.max_window_frames, max_new_tokens(config)),
            hop_s=hop_s,
        )

    def choose(self) -> LatencyPlan:
        """The setting for the delay that the options ask for.

        A name stands for its preset. A number of milliseconds is given to the best setting that keeps it: the
        first of `harken.streaming.config.ladder` that can, with its own hop, or else with the next longer one
        in steps of 0.1 s, up to half of its window. What is left of the delay is spent on hold, up to that of
        high. What the options say about a setting themselves stays as they say.

        Raises
        ------
        OptionError
            If the machine cannot keep the delay, with what it can; or if another option is not allowed.
        """
        delay = self.options.delay
        if delay in PRESETS:
            plan = self._plan(with_overrides(PRESETS[delay], self.options))
            if plan.bound.sustainable:
                return plan
            raise self._preset_too_slow(plan.bound)
        for plan in self._sustainable_plans():
            if plan.bound.total_ms <= int(delay):
                return self._with_longer_commit_delay(plan, int(delay))
        raise self._delay_too_short()

    def _sustainable_plans(self) -> list[LatencyPlan]:
        """Plans for those who ask for milliseconds, the best first."""
        return [plan for plan in map(self._plan, self._candidate_configs()) if plan.bound.sustainable]

    def _candidate_configs(self) -> Iterator[StreamingConfig]:
        for config in (with_overrides(preset, self.options) for preset in interpolated_presets()):
            yield config
            if self.options.hop_frames is None:
                first, last = config.hop_frames + HOP_STEP_FRAMES, config.window_frames // 2
                for hop_frames in range(first, last + 1, HOP_STEP_FRAMES):
                    yield replace(config, hop_frames=hop_frames)

    def _with_longer_commit_delay(self, plan: LatencyPlan, delay_ms: int) -> LatencyPlan:
        """A plan with as much more hold as the delay allows."""
        if self.options.commit_delay_frames is not None:
            return plan
        for commit_delay_frames in range(
            PRESETS["high"].commit_delay_frames, plan.config.commit_delay_frames, -1
        ):
            longer = self._plan(replace(plan.config, commit_delay_frames=commit_delay_frames))
            if longer.bound.sustainable and longer.bound.total_ms <= delay_ms:
                return longer
        return plan

    def _preset_too_slow(self, preset_bound: LatencyBound) -> OptionError:
        """Refuse a name."""
        if not (plans := self._sustainable_plans()):
            return self._none_sustainable()
        names = [
            name
            for name, preset in PRESETS.items()
            if self.bound(with_overrides(preset, self.options)).sustainable
        ]
        allowed = ", ".join([*names, f"or at least {_lowest_latency(plans).total_ms} ms"]).removeprefix("or ")
        return OptionError(
            "delay", self.options.delay, f"{allowed} on this machine: {preset_bound.overload_reason}"
        )

    def _delay_too_short(self) -> OptionError:
        """Refuse a number of milliseconds."""
        if not (plans := self._sustainable_plans()):
            return self._none_sustainable()
        lowest = _lowest_latency(plans)
        allowed = f"at least {lowest.total_ms} ms on this machine: {lowest.breakdown} at the smallest setting"
        return OptionError("delay", self.options.delay, allowed)

    def _none_sustainable(self) -> OptionError:
        """Refuse whatever is asked."""
        bounds = [self.bound(config) for config in self._candidate_configs()]
        best = min(bounds, key=lambda bound: bound.utilisation)
        return OptionError(
            "delay", self.options.delay, f"none on this machine, with this model: {best.overload_reason}"
        )

    def _plan(self, config: StreamingConfig) -> LatencyPlan:
        return LatencyPlan(config=config, bound=self.bound(config))

    def _window_wait_s(self, following_s: float, hop_s: float) -> float:
        """Until there is a window that ends so much behind a word; an utterance has to have begun, too."""
        return max(following_s + hop_s + STFT_LOOK_AHEAD_S, speech_detection_delay_s(self.min_speech_s))


def _ceil_ms(seconds: float) -> int:
    return math.ceil(round(seconds * _MS_PER_S, 6))


def _lowest_latency(plans: Sequence[LatencyPlan]) -> LatencyBound:
    return min((plan.bound for plan in plans), key=lambda bound: bound.total_s)


def max_new_tokens(config: StreamingConfig) -> int:
    """Tokens that an update chooses at most: all of what is not committed yet, none of it as it was before."""
    frames = config.commit_delay_frames + config.local_agreement * config.hop_frames
    return math.ceil(FAST_SPEECH_TOKENS_PER_S * frames / FRAMES_PER_SECOND)


def speech_detection_delay_s(min_speech_s: float) -> float:
    """How long after speech began it is known to have: it fills chunks of 32 ms, and begins within one."""
    chunks = max(1, math.ceil(min_speech_s * SAMPLE_RATE / CHUNK_SAMPLES))
    return (chunks + 1) * CHUNK_SAMPLES / SAMPLE_RATE


COMMITTED_TOKENS = 80
"""Committed before an update: as much as an utterance of 25 s has."""
HISTORY_FRAMES = 8 * FRAMES_PER_SECOND
"""As long as in any preset."""


class SyntheticUpdate:
    """Updates of some streams together, with sound that says nothing.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    streams : int
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, n_streams: int) -> None:
        self._backend, self._n_streams = backend, n_streams
        self._prompt = tokenizer.sot_sequence("en", "transcribe", timestamps=False)
        self._filler_tokens = tokenizer.encode(" a")[:1]

    def run(self, window_frames: int, tokens: int) -> None:
        """Hear a window with the silence behind it, verify what was said, choose so many tokens."""
        backend, rows = self._backend, range(self._n_streams)
        max_frames = FRAMES_PER_POSITION * backend.dims.n_audio_ctx
        frames = min(window_frames + TRAILING_SILENCE_FRAMES, max_frames - 2)
        encoders = [backend.open_encoder(HISTORY_FRAMES) for _ in rows]
        mel = np.zeros((self._n_streams, backend.dims.n_mels, frames + 1), np.float32)
        backend.encode_chunk(encoders, mel, 0)
        features = backend.stream_features(encoders)
        session = backend.open_session(features, list(rows), backend.dims.n_text_ctx, attention=True)
        session.extend([[*self._prompt, *self._filler_tokens * COMMITTED_TOKENS]] * self._n_streams)
        for _ in range(tokens):
            session.extend([self._filler_tokens] * self._n_streams).top(1)
            session.attention(0)
