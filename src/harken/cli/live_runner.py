"""The loop of a live session: audio in, captions and files out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from harken.cli.live_display import LiveDisplay
from harken.cli.outputs import Outputs
from harken.cli.sources import AudioReader
from harken.errors import AudioError
from harken.streaming import Event, FinalSegment, LiveSession, LoadChanged, SpeakersChanged
from harken.types import SAMPLE_RATE


@dataclass
class LiveStats:
    """The counts of a session.

    Attributes
    ----------
    samples : int
        Number of samples so far, at 16 kHz.
    compute_s : float
        Time that the session computed.
    """

    samples: int = 0
    compute_s: float = 0.0

    @property
    def audio_s(self) -> float:
        """Duration of the audio so far."""
        return self.samples / SAMPLE_RATE


@dataclass(kw_only=True)
class LiveRunner:
    """The loop that feeds audio to a session, shows its events and writes its text.

    Parameters
    ----------
    session : LiveSession
    display : LiveDisplay
    outputs : Outputs
    stats : LiveStats
    show_warnings : bool
        Report lost audio and changes of load.
    """

    session: LiveSession
    display: LiveDisplay
    outputs: Outputs
    stats: LiveStats
    show_warnings: bool = True

    def run(self, reader: AudioReader) -> AudioError | None:
        """Transcribe the audio to its end, or until nothing can take the text any more.

        Returns
        -------
        AudioError or None
            The error that ended the audio early; the text until then has been shown.
        """
        failure: AudioError | None = None
        loss_reported = False
        try:
            for block in reader:
                self.stats.samples += len(block)
                self._run_and_show(partial(self.session.feed, block))
                if reader.lost_s and not loss_reported:
                    loss_reported = True
                    self._warn("this machine was too busy to read all audio; silence replaces the lost part")
                for line in self.outputs.news():
                    self.display.tell(f"harken: {line}")
                if self.display.problem and not self.outputs.writable:
                    break
        except AudioError as error:
            failure = error
        self._run_and_show(self.session.close)
        return failure

    def _run_and_show(self, compute: Callable[[], list[Event]]) -> None:
        """Run a step of the session and show its events."""
        began_s = perf_counter()
        events = compute()
        self.stats.compute_s += perf_counter() - began_s
        for event in events:
            if isinstance(event, FinalSegment):
                self.outputs.add_segment(event.segment)
            elif isinstance(event, SpeakersChanged):
                self.outputs.correct_segment(event.segment)
            self.display.show(event)
            if isinstance(event, LoadChanged):
                state = (
                    f"{event.lag_s:.1f} s behind:"
                    if event.lag_s
                    else "this machine is busy or slow; starting with"
                )
                self._warn(f"{state} {event.detail}")

    def _warn(self, text: str) -> None:
        if self.show_warnings:
            self.display.tell(f"harken: {text}")
