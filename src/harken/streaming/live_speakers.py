"""The speakers of a live session: final segments say who speaks at once, and events correct that for a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from harken.contract import Floats
from harken.results import Segment, SpeakerTurn
from harken.speakers.attribution import SpeakerAttribution
from harken.streaming.events import Event, FinalSegment, SpeakersChanged


class LiveDiarizationProtocol(Protocol):
    """The turns of the speakers of a stream, such as `harken.speakers.live.LiveDiarization`."""

    @property
    def missing_samples(self) -> int:
        """Number of samples until there is news."""
        ...

    @property
    def settled_s(self) -> float:
        """Time up to which nothing changes any more."""
        ...

    @property
    def turns(self) -> tuple[SpeakerTurn, ...]:
        """Turns of the last minute."""
        ...

    def feed(self, samples: Floats) -> None:
        """Take the next samples."""
        ...

    def flush(self) -> None:
        """End the stream."""
        ...


class LiveSpeakers:
    """The speakers of the final segments of one stream.

    Parameters
    ----------
    diarization : LiveDiarizationProtocol
    encode : callable
        Returns the tokens of a text, for segments that are cut.
    """

    def __init__(self, diarization: LiveDiarizationProtocol, encode: Callable[[str], Sequence[int]]) -> None:
        self._diarization, self._encode = diarization, encode
        self._n_samples = self._n_segments = 0
        self._unsettled: list[Segment] = []

    def follow(self, samples: Floats, events: Iterable[Event]) -> list[Event]:
        """Take the next samples of the stream; return their events with speakers, and corrections of earlier ones."""
        start = self._n_samples
        labelled: list[Event] = []
        for event in events:
            labelled += self._hear(samples[self._n_samples - start : max(0, event.emitted_samples - start)])
            labelled += self._label(event)
        return [*labelled, *self._hear(samples[self._n_samples - start :])]

    def end(self, events: Iterable[Event]) -> list[Event]:
        """End the stream; return its last events with speakers, and the last corrections before them."""
        self._diarization.flush()
        corrections = [*self._corrections(self._diarization.settled_s)]
        return [*corrections, *(labelled for event in events for labelled in self._label(event))]

    def _hear(self, samples: Floats) -> Iterator[Event]:
        """Take samples; yield the corrections after each news."""
        while len(samples):
            missing = self._diarization.missing_samples
            self._diarization.feed(samples[:missing])
            self._n_samples += len(samples[:missing])
            if len(samples) >= missing:
                yield from self._corrections(self._diarization.settled_s)
            samples = samples[missing:]

    def _label(self, event: Event) -> Iterator[Event]:
        """Yield an event; a final segment with its speakers, cut where they change."""
        if not isinstance(event, FinalSegment):
            yield event
            return
        for part in SpeakerAttribution(self._diarization.turns, self._encode).segments([event.segment]):
            segment = replace(part, index=self._n_segments)
            self._n_segments += 1
            self._unsettled.append(segment)
            yield replace(event, audio_s=segment.end_s, segment=segment)

    def _corrections(self, settled_s: float) -> Iterator[Event]:
        """Yield an event for each segment with other speakers than before; those of settled words stay."""
        attribution = SpeakerAttribution(self._diarization.turns, self._encode)
        corrected = [attribution.corrected(segment, settled_s) for segment in self._unsettled]
        for before, segment in zip(self._unsettled, corrected, strict=True):
            if segment != before:
                yield SpeakersChanged(
                    audio_s=segment.end_s, emitted_samples=self._n_samples, compute_s=0.0, segment=segment
                )
        self._unsettled = [segment for segment in corrected if segment.end_s > settled_s]
