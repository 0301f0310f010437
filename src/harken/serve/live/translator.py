"""The translator of a protocol: what a client sends becomes commands for a stream, its updates become messages.

It knows neither sockets nor threads, so a protocol is tested as a function of what happens. A new protocol is a new
translator, and a `harken.serve.live.connection.Line` for its messages if these do not come over a WebSocket.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from harken.serve.errors import RequestError
from harken.serve.live.audio import AudioFormat
from harken.serve.work.jobs import LiveUpdate, OpenStream


@dataclass(frozen=True, slots=True)
class Check:
    """Find out if a stream could be opened; one that is open goes on, whatever comes of it."""

    stream: OpenStream


@dataclass(frozen=True, slots=True)
class Audio:
    """Give audio to the open stream."""

    data: bytes
    format: AudioFormat


@dataclass(frozen=True, slots=True)
class Flush:
    """End the current utterance, if a stream is open, and wait for `Flushed` with the token, behind its events."""

    token: object = None
    drops: bool = False  # true if what has come since the flush before need not be transcribed


@dataclass(frozen=True, slots=True)
class Mark:
    """Have `Flushed` with the token follow the events of the raw audio so far, and wait for nothing."""

    token: object = None


@dataclass(frozen=True, slots=True)
class CloseStream:
    """End the stream behind its audio, if one is open, and wait for its last update."""


@dataclass(frozen=True, slots=True)
class DropStream:
    """End the open stream at once; no update of it follows."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the session behind the messages before."""

    code: int
    reason: str  # one line
    last: Any = None  # the last message, which a client who comes back gets again; none if it is None


Output = OpenStream | Check | Audio | Flush | Mark | CloseStream | DropStream | HangUp | Any
"""What a translator wants done; all but commands are messages to send."""
Outputs = Generator[Output, None, None]
"""Each is done before the next is asked for; the error of a command that fails is raised where it was yielded."""


class Translator(Protocol):
    """A protocol between a client and a live stream: what comes in, and what is to be done about it.

    An error that a translator lets out ends the session for that reason.
    """

    def opened(self) -> Outputs:
        """Return what to do once the client is connected, by default nothing."""
        yield from ()

    def received(self, message: Any) -> Outputs:
        """Take a message of the client."""

    def updated(self, update: LiveUpdate) -> Outputs:
        """Take an update of the stream, maybe before a generator goes on.

        Allowed in return is what waits for nothing: messages, `Mark` and `HangUp`.
        """

    def ended(self, problem: RequestError) -> Outputs:
        """Return what to do so that the client gets its last results: the session ends for a reason."""
