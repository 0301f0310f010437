"""Have every piece answered once, whatever interrupts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harken.training.examples import Example
from harken.training.library import Library
from harken.training.pieces import Piece
from harken.training.recordings import Progress

Ask = Callable[[Piece, Sequence[int]], Example]
"""Answers with the example of a piece, given the text tokens of the piece before it."""


def prepare(
    pieces: Sequence[Piece],
    library: Library,
    whom: Callable[[], Ask],
    text_end: int,
    progress: Progress = lambda done, of: None,
) -> None:
    """Put the example of every piece into a library; what it has is not asked for again.

    Parameters
    ----------
    pieces : sequence of Piece
    library : Library
    whom : callable
        Finds whom to ask, once, and only if there is something to ask.
    text_end : int
        First id that is not text.
    progress : callable
    """
    ask: Ask | None = None
    before: dict[tuple[str, bool], list[int]] = {}
    for done, piece in enumerate(pieces):
        progress(done, len(pieces))
        chain = piece.group, piece.held_out
        if not library.has(piece):
            ask = ask or whom()
            library.put(piece, ask(piece, before.get(chain, [])))
        said = library.said(piece)
        before[chain] = [token for token in said if token < text_end] or before.get(chain, [])
    progress(len(pieces), len(pieces))
