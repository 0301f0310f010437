"""The configuration of a stream: window sizes, the options of a live session, and the presets of its delay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from numbers import Integral
from types import MappingProxyType
from typing import Any

from harken.errors import OptionError
from harken.option_types import check, contradiction, option
from harken.types import FRAMES_PER_POSITION, WINDOW_FRAMES

MAX_WINDOW_FRAMES = 1000
MAX_COMMIT_DELAY_FRAMES = 1000
MAX_LOCAL_AGREEMENT = 8
MAX_DELAY_MS = 60_000
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
STEPS_BETWEEN_PRESETS = 8
"""Number of steps from one preset to the next for a delay in milliseconds."""

_frames = partial(option, step=FRAMES_PER_POSITION, noun="an even number")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConfig:
    """Window sizes and commit rules of a stream, in mel frames of 10 ms.

    Each update encodes one window: `hop_frames` that become final, then look-ahead that the next window encodes again.
    So consecutive windows overlap by the look-ahead. An utterance begins without history; there the window grows until
    it is as long as window and history together, and no frame becomes final before.

    Parameters
    ----------
    window_frames : int
        W: frames that attend to each other, even.
    hop_frames : int
        Frames from one update to the next, even, at most W.
    history_frames : int
        O: frames before the window that it attends to (left context), even.
    commit_delay_frames : int
        Frames of audio that must follow a word before it is committed.
    local_agreement : int
        Consecutive hypotheses that must contain the word before it is committed (LocalAgreement-n, Liu et al. 2020,
        "Low-latency sequence-to-sequence speech recognition and translation by partial hypothesis selection"); with 1,
        the first hypothesis suffices.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    window_frames: int = _frames(200, low=10, high=MAX_WINDOW_FRAMES)
    hop_frames: int = _frames(50, low=10, high=MAX_WINDOW_FRAMES)
    history_frames: int = _frames(400, low=0, high=WINDOW_FRAMES)
    commit_delay_frames: int = option(100, low=0, high=MAX_COMMIT_DELAY_FRAMES)
    local_agreement: int = option(1, low=1, high=MAX_LOCAL_AGREEMENT)

    def __post_init__(self) -> None:
        check(self)
        if self.hop_frames > self.window_frames:
            raise contradiction(
                self,
                hop_frames=f"an even number from 10 to window_frames={self.window_frames}",
                window_frames=f"an even number from hop_frames={self.hop_frames} to {MAX_WINDOW_FRAMES}",
            )

    @property
    def max_window_frames(self) -> int:
        """Frames of the longest window, in the beginning of an utterance."""
        return self.window_frames + self.history_frames

    @property
    def look_ahead_frames(self) -> int:
        """Frames of a window that the next window encodes again (right context)."""
        return self.window_frames - self.hop_frames


_CONFIG_FIELDS = ("window_frames", "hop_frames", "history_frames", "commit_delay_frames", "local_agreement")
PRESETS: Mapping[str, StreamingConfig] = MappingProxyType(
    {
        name: StreamingConfig(**dict(zip(_CONFIG_FIELDS, values, strict=True)))
        for name, values in {
            "minimal": (200, 30, 400, 30, 2),
            "low": (200, 50, 400, 100, 2),
            "medium": (300, 50, 400, 160, 2),
            "high": (400, 100, 800, 240, 2),
        }.items()
    }
)
"""The configuration of each named delay, from the shortest to the most accurate (measured in docs/benchmarks.md)."""

DELAYS = tuple(PRESETS)
FINALS = ("exact", "turns", "streamed")

