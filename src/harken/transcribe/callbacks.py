"""What a caller wants to know and to decide while a recording is transcribed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harken.decoding import DecodingResult, Observer, Step
from harken.errors import Cancelled
from harken.results import Attempt

ProgressCallback = Callable[[float, bool], None]
"""Called with the seconds of the recording that are done, and whether that is all of it."""
WindowStartCallback = Callable[[float, tuple[int, ...]], None]
"""Called with where a window begins, in seconds, and the prompt that it is decoded after."""
WindowEndCallback = Callable[[float, DecodingResult, tuple[Attempt, ...]], None]
"""Called with where a window begins, what was kept of it, and what was tried for it, the one kept last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
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

    on_progress: ProgressCallback = lambda done_s, finished: None
    on_token: Observer = lambda step: None
    on_window_start: WindowStartCallback = lambda start_s, prompt: None
    on_window_end: WindowEndCallback = lambda start_s, decoded, attempts: None
    is_cancelled: Callable[[], bool] = lambda: False

    def handle_step(self, step: Step) -> None:
        """Ask, then tell."""
        if self.is_cancelled():
            raise Cancelled("cancelled by the caller")
        self.on_token(step)
