"""The translator of a protocol: what a client sends becomes commands for a stream, its updates become messages.

It knows neither sockets nor threads, so a protocol is tested as a function of what happens. A new protocol is a new
translator, and a `harken.serve.live.connection.Line` for its messages if these do not come over a WebSocket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from harken.serve.errors import RequestError, request_error
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
    """End the current utterance, if a stream is open, and wait for `Flushed` with the token, behind its events.

    Parameters
    ----------
    token : object
    drops : bool
        True if what has come since the flush before need not be transcribed.
    """

    token: object = None
    drops: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Have `Flushed` with the token follow the events of the raw audio so far, and wait for nothing."""

    token: object = None


@dataclass(frozen=True, slots=True)
class CloseStream:
    """End the stream behind its audio, if one is open, and wait for `StreamClosed`, behind its last events.

    Parameters
    ----------
    token : object
        Of a flush before the end, if it is not None.
    """

    token: object = None


@dataclass(frozen=True, slots=True)
class DropStream:
    """End the open stream at once; no update of it follows."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the session behind the messages before.

    Parameters
    ----------
    code : int
    reason : str
        One line.
    last : object
        The last message, if it is not None.
    """

    code: int
    reason: str
    last: Any = None


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream has ended; no update of it follows."""


Output = OpenStream | Check | Audio | Flush | Mark | CloseStream | DropStream | HangUp | Any
"""What a translator wants done; all but commands are messages to send."""


class Translator(Protocol):
    """A protocol between a client and a live stream: what comes in, and what is to be done about it.

    Outputs are taken one by one, and each is done before the next is asked for. Other methods may be called before a
    generator goes on.
    """

    def opened(self) -> Iterable[Output]:
        """Return what to do once the client is connected, by default nothing."""
        return ()

    def received(self, message: Any) -> Iterable[Output]:
        """Take a message of the client."""
        ...

    def updated(self, update: LiveUpdate | StreamClosed) -> Iterable[Output]:
        """Take an update of the stream. Only messages, `Mark` and `HangUp` are allowed in return."""
        ...

    def failed(self, error: Exception) -> Iterable[Output]:
        """Take the reason why a command could not be obeyed, before the output behind it is asked for.

        By default it ends the session.
        """
        return self.ended(request_error(error))

    def ended(self, problem: RequestError) -> Iterable[Output]:
        """Return what to do so that the client gets its last results: the server ends the session for a reason."""
        ...
