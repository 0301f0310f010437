"""Live sessions: the public interface to one stream, or to several that share the model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.audio import stream_audio
from harken.contract import Floats
from harken.decoding import DecodeStats
from harken.errors import HarkenError
from harken.streaming.config import StreamingConfig, StreamOptions
from harken.streaming.events import Event
from harken.streaming.latency import LatencyPlan
from harken.streaming.live_speakers import LiveSpeakers
from harken.streaming.stream import Stream
from harken.streaming.worker import ModelWorker

_NO_SAMPLES = np.empty(0, np.float32)
_NO_WAITS: Mapping[Hashable, float] = MappingProxyType({})


class LiveSession:
    """One live stream: samples in, events out, without waiting or reading the time of day.

    The text does not depend on how the samples are split into blocks. A session belongs to one thread at a time;
    threads may work on sessions of their own at once. `harken.Recognizer.stream` opens a session and has an example.

    Parameters
    ----------
    worker : ModelWorker
    options : StreamOptions
    plan : LatencyPlan
    speakers : LiveSpeakers, optional
        Tells who says the words.

    Attributes
    ----------
    plan : LatencyPlan
        The configuration, the load level that the session starts with, and the latency bound at that level.
    """

    def __init__(
        self,
        worker: ModelWorker,
        options: StreamOptions,
        plan: LatencyPlan,
        speakers: LiveSpeakers | None = None,
    ) -> None:
        self.plan = plan
        self._worker, self._speakers = worker, speakers
        self._sessions = LiveSessions(worker, options, plan)
        self._sessions.open(None)

    @property
    def config(self) -> StreamingConfig:
        """The configuration of the stream, before adaptation to noise and load."""
        return self.plan.config

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics of all updates so far."""
        return self._worker.stats

    @property
    def compute_s(self) -> float:
        """Seconds of computation so far, by the session's clock; 0 without one."""
        return self._worker.compute_s

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
        HarkenError
            If the session is closed, or in use: by another thread, or by the call that this one came from.
        """
        events = self._sessions.feed({None: samples}, waited_s={None: waited_s})[None]
        return self._speakers.follow(checked_samples(samples), events) if self._speakers else events

    def flush(self) -> list[Event]:
        """End the current utterance, as after a pause; the session goes on."""
        events = self._sessions.flush(None)
        return self._speakers.follow(_NO_SAMPLES, events) if self._speakers else events

    def close(self) -> list[Event]:
        """End the stream and return its last events; closing again returns none."""
        if not self._sessions.is_open(None):
            return []
        events = self._sessions.close(None)
        return self._speakers.end(events) if self._speakers else events


class LiveSessions:
    """Several live streams; their simultaneous requests to the model are computed as one batch.

    Parameters
    ----------
    worker, options, plan
        As for `LiveSession`.

    Examples
    --------
    >>> streams = harken.load("tiny.en").stream_many(2)
    >>> streams.open("door")
    >>> events = streams.feed({"door": samples})["door"]
    """

    def __init__(self, worker: ModelWorker, options: StreamOptions, plan: LatencyPlan) -> None:
        self.plan = plan
        self._worker, self._options = worker, options
        self._streams: dict[Hashable, Stream] = {}
        self._turns = [None]  # empty while a call works; taking from a list is atomic

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
            self._streams[name] = Stream(self._worker, self._options, self.plan)

    def is_open(self, name: Hashable) -> bool:
        """Tell whether a stream of that name is open."""
        return name in self._streams

    def feed(
        self, samples: Mapping[Hashable, NDArray[Any]], *, waited_s: Mapping[Hashable, float] = _NO_WAITS
    ) -> dict[Hashable, list[Event]]:
        """Take the next samples of some streams and return their new events, by name.

        Parameters
        ----------
        samples, waited_s : mapping
            By name, as for `LiveSession.feed`.

        Raises
        ------
        AudioError
            As for `LiveSession.feed`; then no stream takes its samples.
        HarkenError
            If a stream is not open, or the streams are in use, as for `LiveSession.feed`.
        """
        with self._turn():
            streams = {name: self._opened_stream(name) for name in samples}
            blocks = {name: checked_samples(block) for name, block in samples.items()}
            self._worker.run(
                [stream.feed(blocks[name], waited_s.get(name, 0.0)) for name, stream in streams.items()]
            )
            return {name: stream.pop_events() for name, stream in streams.items()}

    def flush(self, name: Hashable) -> list[Event]:
        """End the current utterance of a stream and return its events."""
        with self._turn():
            opened = self._opened_stream(name)
            self._worker.run([opened.flush()])
            return opened.pop_events()

    def close(self, name: Hashable) -> list[Event]:
        """End a stream and return its last events."""
        with self._turn():
            closed = self._opened_stream(name)
            del self._streams[name]
            self._worker.run([closed.close()])
            return closed.pop_events()

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

    def _opened_stream(self, name: Hashable) -> Stream:
        if name not in self._streams:
            which = "session is closed" if name is None else f"stream {name!r} is closed, or was never opened"
            raise HarkenError(f"the {which}")
        return self._streams[name]


def checked_samples(samples: NDArray[Any]) -> Floats:
    """Return samples as float32.

    Raises
    ------
    AudioError
        If they are of another dtype or shape, not finite, or obviously in another scale.
    """
    samples = np.asarray(samples)
    return np.concatenate([np.empty(0, np.float32), *(stream_audio(samples) if samples.size else ())])
