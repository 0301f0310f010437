"""Live sessions: the public interface to one stream, or to several that share the model; the speakers of a stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harken.audio import stream_audio
from harken.contract import Floats
from harken.decoding import DecodeStats
from harken.errors import AudioError, HarkenError, refuse_pickling
from harken.option_types import checked_value
from harken.results import Segment
from harken.speakers.attribution import SpeakerAttribution
from harken.speakers.live import LiveDiarization
from harken.streaming.config import StreamingConfig, StreamOptions
from harken.streaming.events import Event, FinalSegment, SpeakersChanged
from harken.streaming.latency import LatencyPlan
from harken.streaming.stream import Stream
from harken.streaming.worker import ModelWorker

_NO_SAMPLES = np.empty(0, np.float32)
_NO_WAITS: Mapping[Any, float] = MappingProxyType({})
NameT = TypeVar("NameT", bound=Hashable)


class LiveSession:
    """One live stream: samples in, events out, without waiting or reading the time of day.

    The text does not depend on how the samples are split into blocks. A session belongs to one thread at a time;
    threads may work on sessions of their own at once. `harken.Recognizer.stream` opens a session and has an example.

    Parameters
    ----------
    sessions : LiveSessions
        Without any stream yet.

    Attributes
    ----------
    plan : LatencyPlan
        The configuration, the load level that the session starts with, and the latency bound at that level.
    """

    def __init__(self, sessions: LiveSessions) -> None:
        self._sessions, self.plan = sessions, sessions.plan
        sessions.open(None)

    __reduce__ = refuse_pickling

    @property
    def config(self) -> StreamingConfig:
        """The configuration of the stream, before adaptation to noise and load."""
        return self.plan.config

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics of all updates so far."""
        return self._sessions.stats

    @property
    def compute_s(self) -> float:
        """Seconds of computation so far, by the session's clock; 0 without one."""
        return self._sessions.compute_s

    def feed(self, samples: NDArray[Any], *, waited_s: float = 0.0) -> list[Event]:
        """Take the next samples and return the new events.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32 or float64 of a level up to 8, or int16, mono at 16 kHz
            Any number of samples, also none. Floats are taken as they are; a few wild ones beyond 8 become 1 or -1.
        waited_s : float
            Seconds since the last of them came, if the machine had other work: they count as lag, unless the session
            has no clock.

        Raises
        ------
        AudioError
            If they are of another dtype or shape, not finite, or obviously in another scale, as `stream_audio` says;
            the session goes on without them.
        OptionError
            If `waited_s` is no finite number; the session goes on without the samples.
        HarkenError
            If the session is closed, or in use: by another thread, or by the call that this one came from; or if it
            cannot go on.

        Notes
        -----
        Whatever else breaks off a call, errors of the model and Ctrl-C, leaves a session that cannot go on: further
        calls say so with a `HarkenError`, and `close` returns the events before the failure.
        """
        return self._sessions.feed({None: samples}, waited_s={None: waited_s})[None]

    def flush(self) -> list[Event]:
        """End the current utterance, as after a pause; the session goes on."""
        return self._sessions.flush(None)

    def close(self) -> list[Event]:
        """End the stream and return its last events; closing again returns none."""
        return self._sessions.close(None) if self._sessions.is_open(None) else []


@dataclass(slots=True)
class _OpenStream:
    """A stream, its speakers if they are told apart, and what broke off a call, so that it cannot go on."""

    stream: Stream
    speakers: LiveSpeakers | None
    failure: str | None = None

    def pop_events(self, samples: Floats) -> list[Event]:
        """Return the new events, which these samples have brought."""
        events = self.stream.pop_events()
        return self.speakers.follow(samples, events) if self.speakers else events


