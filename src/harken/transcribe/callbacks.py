"""The callbacks of a transcription: progress, tokens, windows, cancellation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harken.decoding import DecodingResult, Observer, Step
from harken.errors import Cancelled
from harken.option_types import check
from harken.results import Attempt

ProgressCallback = Callable[[float, bool], None]
"""Called with the seconds of the recording that are done, and whether that is all of it."""
WindowStartCallback = Callable[[float, tuple[int, ...]], None]
"""Called with the start of a window in seconds, and its prompt."""
WindowEndCallback = Callable[[float, DecodingResult, tuple[Attempt, ...]], None]
"""Called with the start of a window in seconds, its result, and all attempts at it, the accepted one last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The callbacks of a transcription.

    Parameters
    ----------
    on_progress : callable
        Called after every window.
    on_token : callable
        Called at every decoder step.
    on_window_start : callable
        Called before the first step of every window, and again if the whole window is encoded after a part of it.
    on_window_end : callable
        Called once a window has been decoded, before its segments.
    is_cancelled : callable
        Called at every decoder step; once it returns True, `Cancelled` is raised.

    Raises
    ------
    OptionError
        If one of them cannot be called.
    """

    on_progress: ProgressCallback = lambda done_s, finished: None
    on_token: Observer = lambda step: None
    on_window_start: WindowStartCallback = lambda start_s, prompt: None
    on_window_end: WindowEndCallback = lambda start_s, decoded, attempts: None
    is_cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        check(self)

    def handle_step(self, step: Step) -> None:
        """Raise `Cancelled` if the caller asks for it, else pass the step on."""
        if self.is_cancelled():
            raise Cancelled("cancelled by the caller")
        self.on_token(step)
