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

from harken.audio.mel import FFT_SAMPLES
from harken.audio.vad import CHUNK_SAMPLES, VadOptions
from harken.errors import OptionError
from harken.streaming.noise import NOISY_FRAMES
from harken.streaming.options import StreamOptions
from harken.streaming.presets import PRESETS, adapted, ladder, overridden
from harken.streaming.running import MARGIN_FRAMES
from harken.streaming.setting import Setting
from harken.types import FRAMES_PER_SECOND, SAMPLE_RATE

EDGE_S = FFT_SAMPLES / 2 / SAMPLE_RATE
"""The convolutions see one frame behind a window, which is centred on the first sample behind it."""
UTILISATION = 0.8
"""Most of a hop that an update may take: finals, and whatever else the machine does, need some of it too."""
TOKENS_PER_S = 6.0
"""Of fast speech: more than 4 words a second, with their punctuation."""
HOP_STEP_FRAMES = 10

_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
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
    frame_s: float = 0.0
    token_s: float = 0.0

    def update_s(self, window_frames: int, tokens: float) -> float:
        """Seconds that an update takes."""
        return self.base_s + self.frame_s * window_frames + self.token_s * tokens


def measure(
    update: Callable[[int, int], object],
    clock: Callable[[], float],
    *,
    windows: tuple[int, int] = (100, 1400),
    tokens: tuple[int, int] = (4, 24),
    repeats: int = 3,
) -> Cost:
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
        update(window_frames, n_tokens)
        seconds = []
        for _ in range(repeats):
            start = clock()
            update(window_frames, n_tokens)
            seconds.append(clock() - start)
        return median(seconds)

    least = timed(windows[0], tokens[0])
    frame_s = max(0.0, timed(windows[1], tokens[0]) - least) / (windows[1] - windows[0])
    token_s = max(0.0, timed(windows[0], tokens[1]) - least) / (tokens[1] - tokens[0])
    base_s = max(0.0, least - frame_s * windows[0] - token_s * tokens[0])
    return Cost(base_s=base_s, frame_s=frame_s, token_s=token_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
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
        return _up_ms(self.total_s)

    @property
    def utilisation(self) -> float:
        """How much of the time updates take."""
        return self.process_s / self.hop_s

    @property
    def sustainable(self) -> bool:
        """Whether updates can be kept up."""
        return self.utilisation <= UTILISATION

    @property
    def terms(self) -> str:
        """What the time to a commit is made of, in words."""
        wait_ms = _up_ms(self.wait_s)
        return f"{wait_ms} ms of waiting + {self.total_ms - wait_ms} ms of computing"

    @property
    def excess(self) -> str:
        """Why it is not sustainable, in words."""
        hop_ms = self.hop_s * _MS
        most = f"{UTILISATION:.0%} of the {hop_ms:.0f} ms between two"
        return f"an update takes {self.process_s * _MS:.0f} ms, more than {most}"

    def __str__(self) -> str:
        return f"shown within {self.interim_s:.2f} s, committed within {self.total_s:.2f} s ({self.terms})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A setting, and how long a word takes with it."""

    setting: Setting
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
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

    cost: Cost = Cost()
    options: StreamOptions = field(default_factory=StreamOptions)
    margin_frames: int = MARGIN_FRAMES
    min_speech_s: float = VadOptions().min_speech_s

    def bound(self, setting: Setting) -> Bound:
        """How long a word takes with a setting."""
        hop_s = setting.hop_frames / FRAMES_PER_SECOND
        margin_s = self.margin_frames / FRAMES_PER_SECOND
        hold_s = max(setting.hold_frames / FRAMES_PER_SECOND, margin_s)
        widest = adapted(setting, NOISY_FRAMES) if self.options.adaptive else setting
        return Bound(
            wait_s=self._heard_s(hold_s, hop_s) + (setting.agreement - 1) * hop_s,
            interim_wait_s=self._heard_s(margin_s, hop_s),
            process_s=self.cost.update_s(widest.longest_window_frames, fresh_tokens(setting)),
            hop_s=hop_s,
        )

    def choose(self) -> Plan:
        """The setting for the delay that the options ask for.

        A name stands for its preset. A number of milliseconds is given to the best setting that keeps it: the
        first of `harken.streaming.presets.ladder` that can, with its own hop, or else with the next longer one
        in steps of 0.1 s, up to half of its window. What is left of the delay is spent on hold, up to that of
        high. What the options say about a setting themselves stays as they say.

        Raises
        ------
        OptionError
            If the machine cannot keep the delay, with what it can; or if another option is not allowed.
        """
        asked = self.options.delay
        if asked in PRESETS:
            plan = self._plan(overridden(PRESETS[asked], self.options))
            if plan.bound.sustainable:
                return plan
            raise self._too_slow(plan.bound)
        for plan in self._sustainable():
            if plan.bound.total_ms <= int(asked):
                return self._with_longer_hold(plan, int(asked))
        raise self._too_soon()

    def _sustainable(self) -> list[Plan]:
        """Plans for those who ask for milliseconds, the best first."""
        return [plan for plan in map(self._plan, self._settings()) if plan.bound.sustainable]

    def _settings(self) -> Iterator[Setting]:
        for setting in (overridden(rung, self.options) for rung in ladder()):
            yield setting
            if self.options.hop is None:
                first, last = setting.hop_frames + HOP_STEP_FRAMES, setting.window_frames // 2
                for hop_frames in range(first, last + 1, HOP_STEP_FRAMES):
                    yield replace(setting, hop_frames=hop_frames)

    def _with_longer_hold(self, plan: Plan, delay_ms: int) -> Plan:
        """A plan with as much more hold as the delay allows."""
        if self.options.hold is not None:
            return plan
        for hold_frames in range(PRESETS["high"].hold_frames, plan.setting.hold_frames, -1):
            longer = self._plan(replace(plan.setting, hold_frames=hold_frames))
            if longer.bound.sustainable and longer.bound.total_ms <= delay_ms:
                return longer
        return plan

    def _too_slow(self, asked: Bound) -> OptionError:
        """Refuse a name."""
        if not (plans := self._sustainable()):
            return self._nothing()
        names = [
            name for name, preset in PRESETS.items() if self.bound(overridden(preset, self.options)).sustainable
        ]
        allowed = ", ".join([*names, f"or at least {_shortest(plans).total_ms} ms"]).removeprefix("or ")
        return OptionError("delay", self.options.delay, f"{allowed} on this machine: {asked.excess}")

    def _too_soon(self) -> OptionError:
        """Refuse a number of milliseconds."""
        if not (plans := self._sustainable()):
            return self._nothing()
        least = _shortest(plans)
        allowed = f"at least {least.total_ms} ms on this machine: {least.terms} at the smallest setting"
        return OptionError("delay", self.options.delay, allowed)

    def _nothing(self) -> OptionError:
        """Refuse whatever is asked."""
        bounds = [self.bound(setting) for setting in self._settings()]
        best = min(bounds, key=lambda bound: bound.utilisation)
        return OptionError("delay", self.options.delay, f"none on this machine, with this model: {best.excess}")

    def _plan(self, setting: Setting) -> Plan:
        return Plan(setting=setting, bound=self.bound(setting))

    def _heard_s(self, behind_s: float, hop_s: float) -> float:
        """Until there is a window that ends so much behind a word; an utterance has to have begun, too."""
        return max(behind_s + hop_s + EDGE_S, onset_s(self.min_speech_s))


def _up_ms(seconds: float) -> int:
    return math.ceil(round(seconds * _MS, 6))


def _shortest(plans: Sequence[Plan]) -> Bound:
    return min((plan.bound for plan in plans), key=lambda bound: bound.total_s)


def fresh_tokens(setting: Setting) -> int:
    """Tokens that an update chooses at most: all of what is not committed yet, none of it as it was before."""
    frames = setting.hold_frames + setting.agreement * setting.hop_frames
    return math.ceil(TOKENS_PER_S * frames / FRAMES_PER_SECOND)


def onset_s(min_speech_s: float) -> float:
    """How long after speech began it is known to have: it fills chunks of 32 ms, and begins within one."""
    chunks = max(1, math.ceil(min_speech_s * SAMPLE_RATE / CHUNK_SAMPLES))
    return (chunks + 1) * CHUNK_SAMPLES / SAMPLE_RATE