class LiveSessions:
    """Several live streams; their simultaneous requests to the model are computed as one batch.

    Parameters
    ----------
    worker : ModelWorker
    options : StreamOptions
    plan : LatencyPlan
        As of `LiveSession`.
    begin_diarization : callable, optional
        Makes what tells the speakers of a stream apart.

    Examples
    --------
    >>> streams = harken.load("tiny.en").stream_many(2)
    >>> streams.open("door")
    >>> events = streams.feed({"door": samples})["door"]
    """

    def __init__(
        self,
        worker: ModelWorker,
        options: StreamOptions,
        plan: LatencyPlan,
        begin_diarization: Callable[[], LiveDiarization] | None = None,
    ) -> None:
        self.plan = plan
        self._worker, self._options, self._begin_diarization = worker, options, begin_diarization
        self._streams: dict[Hashable, _OpenStream] = {}
        self._turns = [None]  # empty while a call works; taking from a list is atomic

    __reduce__ = refuse_pickling

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics of all updates so far."""
        return self._worker.stats

    @property
    def compute_s(self) -> float:
        """Seconds of computation so far, by the sessions' clock; 0 without one."""
        return self._worker.compute_s

    def open(self, name: Hashable) -> None:
        """Open a stream.

        Raises
        ------
        HarkenError
            If a stream of that name is open; the name of a closed one may be used again.
        """
        with self._turn():
            if name in self._streams:
                raise HarkenError(f"there is a stream {name!r} already")
            begin, encode = self._begin_diarization, self._worker.tokenizer.encode
            self._streams[name] = _OpenStream(
                Stream(self._worker, self._options, self.plan), LiveSpeakers(begin(), encode) if begin else None
            )

    def is_open(self, name: Hashable) -> bool:
        """Tell whether a stream of that name is open."""
        return name in self._streams

    def feed(
        self, samples: Mapping[NameT, NDArray[Any]], *, waited_s: Mapping[NameT, float] = _NO_WAITS
    ) -> dict[NameT, list[Event]]:
        """Take the next samples of some streams and return their new events, by name.

        Parameters
        ----------
        samples, waited_s : mapping
            By name, as for `LiveSession.feed`.

        Raises
        ------
        AudioError, OptionError
            As for `LiveSession.feed`; then no stream takes its samples.
        HarkenError
            If a stream is not open, or the streams are in use, or one cannot go on, as for `LiveSession.feed`: what
            breaks off a call leaves all its streams so.
        """
        with self._turn():
            streams = {name: self._stream_named(name) for name in samples}
            blocks = {name: checked_samples(block) for name, block in samples.items()}
            waits_s = {name: checked_value("waited_s", waited_s.get(name, 0.0), float) for name in streams}
            with _whole_call(streams.values()):
                self._worker.run(
                    [each.stream.feed(blocks[name], waits_s[name]) for name, each in streams.items()]
                )
                return {name: each.pop_events(blocks[name]) for name, each in streams.items()}

    def flush(self, name: Hashable) -> list[Event]:
        """End the current utterance of a stream and return its events."""
        with self._turn():
            flushed = self._stream_named(name)
            with _whole_call([flushed]):
                self._worker.run([flushed.stream.flush()])
                return flushed.pop_events(_NO_SAMPLES)

    def close(self, name: Hashable) -> list[Event]:
        """End a stream and return its last events, those before the failure if it could not go on."""
        with self._turn():
            closed = self._stream_named(name, may_have_failed=True)
            with _whole_call([closed]):
                self._worker.run([] if closed.failure else [closed.stream.close()])
                events = closed.stream.pop_events()
                if closed.speakers:
                    events = closed.speakers.end(events)
            del self._streams[name]
            return events

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Work on the streams, which another call would put out of order meanwhile."""
        try:
            turn = self._turns.pop()
        except IndexError:
            raise HarkenError(
                "this session is in use, by another thread or by the call that this one came from; "
                "allowed is one call at a time, or a session for each thread"
            ) from None
        try:
            yield
        finally:
            self._turns.append(turn)

    def _stream_named(self, name: Hashable, *, may_have_failed: bool = False) -> _OpenStream:
        which = "the session" if name is None else f"the stream {name!r}"
        if name not in self._streams:
            raise HarkenError(f"{which} is closed{'' if name is None else ', or was never opened'}")
        stream = self._streams[name]
        if stream.failure and not may_have_failed:
            raise HarkenError(
                f"{which} cannot go on, as a call was broken off by {stream.failure}: "
                "close it for the events before that, and open another"
            )
        return stream


@contextmanager
def _whole_call(streams: Iterable[_OpenStream]) -> Iterator[None]:
    """Do all the work of a call; what breaks it off leaves its streams out of step, so they cannot go on."""
    try:
        yield
    except BaseException as failure:
        for each in streams:
            each.failure = type(failure).__name__
        raise


def checked_samples(samples: NDArray[Any]) -> Floats:
    """Return samples as float32.

    Raises
    ------
    AudioError
        If they are of another dtype or shape, not finite, or obviously in another scale.
    """
    try:
        samples = np.asarray(samples)
    except ValueError:  # as for a pair of the sample rate and an array
        kind = type(samples).__name__
        raise AudioError(f"<{kind}>: allowed is an array of shape (samples,), one channel at 16 kHz") from None
    return np.concatenate([np.empty(0, np.float32), *(stream_audio(samples) if samples.size else ())])


class LiveSpeakers:
    """The speakers of the final segments of one stream: said at once, and corrected by events for a few seconds.

    Parameters
    ----------
    diarization : LiveDiarization
    encode : callable
        Returns the tokens of a text, for segments that are cut.
    """

    def __init__(self, diarization: LiveDiarization, encode: Callable[[str], Sequence[int]]) -> None:
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
        corrections = [*self._corrections()]
        return [*corrections, *(labelled for event in events for labelled in self._label(event))]

    def _hear(self, samples: Floats) -> Iterator[Event]:
        """Take samples; yield the corrections after each news."""
        while len(samples):
            missing = self._diarization.missing_samples
            self._diarization.feed(samples[:missing])
            self._n_samples += len(samples[:missing])
            if len(samples) >= missing:
                yield from self._corrections()
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

    def _corrections(self) -> Iterator[Event]:
        """Yield an event for each segment with other speakers than before; those of settled words stay."""
        settled_s = self._diarization.settled_s
        attribution = SpeakerAttribution(self._diarization.turns, self._encode)
        corrected = [attribution.corrected(segment, settled_s) for segment in self._unsettled]
        for before, segment in zip(self._unsettled, corrected, strict=True):
            if segment != before:
                yield SpeakersChanged(
                    audio_s=segment.end_s, emitted_samples=self._n_samples, compute_s=0.0, segment=segment
                )
        self._unsettled = [segment for segment in corrected if segment.end_s > settled_s]
