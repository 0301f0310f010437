"""Messages on their way to a client: each sent once, or kept for one who comes back after a lost connection."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from harken.formats import dump_json
from harken.results import Word
from harken.streaming import Event, Interim
from harken.streaming.events import event_fields

MAX_UNSENT = 16
"""Messages that may wait for a slow reader before its stream waits."""
MAX_REPLAY_BYTES = 4 << 20
"""An hour of speech takes about half of it, with the times of all words."""


class Outgoing:
    """Messages on their way to a client, each sent once.

    Notes
    -----
    It belongs to the event loop that runs while it is made.
    """

    def __init__(self) -> None:
        self._unsent: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, message: Any) -> None:
        """Add a message."""
        self._unsent.append(message)
        self._tell()

    def close(self) -> None:
        """Note that nothing follows."""
        self._closed = True
        self._tell()

    async def room(self) -> None:
        """Wait until few enough have not been sent."""
        while len(self._unsent) >= MAX_UNSENT and not self._closed:
            await self._changed.wait()

    async def after(self, seq: int) -> AsyncIterator[Any]:
        """Yield the messages as they come, up to the last one before `close`; of numbered ones those after a number."""
        while self._unsent or not self._closed:
            if self._unsent:
                yield self._unsent[0]
                self._unsent.popleft()
                self._tell()
            else:
                await self._changed.wait()

    def _tell(self) -> None:
        """Wake all who wait."""
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(frozen=True, slots=True)
class _Message:
    seq: int
    text: str


class ReplayLog(Outgoing):
    """Numbered messages, kept until the client acknowledges them or newer ones need their room.

    Of interims only the last is kept: each has all the text of the one before.

    Parameters
    ----------
    max_bytes : int
        Size of the messages to keep. Those that have not been sent are never given up: `room` waits for them.

    Attributes
    ----------
    last : int
        Number of the last message; they are numbered from 1.
    forgotten : int
        Number of the last message that cannot be sent again.
    """

    def __init__(self, max_bytes: int = MAX_REPLAY_BYTES) -> None:
        super().__init__()
        self.last = self.forgotten = 0
        self._max_bytes, self._n_bytes = max_bytes, 0
        self._messages: list[_Message] = []
        self._interim: Interim | None = None
        # Words of the interims of an utterance, with the numbers of these.
        self._words: list[tuple[int, Word]] = []
        self._sent = 0

    def add(self, message: Event | dict[str, Any]) -> None:
        """Number an event or another message, and keep it."""
        if isinstance(message, Interim):
            self.last += 1
            self._interim = message
            self._words += [(self.last, word) for word in message.words]
        else:
            if self._interim and self.last > self._sent:
                self._keep(self._interim_message(self._interim, self._sent))
            self._interim = None
            self._words.clear()
            self.last += 1
            fields = message if isinstance(message, dict) else event_fields(message)
            self._keep(_Message(self.last, dump_json(fields | {"seq": self.last})))
        self._tell()

    def acknowledge(self, seq: int) -> None:
        """Forget the messages up to a number."""
        while self._messages and self._messages[0].seq <= seq:
            self._forget_oldest()
        self._tell()

    async def room(self) -> None:
        """Wait until the messages that have not been sent leave room for another."""
        while self._n_bytes > self._max_bytes:
            if self._messages[0].seq <= self._sent:
                self._forget_oldest()
            else:
                await self._changed.wait()

    async def after(self, seq: int) -> AsyncIterator[str]:
        """Yield the messages after a number as they come, up to the last one before `close`."""
        while True:
            if message := self._next(seq):
                seq = message.seq
                self._sent = max(self._sent, seq)
                yield message.text
                self._tell()
            elif self._closed:
                return
            else:
                await self._changed.wait()

    def _next(self, seq: int) -> _Message | None:
        index = bisect_right(self._messages, seq, key=lambda message: message.seq)
        if index < len(self._messages):
            return self._messages[index]
        return self._interim_message(self._interim, seq) if self._interim and self.last > seq else None

    def _interim_message(self, interim: Interim, seq: int) -> _Message:
        """Return the last interim, with the words that were committed after a message."""
        words = tuple(word for number, word in self._words if number > seq)
        return _Message(self.last, dump_json(event_fields(replace(interim, words=words)) | {"seq": self.last}))

    def _keep(self, message: _Message) -> None:
        self._messages.append(message)
        self._n_bytes += len(message.text)

    def _forget_oldest(self) -> None:
        oldest = self._messages.pop(0)
        self._n_bytes -= len(oldest.text)
        self.forgotten = oldest.seq
