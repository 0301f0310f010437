"""Settings by name, and settings made of settings: what a caller changed, and what the sound asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from harken.errors import OptionError
from harken.streaming.noise import USUAL_FRAMES
from harken.streaming.options import StreamOptions
from harken.streaming.setting import Setting
from harken.types import FRAMES_PER_STEP

PRESETS: Mapping[str, Setting] = MappingProxyType(
    {
        "minimal": Setting(window_frames=200, hop_frames=30, history_frames=400, hold_frames=30, agreement=2),
        "low": Setting(window_frames=200, hop_frames=50, history_frames=400, hold_frames=100, agreement=2),
        "medium": Setting(window_frames=300, hop_frames=50, history_frames=400, hold_frames=160, agreement=2),
        "high": Setting(window_frames=400, hop_frames=100, history_frames=800, hold_frames=240, agreement=2),
    }
)
"""What a named delay stands for, from the shortest to the best (docs/streaming.md says by what measurements)."""

RUNGS = 8
"""Steps from one preset to the next for those who ask for milliseconds."""

_LONGEST_WINDOW = 1000
_FIELDS = MappingProxyType(
    {
        "window": "window_frames",
        "hop": "hop_frames",
        "history": "history_frames",
        "hold": "hold_frames",
        "agreement": "agreement",
    }
)


def ladder() -> list[Setting]:
    """Settings from the best to the shortest delay: the presets, and between two of them what is in between."""
    presets = [*PRESETS.values()][::-1]
    rungs = [_between(better, lesser, rung) for better, lesser in pairwise(presets) for rung in range(RUNGS)]
    return [*rungs, presets[-1]]


def _between(better: Setting, lesser: Setting, rung: int) -> Setting:
    """The setting so many of the `RUNGS` below a better one; as many hypotheses agree as in the lesser."""
    if not rung:
        return better

    def frames(name: str) -> int:
        high, low = getattr(better, name), getattr(lesser, name)
        return _even(high + (low - high) * rung // RUNGS)

    names = ("window_frames", "hop_frames", "history_frames", "hold_frames")
    return replace(lesser, **{name: frames(name) for name in names})


def overridden(setting: Setting, options: StreamOptions) -> Setting:
    """A setting with what the options say instead of it.

    A window that was asked for shortens a hop that was not, and a hop lengthens a window.

    Raises
    ------
    OptionError
        If a value is not allowed; it names the option.
    """
    given = {name: value for name in _FIELDS if (value := getattr(options, name)) is not None}
    window, hop = given.get("window", setting.window_frames), given.get("hop", setting.hop_frames)
    if "hop" not in given:
        hop = min(hop, window)
    if "window" not in given:
        window = max(window, _even(min(hop, _LONGEST_WINDOW)))
    values = {_FIELDS[name]: value for name, value in given.items()}
    try:
        return replace(setting, **values | {"window_frames": window, "hop_frames": hop})
    except OptionError as error:
        raise OptionError(error.field.removesuffix("_frames"), error.value, error.allowed) from None


def adapted(setting: Setting, window_frames: int) -> Setting:
    """A setting for sound that is heard better or worse than usual.

    Parameters
    ----------
    setting : Setting
    window_frames : int
        From `harken.streaming.noise.window_for`: the window of a setting stands for the usual one.

    Returns
    -------
    Setting
        With a window as much longer or shorter. Half of it at least stays look-ahead, as far as that was so.
        Nothing else changes, so neither does what a word waits for.
    """
    scaled = _even(setting.window_frames * window_frames // USUAL_FRAMES)
    least = min(setting.window_frames, 2 * setting.hop_frames)
    return replace(setting, window_frames=min(max(scaled, least), _LONGEST_WINDOW))


def _even(frames: int) -> int:
    return frames // FRAMES_PER_STEP * FRAMES_PER_STEP
