"""A file that the engine works on: transcribed a window at a time, or asked for its language."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Protocol

from harken.api import Recognizer
from harken.audio import AudioSource, stream_audio
from harken.results import Segment, Transcript
from harken.serve.errors import ended, too_long
from harken.serve.work.engine import Engine, Outbox
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE, WINDOW_SAMPLES

MAX_UPDATES = 4
"""Windows of a file that may wait for a slow reader."""


class Work(Protocol):
    """Work on a file, step by step, such as `harken.transcription.Transcription`."""

    @property
    def finished(self) -> bool:
        """True once there is no further step."""
        ...

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        ...

    @property
    def done_s(self) -> float:
        """Seconds of the recording that are done."""
        ...

    def step(self) -> list[Segment]:
        """Do a step, and return the segments that it completes."""
        ...

    def so_far(self) -> Transcript:
        """Return the result so far."""
        ...

    def stop(self) -> None:
        """Let go of the recording."""
        ...


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
    """The work on a file, as a job of the engine.

    Parameters
    ----------
    engine : Engine
    start : callable
        Begins the work; called in the engine's thread.
    on_end : callable
        Called once, in any thread, when it ends or is cancelled.
    max_audio_s : float
        Longest recording; of a longer one, whose header did not tell, the rest is not decoded.

    Attributes
    ----------
    updates : Outbox of FileUpdate
        The last one is finished.
    work : Work or None
        None before the first step.
    service_s : float
        Seconds that the engine has worked on it.
    """

    live = False

    def __init__(
        self,
        engine: Engine,
        start: Callable[[], Work],
        on_end: Callable[[], None] = lambda: None,
        *,
        max_audio_s: float = math.inf,
    ) -> None:
        self.updates: Outbox[FileUpdate] = Outbox(MAX_UPDATES, engine.wake)
        self.work: Work | None = None
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
            work = self.work = self.work or self._start()
            segments = work.step()
            if work.read_s > self._max_audio_s:
                raise too_long(work.read_s, self._max_audio_s)
            finished = work.finished
            self.updates.put(FileUpdate(segments=segments, done_s=work.done_s, finished=finished))
        except BaseException as failure:
            finished = True
            done_s = self.work.done_s if self.work else 0.0
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
        if self.work:
            self.work.stop()
        self._on_end()  # first, so that who sees the end finds its room free
        self.updates.close()


class LanguageDetection:
    """The detection of the language of the first window of a recording; no more of it is read.

    Parameters
    ----------
    recognizer : Recognizer
    audio : AudioSource
    options : TranscribeOptions
        Only its candidates count. Where nobody speaks, the language is that of what can be heard.
    """

    def __init__(self, recognizer: Recognizer, audio: AudioSource, options: TranscribeOptions) -> None:
        self._recognizer, self._audio = recognizer, audio
        self._options = replace(options, language=None, language_windows=1)
        self._probabilities: dict[str, float] = {}
        self.finished, self.read_s = False, 0.0

    @property
    def done_s(self) -> float:
        """Seconds of the recording that are done."""
        return self.read_s if self.finished else 0.0

    def step(self) -> list[Segment]:
        """Detect the language."""
        samples = next(stream_audio(self._audio))[:WINDOW_SAMPLES]
        self.read_s = len(samples) / SAMPLE_RATE
        detect = partial(self._recognizer.detect_language, samples)
        self._probabilities = detect(self._options) or detect(replace(self._options, vad=False))
        self.finished = True
        return []

    def so_far(self) -> Transcript:
        """Return a transcript without text, in the most probable language."""
        language, probability = next(iter(self._probabilities.items()), ("en", 0.0))
        return Transcript(
            segments=(),
            language=language,
            language_probability=probability,
            duration_s=self.read_s,
            model=self._recognizer.model,
        )

    def stop(self) -> None:
        """Do nothing: there is one step alone."""
