"""A client of the own WebSocket that collects what it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from socket import SHUT_RDWR
from time import monotonic, sleep
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from serve.serving import Serving

MAX_WAIT_S = 60.0
"""Longest wait for anything; only a failure takes as long."""


class LiveClient:
    """A connection of a client.

    Parameters
    ----------
    server : Serving
    **first
        Fields of the first message, if there is to be one.

    Attributes
    ----------
    messages : list of dict
        Those that were received.
    """

    def __init__(self, server: Serving, **first: Any) -> None:
        self.socket: ClientConnection = connect(f"{server.socket_url}/v1/stream", compression=None)
        self.messages: list[dict[str, Any]] = []
        if first:
            self.send(**first)

    def __enter__(self) -> LiveClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, **fields: Any) -> None:
        """Send a message of text."""
        self.socket.send(json.dumps(fields))

    def audio(self, data: bytes, block_bytes: int = 3200) -> None:
        """Send audio in binary messages."""
        for start in range(0, len(data), block_bytes):
            self.socket.send(data[start : start + block_bytes])

    def vanish(self) -> None:
        """Lose the connection without a word."""
        self.socket.socket.shutdown(SHUT_RDWR)

    def receive(self) -> dict[str, Any]:
        """Wait for the next message."""
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=MAX_WAIT_S))
        self.messages.append(message)
        return message

    def until(self, **expected: Any) -> dict[str, Any]:
        """Wait for a message with some fields."""
        while True:
            message = self.receive()
            if expected.items() <= message.items():
                return message

    def drain(self) -> int:
        """Receive all that comes; return the close code."""
        try:
            while True:
                self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 0

    def events(self) -> list[dict[str, Any]]:
        """Return the events but interims, without their numbers and what depends on the machine."""
        left_out = ("seq", "compute_s")
        return [
            {key: value for key, value in message.items() if key not in left_out}
            for message in self.messages
            if message.get("event") in ("speech_started", "final_segment", "speech_ended")
        ]

    def finals(self) -> list[str]:
        """Return the texts of the final segments."""
        return [event["segment"]["text"] for event in self.events() if event["event"] == "final_segment"]

    def numbers(self) -> list[int]:
        """Return the numbers of the events."""
        return [message["seq"] for message in self.messages if "event" in message]


def opened(server: Serving, **hello: Any) -> tuple[LiveClient, dict[str, Any]]:
    """Open a stream; return its client and the first answer."""
    client = LiveClient(server, type="hello", **hello)
    return client, client.receive()


def resumed(server: Serving, ready: dict[str, Any], seq: int) -> LiveClient:
    """Connect to a stream again."""
    return LiveClient(server, type="resume", session=ready["session"], token=ready["resume_token"], seq=seq)


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end_s = monotonic() + MAX_WAIT_S
    while not holds():
        assert monotonic() < end_s
        sleep(0.01)
