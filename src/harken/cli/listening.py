"""A live session from its first sample to its last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol

from harken.cli.intake import AudioReader
from harken.contract import Floats
from harken.errors import AudioError, OutputError
from harken.results import Segment
from harken.streaming import Event, FinalSegment, LiveSession, LoadChanged
from harken.types import SAMPLE_RATE


class EventRenderer(Protocol):
    """Where events appear."""

    def show(self, event: Event) -> None:
        """Show an event, if it is to be seen."""
        ...

    def write_stderr(self, text: str) -> None:
        """Say something else on standard error."""
        ...

    def close(self) -> None:
        """Leave what stands there."""
        ...


@dataclass
class LiveStats:
    """How much has been heard.

    Attributes
    ----------
    samples : int
        At 16 kHz.
    busy_s : float
        How long the session computed.
    """

    samples: int = 0
    compute_s: float = 0.0

    @property
    def audio_s(self) -> float:
        """Length of the sound so far."""
        return self.samples / SAMPLE_RATE


@dataclass(kw_only=True)
class LiveRunner:
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
    renderer: EventRenderer
    stats: LiveStats
    write_samples: Callable[[Floats], None]
    write_segment: Callable[[Segment], None]
    show_warnings: bool = True

    def run(self, reader: AudioReader) -> AudioError | OutputError | None:
        """Hear sound until there is no more, then what is left to say of it.

        Returns
        -------
        AudioError or OutputError or None
            What ended the sound before its end; what was heard until then has been shown.
        """
        failure: AudioError | OutputError | None = None
        loss_reported = False
        try:
            for block in reader:
                self.stats.samples += len(block)
                self.write_samples(block)
                self._run_and_render(partial(self.session.feed, block))
                if reader.lost_s and not loss_reported:
                    loss_reported = True
                    self._warn("some sound came faster than this machine took it in; silence stands in for it")
        except (AudioError, OutputError) as error:
            failure = error
        self._run_and_render(self.session.close)
        return failure

    def _run_and_render(self, compute: Callable[[], list[Event]]) -> None:
        """Show what comes of some work."""
        began_s = perf_counter()
        events = compute()
        self.stats.compute_s += perf_counter() - began_s
        for event in events:
            self.renderer.show(event)
            match event:
                case FinalSegment():
                    self.write_segment(event.segment)
                case LoadChanged():
                    self._warn(f"{event.lag_s:.1f} s behind: {event.detail}")

    def _warn(self, text: str) -> None:
        if self.show_warnings:
            self.renderer.write_stderr(f"harken: {text}")
