"""Jobs of the engine: a file, a window at a time; and a live stream, as its samples come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from time import monotonic
from typing import Literal, Protocol

import numpy as np

from harken.contract import Floats
from harken.results import Segment, Transcript
from harken.serve.errors import too_long
from harken.serve.waiting import Changes
from harken.serve.work.admission import LiveCost
from harken.serve.work.engine import Engine, Failed, Job
from harken.streaming import Event, FinalSegment, Interim, LiveSession, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

MAX_UPDATES = 4
"""Windows of a file that may wait for a slow reader."""
MAX_EVENTS = 64
"""Events that may wait for a slow reader before its stream waits too; an interim takes the place of the one before."""
MAX_PENDING_S = 5.0
"""Seconds of samples that may wait for the engine before a sender has to."""
MAX_STEP_SAMPLES = SAMPLE_RATE
"""Samples to process in a step: other streams do not wait for a second of one that has fallen behind."""
MAX_TURN_MEMORY = 1 << 21
"""Bytes of a turn, some half a minute, from which its samples lie in a file: nobody knows when it ends."""


class Work(Protocol):
    """Work on a file, step by step, such as `harken.transcription.Transcription`."""

    @property
    def finished(self) -> bool:
        """True once there is no further step."""

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""

    @property
    def done_s(self) -> float:
        """Seconds of the recording that are done."""

    def step(self) -> list[Segment]:
        """Do a step, and return the segments that it completes."""

    def so_far(self) -> Transcript:
        """Return the result so far."""

    def stop(self) -> None:
        """Let go of the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUpdate:
    """The outcome of a step: segments, and the seconds that are done."""

    segments: list[Segment]
    done_s: float


class FileJob(Job[FileUpdate]):
    """The work on a file.

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
    work : Work or None
        None before the first step.
    """

    live = False

    def __init__(
        self,
        engine: Engine,
        start: Callable[[], Work],
        on_end: Callable[[], None],
        max_audio_s: float,
    ) -> None:
        super().__init__(engine, on_end, MAX_UPDATES)
        self.work: Work | None = None
        self._start, self._max_audio_s, self._since_s = start, max_audio_s, monotonic()

    def waiting_since(self) -> float | None:
        return None if self.updates.full and not self._cancelled else self._since_s

    def _advance(self) -> bool:
        work = self.work = self.work or self._start()
        segments = work.step()
        if work.read_s > self._max_audio_s:
            raise too_long(work.read_s, self._max_audio_s)
        self.updates.put(FileUpdate(segments=segments, done_s=work.done_s))
        return work.finished

    def _let_go(self) -> None:
        if self.work:
            self.work.stop()


