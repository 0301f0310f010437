"""A live session from its first sample to its last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol

from harken.cli.intake import Intake
from harken.contract import Floats
from harken.errors import AudioError, OutputError
from harken.results import Segment
from harken.streaming import Committed, Event, LiveSession, LoadChanged
from harken.types import SAMPLE_RATE


class Face(Protocol):
    """Where events appear."""

    def show(self, event: Event) -> None:
        """Show an event, if it is to be seen."""
        ...

    def note(self, text: str) -> None:
        """Say something else on standard error."""
        ...

    def close(self) -> None:
        """Leave what stands there."""
        ...


@dataclass
class Heard:
    """How much has been heard.

    Attributes
    ----------
    samples : int
        At 16 kHz.
    busy_s : float
        How long the session computed.
    """

    samples: int = 0
    busy_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Length of the sound so far."""
        return self.samples / SAMPLE_RATE


@dataclass(kw_only=True)
class Listening:
    """What becomes of sound.

    Parameters
    ----------
    session : LiveSession
    face : Face
    heard : Heard
        Counts.
    keep_sound, keep_segment : callable
        Get all sound, and every final segment.
    warn : bool
        Whether to tell of sound that was lost, and of load.
    """

    session: LiveSession
    face: Face
    heard: Heard
    keep_sound: Callable[[Floats], None]
    keep_segment: Callable[[Segment], None]
    warn: bool = True

    def follow(self, intake: Intake) -> AudioError | OutputError | None:
        """Hear sound until there is no more, then what is left to say of it.

        Returns
        -------
        AudioError or OutputError or None
            What ended the sound before its end; what was heard until then has been shown.
        """
        failure: AudioError | OutputError | None = None
        lost = False
        try:
            for block in intake:
                self.heard.samples += len(block)
                self.keep_sound(block)
                self._show(partial(self.session.feed, block))
                if intake.lost_s and not lost:
                    lost = True
                    self._warn("some sound came faster than this machine took it in; silence stands in for it")
        except (AudioError, OutputError) as error:
            failure = error
        self._show(self.session.close)
        return failure

    def _show(self, work: Callable[[], list[Event]]) -> None:
        """Show what comes of some work."""
        began_s = perf_counter()
        events = work()
        self.heard.busy_s += perf_counter() - began_s
        for event in events:
            self.face.show(event)
            match event:
                case Committed():
                    self.keep_segment(event.segment)
                case LoadChanged():
                    self._warn(f"{event.lag_s:.1f} s behind: {event.detail}")

    def _warn(self, text: str) -> None:
        if self.warn:
            self.face.note(f"harken: {text}")