_PAUSE: Mapping[str, Any] = {"low": MIN_PAUSE_S, "high": MAX_PAUSE_S, "noun": "seconds"}
_live_option = partial(option, section="Live")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a live session, beside those of a transcription.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    delay: str = _live_option(
        "low", "minimal, low, medium, high; or the most milliseconds until a word is committed."
    )
    best_effort: bool = _live_option(
        False,
        "Start with the delay nearest to the milliseconds that this machine cannot keep, instead of refusing.",
    )
    finals: str = _live_option(
        "exact",
        "exact transcribes each utterance once more as a whole, with the result of an offline transcription; turns "
        "does so also where it is longer than a window, up to a minute, which exact has in parts; streamed keeps "
        "the words as they were committed.",
        choices=FINALS,
    )
    adaptive: bool = _live_option(True, "Use longer windows where it is noisy.")
    window_frames: int | None = _live_option(
        None, "Frames of 10 ms that attend to each other, instead of the delay's."
    )
    hop_frames: int | None = _live_option(None, "Frames from one update to the next, instead of the delay's.")
    history_frames: int | None = _live_option(
        None, "Frames before a window that it attends to, instead of the delay's."
    )
    commit_delay_frames: int | None = _live_option(
        None, "Frames of audio that must follow a word before it is committed, instead of the delay's."
    )
    local_agreement: int | None = _live_option(
        None, "Consecutive hypotheses that must agree on a word, instead of the delay's."
    )
    sentence_pause_s: float = _live_option(
        0.8, "Silence that ends an utterance after the end of a sentence, in seconds.", **_PAUSE
    )
    pause_s: float = _live_option(1.5, "Silence that ends an utterance anywhere, in seconds.", **_PAUSE)

    def __post_init__(self) -> None:
        given: object = self.delay
        delay = str(given) if isinstance(given, Integral) else given  # milliseconds
        if not isinstance(delay, str) or (delay not in DELAYS and not _is_delay_ms(delay)):
            allowed = f"{', '.join(DELAYS)}, or whole milliseconds from 1 to {MAX_DELAY_MS}"
            raise OptionError("delay", given, allowed)
        object.__setattr__(self, "delay", delay)
        check(self)
        if self.sentence_pause_s > self.pause_s:
            raise contradiction(
                self,
                pause_s=f"at least sentence_pause_s={self.sentence_pause_s:g}, up to {MAX_PAUSE_S:g} seconds",
                sentence_pause_s=f"{MIN_PAUSE_S:g} seconds to pause_s={self.pause_s:g}",
            )


def _is_delay_ms(delay: str) -> bool:
    """Return whether a delay is a number of milliseconds."""
    return delay.isdecimal() and len(delay) <= len(str(MAX_DELAY_MS)) and 0 < int(delay) <= MAX_DELAY_MS


def interpolated_presets() -> list[StreamingConfig]:
    """Return the presets with steps between them, from the longest delay to the shortest."""
    presets = [*PRESETS.values()][::-1]
    configs = [
        _interpolated(longer, shorter, step)
        for longer, shorter in pairwise(presets)
        for step in range(STEPS_BETWEEN_PRESETS)
    ]
    return [*configs, presets[-1]]


def _interpolated(longer: StreamingConfig, shorter: StreamingConfig, step: int) -> StreamingConfig:
    """Return the configuration `step` of `STEPS_BETWEEN_PRESETS` below `longer`, with `shorter`'s local agreement."""
    if not step:
        return longer

    def frames(name: str) -> int:
        high, low = getattr(longer, name), getattr(shorter, name)
        return _floor_to_step(high + (low - high) * step // STEPS_BETWEEN_PRESETS)

    return replace(shorter, **{name: frames(name) for name in _CONFIG_FIELDS if name.endswith("_frames")})


def with_overrides(config: StreamingConfig, options: StreamOptions) -> StreamingConfig:
    """Return a configuration with the values that the options set themselves.

    A window set alone shortens a longer hop; a hop set alone lengthens a shorter window.

    Raises
    ------
    OptionError
        If a value is not allowed; it names the option.
    """
    given = {name: value for name in _CONFIG_FIELDS if (value := getattr(options, name)) is not None}
    window_frames, hop_frames = (
        given.get(name, getattr(config, name)) for name in ("window_frames", "hop_frames")
    )
    if "hop_frames" not in given:
        hop_frames = min(hop_frames, window_frames)
    if "window_frames" not in given:
        window_frames = max(window_frames, _floor_to_step(min(hop_frames, MAX_WINDOW_FRAMES)))
    return replace(config, **given | {"window_frames": window_frames, "hop_frames": hop_frames})


@cache  # asked for at every chunk of samples
def config_in_noise(config: StreamingConfig) -> StreamingConfig:
    """Return a configuration with a window half as long again, for noisy speech.

    Nothing else changes, so a word waits as long as before.
    """
    longer = _floor_to_step(config.window_frames * 3 // 2)
    return replace(config, window_frames=min(longer, MAX_WINDOW_FRAMES))


def _floor_to_step(frames: int) -> int:
    return frames // FRAMES_PER_POSITION * FRAMES_PER_POSITION
