"""A file that is transcribed by the engine, a window at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from harken.results import Segment
from harken.serve.errors import ended, too_long
from harken.serve.work.engine import Engine
from harken.serve.work.outbox import Outbox
from harken.transcription import Transcription

MAX_UPDATES = 4
"""Windows of a file that may wait for a slow reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUpdate:
    """The outcome of a step: segments, the seconds that are done, and the end, if it is that.

    Parameters
    ----------
    segments : list of Segment
    done_s : float
    failure : BaseException or None
        The error that ended it.
    finished : bool
    """

    segments: list[Segment]
    done_s: float
    failure: BaseException | None = None
    finished: bool = False


class FileJob:
    """A transcription in progress, as a job of the engine.

    Parameters
    ----------
    engine : Engine
    start : callable
        Opens the transcription; called in the engine's thread.
    on_end : callable
        Called once, in any thread, when it ends or is cancelled.
    max_audio_s : float
        Longest recording; of a longer one, whose header did not tell, the rest is not decoded.

    Attributes
    ----------
    updates : Outbox of FileUpdate
        The last one is finished.
    transcription : Transcription or None
        None before the first step.
    service_s : float
        Seconds that the engine has worked on it.
    """

    live = False

    def __init__(
        self,
        engine: Engine,
        start: Callable[[], Transcription],
        on_end: Callable[[], None] = lambda: None,
        *,
        max_audio_s: float = math.inf,
    ) -> None:
        self.updates: Outbox[FileUpdate] = Outbox(MAX_UPDATES, engine.wake)
        self.transcription: Transcription | None = None
        self.done = False
        self.service_s = 0.0
        self._engine, self._start, self._on_end = engine, start, on_end
        self._max_audio_s = max_audio_s
        self._since_s = monotonic()
        self._cancelled = False

    def waiting_since(self) -> float | None:
        return None if self.updates.full and not self._cancelled else self._since_s

    def step(self) -> None:
        if self._cancelled:
            self._end()
            return
        try:
            transcription = self.transcription = self.transcription or self._start()
            segments = transcription.step()
            if transcription.read_s > self._max_audio_s:
                raise too_long(transcription.read_s, self._max_audio_s)
            finished = transcription.finished
            self.updates.put(FileUpdate(segments=segments, done_s=transcription.done_s, finished=finished))
        except BaseException as failure:
            finished = True
            done_s = self.transcription.done_s if self.transcription else 0.0
            self.updates.put(FileUpdate(segments=[], done_s=done_s, failure=failure, finished=True))
        if finished:
            self._end()

    def cancel(self) -> None:
        """End it before its next step, from any thread: nobody waits for it any more."""
        self._cancelled = True
        self._engine.wake()

    def abandon(self, reason: str) -> None:
        if not self.done:
            self.updates.put(FileUpdate(segments=[], done_s=0.0, failure=ended(reason), finished=True))
            self._end()

    def _end(self) -> None:
        self.done = True
        if self.transcription:
            self.transcription.stop()
        self._on_end()  # first, so that who sees the end finds its room free
        self.updates.close()
