"""Latency planning: the delay until a word is shown or committed, and the configuration and load level to keep one.

::

    T_total = T_wait + T_process

The first update whose window ends after a word shows it, and a window ends every hop. A word is committed once
`commit_delay_frames` of audio follow it and `local_agreement - 1` further updates agree. Each window needs half an
FFT window of audio after its end. This holds for sessions that run each update as soon as its last sample is there,
from the first hop of an utterance on, with windows that grow until there is a history. docs/streaming.md
derives it and lists what it leaves out.

`T_process` is the measured time of one update with the longest of these windows: where updates take less than a hop,
none waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    config_in_noise,
    interpolated_presets,
    with_overrides,
)
from harken.streaming.load_shedding import LOAD_LEVELS, apply_load_level, highest_level
from harken.streaming.utterance_audio import ALIGNATT_THRESHOLD_FRAMES, TRAILING_SILENCE_FRAMES
from harken.text import Tokenizer
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, SAMPLE_RATE

STFT_LOOK_AHEAD_S = FFT_SAMPLES / 2 / SAMPLE_RATE
"""The convolutions read one frame after a window; its centre is the first sample after the window."""
MAX_UTILISATION = 0.8
"""Greatest part of a hop that an update may take: final passes and other programs need the rest."""
FAST_SPEECH_TOKENS_PER_S = 6.0
"""More than 4 words a second, with their punctuation."""
HOP_STEP_FRAMES = 10
COMMITTED_TOKENS = 80
"""Tokens committed before a synthetic update: those of an utterance of 25 s."""
MEASURED_WINDOWS, MEASURED_TOKENS = (100, 1400), (4, 24)
"""The smallest and the largest updates to measure; the longest windows of the presets lie between.

