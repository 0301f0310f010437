"""Short-lived keys open sessions until they expire."""

from __future__ import annotations

import pytest

from harken.serve import guard
from harken.serve.errors import RequestError
from harken.serve.guard import Tickets


def test_a_ticket_is_valid_until_it_expires() -> None:
    now = [1_000.0]
    tickets = Tickets(clock=lambda: now[0])
    ticket = tickets.make(60, session="a configuration")
    assert ticket.expires_at == 1_060
    assert tickets.find(ticket.value)
    assert tickets.find(ticket.value) is ticket
    now[0] = 1_060.0
    assert not tickets.find(ticket.value)


def test_every_ticket_has_another_key() -> None:
    tickets = Tickets()
    assert len({tickets.make().value for _ in range(50)}) == 50


@pytest.mark.parametrize("key", ["", "ek_", "ek_guess", "\udcff"])
def test_other_keys_are_not_valid(key: str) -> None:
    tickets = Tickets()
    tickets.make()
    assert tickets.find(key) is None


def test_the_number_of_tickets_is_limited_and_expired_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    tickets = Tickets(clock=lambda: now[0])
    monkeypatch.setattr(guard, "MAX_TICKETS", 3)
    for _ in range(3):
        tickets.make(10)
    with pytest.raises(RequestError, match="short-lived keys"):
        tickets.make(10)
    now[0] = 11.0
    assert tickets.find(tickets.make(10).value)
