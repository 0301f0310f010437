"""Settings by name, and settings made of settings: what a caller changed, and what the sound asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from harken.streaming.config import StreamingConfig
from harken.streaming.options import StreamOptions
from harken.streaming.snr import NORMAL_WINDOW_FRAMES
from harken.types import FRAMES_PER_POSITION

PRESETS: Mapping[str, StreamingConfig] = MappingProxyType(
    {
        "minimal": StreamingConfig(
            window_frames=200, hop_frames=30, history_frames=400, commit_delay_frames=30, local_agreement=2
        ),
        "low": StreamingConfig(
            window_frames=200, hop_frames=50, history_frames=400, commit_delay_frames=100, local_agreement=2
        ),
        "medium": StreamingConfig(
            window_frames=300, hop_frames=50, history_frames=400, commit_delay_frames=160, local_agreement=2
        ),
        "high": StreamingConfig(
            window_frames=400, hop_frames=100, history_frames=800, commit_delay_frames=240, local_agreement=2
        ),
    }
)
"""What a named delay stands for, from the shortest to the best (docs/streaming.md says by what measurements)."""

STEPS_BETWEEN_PRESETS = 8
"""Steps from one preset to the next for those who ask for milliseconds."""

_MAX_WINDOW_FRAMES = 1000
_CONFIG_FIELDS = ("window_frames", "hop_frames", "history_frames", "commit_delay_frames", "local_agreement")


def interpolated_presets() -> list[StreamingConfig]:
    """Settings from the best to the shortest delay: the presets, and between two of them what is in between."""
    presets = [*PRESETS.values()][::-1]
    configs = [
        _interpolated(better, lesser, step)
        for better, lesser in pairwise(presets)
        for step in range(STEPS_BETWEEN_PRESETS)
    ]
    return [*configs, presets[-1]]


def _interpolated(better: StreamingConfig, lesser: StreamingConfig, step: int) -> StreamingConfig:
    """The setting so many of the `RUNGS` below a better one; as many hypotheses agree as in the lesser."""
    if not step:
        return better

    def frames(name: str) -> int:
        high, low = getattr(better, name), getattr(lesser, name)
        return _floor_to_step(high + (low - high) * step // STEPS_BETWEEN_PRESETS)

    names = ("window_frames", "hop_frames", "history_frames", "commit_delay_frames")
    return replace(lesser, **{name: frames(name) for name in names})


def with_overrides(config: StreamingConfig, options: StreamOptions) -> StreamingConfig:
    """A setting with what the options say instead of it.

    A window that was asked for shortens a hop that was not, and a hop lengthens a window.

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
        window_frames = max(window_frames, _floor_to_step(min(hop_frames, _MAX_WINDOW_FRAMES)))
    return replace(config, **given | {"window_frames": window_frames, "hop_frames": hop_frames})


def scale_window(config: StreamingConfig, noise_window_frames: int) -> StreamingConfig:
    """A setting for sound that is heard better or worse than usual.

    Parameters
    ----------
    setting : Setting
    window_frames : int
        From `harken.streaming.snr.window_for`: the window of a setting stands for the usual one.

    Returns
    -------
    Setting
        With a window as much longer or shorter. Half of it at least stays look-ahead, as far as that was so.
        Nothing else changes, so neither does what a word waits for.
    """
    scaled = _floor_to_step(config.window_frames * noise_window_frames // NORMAL_WINDOW_FRAMES)
    min_frames = min(config.window_frames, 2 * config.hop_frames)
    return replace(config, window_frames=min(max(scaled, min_frames), _MAX_WINDOW_FRAMES))


def _floor_to_step(frames: int) -> int:
    return frames // FRAMES_PER_POSITION * FRAMES_PER_POSITION