Attention grows faster than linearly, so the line through both overestimates updates between them, and underestimates
larger ones.
"""
TIMED_RUNS = 3
"""Of each size, after a warm-up run."""

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCost:
    """The computing time of an update, for one machine, model and number of streams.

    Parameters
    ----------
    base_s : float
        Seconds, whatever its size.
    per_frame_s : float
        Seconds for each mel frame of its window.
    per_token_s : float
        Seconds for each token that it generates.
    """

    base_s: float = 0.0
    per_frame_s: float = 0.0
    per_token_s: float = 0.0

    def update_s(self, window_frames: int, tokens: float) -> float:
        """Return the seconds that an update takes."""
        return self.base_s + self.per_frame_s * window_frames + self.per_token_s * tokens


def measure_update_cost(run_update: Callable[[int, int], object], clock: Callable[[], float]) -> UpdateCost:
    """Measure the computing time of updates.

    Parameters
    ----------
    run_update : callable
        Runs an update, given the frames of its window and the tokens to generate, after as much text as an utterance
        may have.
    clock : callable
        Returns seconds.

    Returns
    -------
    UpdateCost
        From the medians, so that a momentary load of the machine does not make it refuse a delay.
    """

    def timed(window_frames: int, n_tokens: int) -> float:
        run_update(window_frames, n_tokens)
        seconds = []
        for _ in range(TIMED_RUNS):
            start = clock()
            run_update(window_frames, n_tokens)
            seconds.append(clock() - start)
        return median(seconds)

    (few_frames, many_frames), (few_tokens, many_tokens) = MEASURED_WINDOWS, MEASURED_TOKENS
    smallest_s = timed(few_frames, few_tokens)
    per_frame_s = max(0.0, timed(many_frames, few_tokens) - smallest_s) / (many_frames - few_frames)
    per_token_s = max(0.0, timed(few_frames, many_tokens) - smallest_s) / (many_tokens - few_tokens)
    base_s = max(0.0, smallest_s - per_frame_s * few_frames - per_token_s * few_tokens)
    return UpdateCost(base_s=base_s, per_frame_s=per_frame_s, per_token_s=per_token_s)


def synthetic_update(
    backend: Backend, tokenizer: Tokenizer, n_streams: int, window_frames: int, n_tokens: int
) -> None:
    """Run an update of several streams on silence: encode a window, read committed text, generate `n_tokens`."""
    prompt, filler = tokenizer.sot_sequence("en", "transcribe", timestamps=False), tokenizer.encode(" a")[:1]
    max_frames = FRAMES_PER_POSITION * backend.dims.n_audio_ctx
    frames = min(window_frames + TRAILING_SILENCE_FRAMES, max_frames - 2)
    history_frames = max(preset.history_frames for preset in PRESETS.values())
    encoders = [backend.open_encoder(history_frames) for _ in range(n_streams)]
    mel = np.zeros((n_streams, backend.dims.n_mels, frames + 1), np.float32)
    backend.encode_chunk(encoders, mel, 0)
    features = backend.stream_features(encoders)
    session = backend.open_session(features, list(range(n_streams)), backend.dims.n_text_ctx, attention=True)
    session.extend([[*prompt, *filler * COMMITTED_TOKENS]] * n_streams)
    for _ in range(n_tokens):
        session.extend([filler] * n_streams).top(1)
        session.attention(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBound:
    """The greatest delay of a word, from its end, in seconds.

    Parameters
    ----------
    wait_s : float
        Until the last sample that the committing update needs.
    interim_wait_s : float
        Until the last sample that the first update to show it needs.
    process_s : float
        Computing time of that update.
    hop_s : float
        From one update to the next.
    """

    wait_s: float
    interim_wait_s: float
    process_s: float
    hop_s: float

    @property
    def total_s(self) -> float:
        """Seconds until a word is committed."""
        return self.wait_s + self.process_s

    @property
    def interim_s(self) -> float:
        """Seconds until a word is shown."""
        return self.interim_wait_s + self.process_s

    @property
    def total_ms(self) -> int:
        """`total_s` in whole milliseconds, rounded up."""
        return _ceil_ms(self.total_s)

    @property
    def utilisation(self) -> float:
        """Fraction of the time that updates take."""
        return self.process_s / self.hop_s

    @property
    def sustainable(self) -> bool:
        """True if the machine can keep up with the updates."""
        return self.utilisation <= MAX_UTILISATION

    @property
    def breakdown(self) -> str:
        """The parts of the delay until a commit, as text."""
        wait_ms = _ceil_ms(self.wait_s)
        return f"{wait_ms} ms of waiting + {self.total_ms - wait_ms} ms of computing"

    @property
    def overload_reason(self) -> str:
        """The reason why it is not sustainable, as text."""
        hop_ms = self.hop_s * _MS_PER_S
        limit = f"{MAX_UTILISATION:.0%} of the {hop_ms:.0f} ms between two"
        return f"an update takes {self.process_s * _MS_PER_S:.0f} ms, more than {limit}"

    def __str__(self) -> str:
        if not self.sustainable:
            return f"late while somebody speaks: {self.overload_reason}"
        return f"shown within {self.interim_s:.2f} s, committed within {self.total_s:.2f} s ({self.breakdown})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlan:
    """A configuration, the load level to start with, and the latency bound at that level.

    Parameters
    ----------
    config : StreamingConfig
        At level 0.
    bound : LatencyBound
    level : int
        Index into `harken.streaming.load_shedding.LOAD_LEVELS`.
    """

    config: StreamingConfig
    bound: LatencyBound
    level: int = 0

    @property
    def detail(self) -> str:
        """Description of the level, and of the delay to expect."""
        return f"{LOAD_LEVELS[self.level]}; words are {self.bound}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlanner:
    """The choice of a configuration and a load level that keep the delay asked for on this machine.

    Parameters
    ----------
    cost : UpdateCost
        Zero by default: the bounds are then those of waiting alone.
    options : StreamOptions
    min_speech_s : float
        Speech that must be detected before an utterance begins.
    """

    cost: UpdateCost = UpdateCost()
    options: StreamOptions = field(default_factory=StreamOptions)
    min_speech_s: float = VadOptions().min_speech_s

    def bound(self, config: StreamingConfig, level: int = 0) -> LatencyBound:
        """Return the latency bound of a configuration at a load level."""
        longest = config_in_noise(config) if self.options.adaptive else config
        longest, config = apply_load_level(level, longest), apply_load_level(level, config)
        hop_s = config.hop_frames / FRAMES_PER_SECOND
        alignatt_threshold_s = ALIGNATT_THRESHOLD_FRAMES / FRAMES_PER_SECOND
        commit_delay_s = max(config.commit_delay_frames / FRAMES_PER_SECOND, alignatt_threshold_s)

        def wait_s(following_s: float) -> float:
            """Return the wait for a window that ends so long after a word; at least the detection of speech."""
            return max(following_s + hop_s + STFT_LOOK_AHEAD_S, speech_detection_delay_s(self.min_speech_s))

        return LatencyBound(
            wait_s=wait_s(commit_delay_s) + (config.local_agreement - 1) * hop_s,
            interim_wait_s=wait_s(alignatt_threshold_s),
            process_s=self.cost.update_s(longest.max_window_frames, max_new_tokens(config)),
            hop_s=hop_s,
        )

    def choose(self) -> LatencyPlan:
        """Return the plan for the delay that the options ask for.

        A name selects its preset, at the first load level that the machine can keep up with, or at the last. For a
        number of milliseconds the first of `interpolated_presets` that keeps it is used, with its own hop or the next
        longer one, in steps of 0.1 s up to half of its window. Time that is left lengthens the commit delay, up to that
        of "high". With `best_effort` higher load levels are tried too, and then the shortest delay is used that the
        machine can keep. Values that the options set themselves stay.

        Raises
        ------
        OptionError
            If the machine cannot keep a number of milliseconds; the message names the least that it can keep. Or if
            another option is not allowed.
        """
        delay, best_effort = self.options.delay, self.options.best_effort
        if delay in PRESETS:
            return self._first_sustainable_level(with_overrides(PRESETS[delay], self.options))
        configs = [*self._candidate_configs()]
        levels = range(1 + highest_level(self.options.finals) if best_effort else 1)
        plans = [self._plan(config, level) for level in levels for config in configs]
        plans = [plan for plan in plans if plan.bound.sustainable]  # the most accurate first
        for plan in plans:
            if plan.bound.total_ms <= int(delay):
                return self._with_longer_commit_delay(plan, int(delay))
        shortest = min(plans, key=lambda plan: plan.bound.total_s, default=None)
        cheapest = min(configs, key=lambda config: self.bound(config).utilisation)
        if best_effort:
            return shortest or self._first_sustainable_level(cheapest)
        if shortest:
            allowed = (
                f"at least {shortest.bound.total_ms} ms on this machine: {shortest.bound.breakdown} at the smallest "
                "setting; best_effort starts with the nearest"
            )
        else:
            reason = self.bound(cheapest).overload_reason
            allowed = f"none on this machine, with this model: {reason}; best_effort starts all the same"
        raise OptionError("delay", delay, allowed)

    def _first_sustainable_level(self, config: StreamingConfig) -> LatencyPlan:
        """Return the plan at the lowest load level that this machine can keep up with, or at the last."""
        plans = [self._plan(config, level) for level in range(highest_level(self.options.finals) + 1)]
        return next((plan for plan in plans if plan.bound.sustainable), plans[-1])

    def _candidate_configs(self) -> Iterator[StreamingConfig]:
        """Yield the configurations to choose from, the most accurate first."""
        for config in (with_overrides(preset, self.options) for preset in interpolated_presets()):
            yield config
            if self.options.hop_frames is None:
                first, last = config.hop_frames + HOP_STEP_FRAMES, config.window_frames // 2
                for hop_frames in range(first, last + 1, HOP_STEP_FRAMES):
                    yield replace(config, hop_frames=hop_frames)

    def _with_longer_commit_delay(self, plan: LatencyPlan, delay_ms: int) -> LatencyPlan:
        """Return a plan with the longest commit delay that keeps `delay_ms`."""
        if self.options.commit_delay_frames is not None:
            return plan
        for commit_delay_frames in range(
            PRESETS["high"].commit_delay_frames, plan.config.commit_delay_frames, -1
        ):
            longer = self._plan(replace(plan.config, commit_delay_frames=commit_delay_frames), plan.level)
            if longer.bound.sustainable and longer.bound.total_ms <= delay_ms:
                return longer
        return plan

    def _plan(self, config: StreamingConfig, level: int) -> LatencyPlan:
        return LatencyPlan(config=config, bound=self.bound(config, level), level=level)


def _ceil_ms(seconds: float) -> int:
    return math.ceil(round(seconds * _MS_PER_S, 6))


def max_new_tokens(config: StreamingConfig) -> int:
    """Return the most tokens that an update generates: all that is uncommitted, none of it as drafted."""
    frames = config.commit_delay_frames + config.local_agreement * config.hop_frames
    return math.ceil(FAST_SPEECH_TOKENS_PER_S * frames / FRAMES_PER_SECOND)


def speech_detection_delay_s(min_speech_s: float) -> float:
    """Return the delay until speech is detected: it must fill chunks of 32 ms, and may begin within one."""
    chunks = max(1, math.ceil(min_speech_s * SAMPLE_RATE / CHUNK_SAMPLES))
    return (chunks + 1) * CHUNK_SAMPLES / SAMPLE_RATE
