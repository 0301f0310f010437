"""Tickets: short-lived keys that a server with the real key gets for the browsers of its users."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_urlsafe
from time import time

from harken.serve.errors import RequestError, busy

MIN_S, MAX_S, DEFAULT_S = 10, 7_200, 600
"""Seconds that a ticket may be valid, and is if nobody says otherwise."""
MAX_TICKETS = 1_000
PREFIX = "ek_"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A short-lived key.

    Parameters
    ----------
    value : str
    expires_at : int
        In seconds since 1970.
    session : object
        What sessions that are opened with it begin with.
    """

    value: str
    expires_at: int
    session: object = None


class Tickets:
    """The tickets that a server has given out. They open sessions until they expire, and sessions outlast them.

    Parameters
    ----------
    clock : callable
        Returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._tickets: dict[bytes, Ticket] = {}

    def make(self, valid_s: int = DEFAULT_S, session: object = None) -> Ticket:
        """Return a new ticket.

        Raises
        ------
        RequestError
            If it is to be valid for longer or shorter than allowed, or if there are too many.
        """
        if not MIN_S <= valid_s <= MAX_S:
            message = f"seconds={valid_s}: allowed is {MIN_S} to {MAX_S}"
            raise RequestError(message, code="invalid_value", param="expires_after.seconds")
        now = self._clock()
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket.expires_at > now}
        if len(self._tickets) >= MAX_TICKETS:
            raise busy(f"{MAX_TICKETS} short-lived keys are valid; allowed are no more", MIN_S)
        ticket = Ticket(PREFIX + token_urlsafe(32), int(now) + valid_s, session)
        self._tickets[_digest(ticket.value)] = ticket
        return ticket

    def find(self, key: str) -> Ticket | None:
        """Return the ticket with this key, if it is valid; the time that it takes tells nothing about others."""
        digest = _digest(key)
        ticket = self._tickets.get(digest)
        if ticket is None or not hmac.compare_digest(digest, _digest(ticket.value)):
            return None
        return ticket if ticket.expires_at > self._clock() else None

    def is_valid(self, key: str) -> bool:
        """Tell if a key is that of a valid ticket."""
        return self.find(key) is not None


def _digest(key: str) -> bytes:
    """Return what tickets are found by, from which nothing can be guessed."""
    return sha256(key.encode(errors="surrogateescape")).digest()
