"""How a stream is heard: the numbers that quality, latency and cost follow from."""

from __future__ import annotations

from dataclasses import dataclass

from harken.errors import OptionError
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