NO_SAMPLES: Floats = np.zeros(0, np.float32)
Action = Literal["feed", "mark", "flush", "drop", "close"]
"""What a stream does behind the samples so far: take further ones; tell that it is there; end the utterance and the
turn, which is transcribed or dropped, and tell that; or end. It tells by `Flushed`, behind all other events."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """The wish for a live stream."""

    model: str  # id of a model, or an alias
    options: TranscribeOptions
    stream_options: StreamOptions
    is_bounded: bool = True  # true if its audio may be no longer than a session
    speakers: bool = False  # true to tell speakers apart
    # True for `Transcribed` behind the events of a flush and of the end: what has come since the flush before,
    # transcribed as a recording.
    whole_turns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """The end of what a mark, a flush or the close of a stream has brought."""

    token: object = None  # what was given with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcribed:
    """Segments of a turn, transcribed as a recording with its samples; their times are in the turn."""

    segments: tuple[Segment, ...]


LiveUpdate = Event | Flushed | Transcribed | Failed


@dataclass(frozen=True, slots=True)
class _Input:
    """Samples that have come at a time, or what to do behind the samples before it."""

    samples: Floats
    came_s: float
    action: Action = "feed"
    token: object = None


class Turn:
    """The samples of a stream since its last flush, which are transcribed as a recording when they end.

    Parameters
    ----------
    transcribe : callable
        Begins the transcription of samples.
    max_s : float
        Longest turn, in seconds.
    """

    def __init__(self, transcribe: Callable[[Floats], Work], max_s: float) -> None:
        self._transcribe, self._max_s = transcribe, max_s
        self._file = SpooledTemporaryFile(MAX_TURN_MEMORY)  # noqa: SIM115 (closed by `close`)
        self._work: Work | None = None

    @property
    def in_progress(self) -> bool:
        """True while its transcription has further steps."""
        return self._work is not None

    def add(self, samples: Floats) -> None:
        """Take the next samples.

        Raises
        ------
        RequestError
            If the turn becomes longer than allowed.
        """
        self._file.write(samples.tobytes())
        seconds = self._file.tell() / samples.itemsize / SAMPLE_RATE
        if seconds > self._max_s:
            raise too_long(seconds, self._max_s)

    def end(self) -> tuple[Segment, ...]:
        """Transcribe a window of it, and return the segments; it is to be called again while it is in progress."""
        if not self._work and self._file.tell():
            self._file.seek(0)
            self._work = self._transcribe(np.frombuffer(self._file.read(), np.float32))
            self.drop()
        segments = tuple(self._work.step()) if self._work else ()
        if self._work and self._work.finished:
            self._stop()
        return segments

    def drop(self) -> None:
        """Forget the samples; the next turn begins."""
        self._file.seek(0)
        self._file.truncate()

    def close(self) -> None:
        """Let go of the samples."""
        self._stop()
        with suppress(OSError):  # it writes what waits in its buffer, for which a full disk has no room
            self._file.close()

    def _stop(self) -> None:
        if self._work:
            self._work.stop()
        self._work = None


class LiveJob(Job[LiveUpdate]):
    """A live session.

    Parameters
    ----------
    engine : Engine
    open_session : callable
        Opens the session; called in the engine's thread.
    on_end : callable
        Called once, in any thread, when it ends or is cancelled.
    cost : LiveCost
        What the admission counts of it.
    turn : Turn, optional
        Transcribes what has come between two flushes.

    Attributes
    ----------
    updates : Outbox of LiveUpdate
        Events, and `Flushed` behind those of a flush. `Transcribed` comes behind the events of a flush or of the close,
        if there is a turn.
    session : LiveSession or None
        None before the first step.
    lag_s : float
        Seconds from the arrival of the samples processed last to the end of their processing.
    processed_samples, step_samples : int
        Samples of the stream so far, and of the last step.
    step_segments : int
        Final segments of the last step.
    """

    live = True

    def __init__(
        self,
        engine: Engine,
        open_session: Callable[[], LiveSession],
        on_end: Callable[[], None],
        cost: LiveCost,
        turn: Turn | None,
    ) -> None:
        super().__init__(engine, on_end, MAX_EVENTS)
        self.cost = cost
        self.session: LiveSession | None = None
        self.lag_s = 0.0
        self.processed_samples = self.step_samples = self.step_segments = 0
        self._open_session, self._turn = open_session, turn
        self._inputs: deque[_Input] = deque([_Input(NO_SAMPLES, monotonic())])
        self._opened_s = self._inputs[0].came_s
        self._given_samples = 0  # by the event loop; `processed_samples` by the engine's thread
        self._changes = Changes()

    def waiting_since(self) -> float | None:
        if self._cancelled:
            return 0.0
        return self._inputs[0].came_s if self._inputs and not self.updates.full else None

    async def feed(self, samples: Floats) -> None:
        """Take samples, float32 at 16 kHz; wait while too many are pending, so that a fast sender has to wait."""
        await self._changes.until(
            lambda: self._given_samples - self.processed_samples < MAX_PENDING_S * SAMPLE_RATE or self.done
        )
        self._given_samples += len(samples)
        self.ask("feed", samples=samples)

    def ask(self, action: Action, token: object = None, samples: Floats = NO_SAMPLES) -> None:
        """Have the stream do something; `Flushed` brings the token back."""
        if self.done:  # nobody would take it
            return
        self._inputs.append(_Input(samples, monotonic(), action, token))
        self._engine.wake()

    def _next_inputs(self) -> list[_Input]:
        """Take the samples that have come, up to a second of them, or the action before them."""
        taken = [self._inputs.popleft()]
        n_samples = len(taken[0].samples)
        while taken[-1].action == "feed" and self._inputs and self._inputs[0].action == "feed":
            n_samples += len(self._inputs[0].samples)
            if n_samples > MAX_STEP_SAMPLES:
                break
            taken.append(self._inputs.popleft())
        return taken

    def _advance(self) -> bool:
        inputs = self._next_inputs()
        session = self.session = self.session or self._open_session()
        action, token = inputs[-1].action, inputs[-1].token
        samples = np.concatenate([given.samples for given in inputs])
        self.step_samples = len(samples)
        match action:
            case "feed":
                events = session.feed(samples, waited_s=self._waited_s(inputs[-1]))
                if self._turn:
                    self._turn.add(samples)
            case "mark":
                events = []
            case "flush" | "drop":
                events = session.flush()
            case "close":
                events = session.close()
        self.step_segments = sum(isinstance(event, FinalSegment) for event in events)
        self.lag_s = monotonic() - inputs[-1].came_s
        self.processed_samples += len(samples)
        self._changes.tell()
        for event in events:
            self.updates.put(event, merge=_merged_interims)
        if self._turn and action == "drop":
            self._turn.drop()
        if self._turn and action in ("flush", "close"):
            self.updates.put(Transcribed(segments=self._turn.end()))
            if self._turn.in_progress:  # the next window is another step, behind other streams
                self._inputs.appendleft(replace(inputs[-1], came_s=monotonic()))
                return False
        if action in ("mark", "flush", "drop"):
            self.updates.put(Flushed(token=token))
        return action == "close"

    def _waited_s(self, given: _Input) -> float:
        """Return the seconds that samples have waited; not those by which a sender is ahead of real time."""
        now_s = monotonic()
        behind_s = now_s - self._opened_s - (self.processed_samples + self.step_samples) / SAMPLE_RATE
        return max(0.0, min(now_s - given.came_s, behind_s))

    def _let_go(self) -> None:
        if self._turn:
            self._turn.close()
        self._changes.tell()


def _merged_interims(last: LiveUpdate, new: LiveUpdate) -> LiveUpdate | None:
    """Return one interim for two: the later one has all the text, and takes the words of the earlier."""
    if isinstance(last, Interim) and isinstance(new, Interim):
        return replace(new, words=last.words + new.words)
    return None
