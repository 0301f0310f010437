"""Captions: what live sessions say, for viewers that show it meanwhile.

A session is shared under a name. A viewer that is ready for more gets the newest caption, so a slow one misses those in
between, costs no memory, and holds up nobody.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from harken.serve.errors import RequestError
from harken.serve.waiting import Changes
from harken.serve.work.jobs import LiveUpdate
from harken.streaming import FinalSegment, Interim, SpeechEnded

PARAMETER = "captions"
"""Parameter of the address of a live session that shares it."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_LINES = 10
REPEAT_S = 15.0
"""Seconds after which a caption comes again: a proxy might close a silent connection."""


def checked_name(name: str) -> str:
    """Return a name of captions.

    Raises
    ------
    RequestError
        If it is not allowed.
    """
    if not NAME.fullmatch(name):
        allowed = "1 to 64 letters of English, digits, - and _"
        raise RequestError(
            f"{PARAMETER}={name[:100]!r}: allowed are {allowed}", code="invalid_value", param=PARAMETER
        )
    return name


def shared_as(query: Mapping[str, str]) -> str | None:
    """Return the name under which the address of a live session shares it; None if it does not.

    Raises
    ------
    RequestError
        If the name is not allowed.
    """
    return checked_name(query[PARAMETER]) if PARAMETER in query else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """The lines that viewers see, until the next caption takes their place."""

    lines: tuple[str, ...] = ()  # the last final segments
    # The text of the utterance in progress, which follows them: what stays, and what may still change.
    committed: str = ""
    tentative: str = ""
    live: bool = False  # true while the session lasts

    def after(self, update: LiveUpdate) -> Caption:
        """Return the caption after an update of the session."""
        match update:
            case Interim(committed=committed, tentative=tentative):
                return replace(self, committed=committed, tentative=tentative)
            case FinalSegment(segment=segment):
                lines = (*self.lines, segment.text.strip())[-MAX_LINES:]
                return replace(self, lines=lines, committed="", tentative="")
            case SpeechEnded():
                return replace(self, committed="", tentative="")
            case _:
                return self


class Captions:
    """The captions of a service, by their names. A name lasts as long as its session and its viewers.

    It belongs to the event loop that runs while it is used.
    """

    def __init__(self) -> None:
        self._boards: WeakValueDictionary[str, _Board] = WeakValueDictionary()
        self._closed = False

    def share(self, name: str) -> SharedCaptions:
        """Begin the captions of a session; an earlier session of this name is shown no longer."""
        return SharedCaptions(self._board(name))

    async def watch(self, name: str) -> AsyncIterator[Caption]:
        """Yield the present caption of a name and then each newest one, also of sessions that begin later."""
        board = self._board(name)
        seen = board.caption
        caption = seen if seen.live else Caption()  # what was said before is over for who comes now
        while not self._closed:
            yield caption
            with suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_S):
                    await board.changes.until(partial(self._has_news, board, seen))
            if board.caption is not seen:
                caption = seen = board.caption

    def close(self) -> None:
        """Tell all viewers that nothing follows."""
        self._closed = True
        for board in [*self._boards.values()]:
            board.changes.tell()

    def _has_news(self, board: _Board, seen: Caption) -> bool:
        return board.caption is not seen or self._closed

    def _board(self, name: str) -> _Board:
        return self._boards.setdefault(name, _Board())


class _Board:
    """The caption of a name, and the session that it comes from."""

    def __init__(self) -> None:
        self.caption = Caption()
        self.speaker: SharedCaptions | None = None
        self.changes = Changes()


class SharedCaptions:
    """The captions of a session, until it ends or a later one takes the name."""

    def __init__(self, board: _Board) -> None:
        self._board = board
        board.speaker = self
        self._show(Caption(live=True))

    def update(self, update: LiveUpdate) -> None:
        """Show an update of the session."""
        self._show(self._board.caption.after(update))

    def close(self) -> None:
        """Leave the last caption to those who see it, and the name to others."""
        self._show(replace(self._board.caption, live=False))
        if self._board.speaker is self:
            self._board.speaker = None

    def _show(self, caption: Caption) -> None:
        if self._board.speaker is self and caption is not self._board.caption:
            self._board.caption = caption
            self._board.changes.tell()
