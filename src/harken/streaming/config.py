"""How a stream is heard: the numbers that quality, latency and cost follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from harken.errors import OptionError
from harken.streaming.snr import NORMAL_WINDOW_FRAMES
from harken.transcribe.options import option
from harken.types import FRAMES_PER_POSITION, WINDOW_FRAMES

MAX_LOCAL_AGREEMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConfig:
    """One way to hear a stream, in mel frames of 10 ms.

    At every update the encoder hears a window: `hop_frames` that become final, and look-ahead behind them that is heard
    again with the next one. So windows overlap by the look-ahead. In the beginning of an utterance there is no history;
    there the window grows up to where there could be all of it, and nothing becomes final before.

    Parameters
    ----------
    window_frames : int
        W: frames that attend to each other, even.
    hop_frames : int
        From one update to the next, even, at most W.
    history_frames : int
        O: frames before the window that it looks back at, even.
    hold_frames : int
        A word is committed once this much sound has been heard behind it.
    agreement : int
        And once so many hypotheses in a row have said it (LocalAgreement-n, Liu et al. 2020, "Low-latency
        sequence-to-sequence speech recognition and translation by partial hypothesis selection"); 1 trusts the first.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    window_frames: int = 200
    hop_frames: int = 50
    history_frames: int = 400
    commit_delay_frames: int = 100
    local_agreement: int = 1

    def __post_init__(self) -> None:
        limits = {
            "window_frames": (10, 1000),
            "hop_frames": (10, self.window_frames),
            "history_frames": (0, WINDOW_FRAMES),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high or value % FRAMES_PER_POSITION:
                raise OptionError(name, value, f"an even number from {low} to {high}")
        if not 0 <= self.commit_delay_frames <= 1000:
            raise OptionError("commit_delay_frames", self.commit_delay_frames, "0 to 1000")
        if not 1 <= self.local_agreement <= MAX_LOCAL_AGREEMENT:
            raise OptionError("local_agreement", self.local_agreement, f"1 to {MAX_LOCAL_AGREEMENT}")

    @property
    def max_window_frames(self) -> int:
        """Frames of the longest window, in the beginning of an utterance."""
        return self.window_frames + self.history_frames

    @property
    def look_ahead_frames(self) -> int:
        """Frames of a window that will be heard again."""
        return self.window_frames - self.hop_frames


DELAYS = ("minimal", "low", "medium", "high")
FINALS = ("exact", "streamed")

_live_option = partial(option, "Live")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a live session, beside those of a transcription.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    delay: str = _live_option(
        "low", "minimal, low, medium, high; or how many milliseconds a word may take to be committed."
    )
    finals: str = _live_option(
        "exact",
        "exact hears each utterance once more as a whole, and gives what a transcription of it would; streamed "
        "keeps what was committed word by word.",
    )
    adaptive: bool = _live_option(
        True, "Hear with shorter windows where it is quiet, with longer ones where it is noisy."
    )
    window_frames: int | None = _live_option(
        None, "Frames of 10 ms that attend to each other, instead of what the delay says."
    )
    hop_frames: int | None = _live_option(
        None, "Frames from one update to the next, instead of what the delay says."
    )
    history_frames: int | None = _live_option(
        None, "Frames that a window looks back at, instead of what the delay says."
    )
    commit_delay_frames: int | None = _live_option(
        None, "Frames of sound behind a word before it is committed, instead of what the delay says."
    )
    local_agreement: int | None = _live_option(
        None, "Hypotheses in a row that have to agree on a word, instead of what the delay says."
    )
    sentence_pause_s: float = _live_option(
        0.8, "Silence that ends an utterance behind the end of a sentence, in seconds."
    )
    pause_s: float = _live_option(1.5, "Silence that ends an utterance anywhere, in seconds.")

    def __post_init__(self) -> None:
        if self.delay not in DELAYS and not (self.delay.isdecimal() and 0 < int(self.delay) <= 60_000):
            raise OptionError("delay", self.delay, f"{', '.join(DELAYS)}, or milliseconds from 1 to 60000")
        if self.finals not in FINALS:
            raise OptionError("finals", self.finals, " or ".join(FINALS))
        if not 0.1 <= self.sentence_pause_s <= self.pause_s <= 10:
            allowed = "0.1 s to pause_s, which is at most 10 s"
            raise OptionError("sentence_pause_s", self.sentence_pause_s, allowed)


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
