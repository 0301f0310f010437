"""Have every piece answered once, whatever interrupts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harken.training.example_store import ExampleStore
from harken.training.examples import Example
from harken.training.recordings import Progress
from harken.training.windows import TrainingWindow

Labeller = Callable[[TrainingWindow, Sequence[int]], Example]
"""Answers with the example of a piece, given the text tokens of the piece before it."""


def label_windows(
    windows: Sequence[TrainingWindow],
    store: ExampleStore,
    make_labeller: Callable[[], Labeller],
    eot: int,
    progress: Progress = lambda done, total: None,
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
    labeller: Labeller | None = None
    previous_texts: dict[tuple[str, bool], list[int]] = {}
    for done, window in enumerate(windows):
        progress(done, len(windows))
        group = window.group, window.held_out
        if not store.has(window):
            labeller = labeller or make_labeller()
            store.put(window, labeller(window, previous_texts.get(group, [])))
        text = store.first_text(window)
        previous_texts[group] = [token for token in text if token < eot] or previous_texts.get(group, [])
    progress(len(windows), len(windows))
