"""The screen of a live session, which may go away while somebody speaks: a closed terminal, a full disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from harken.cli.captions import EventRenderer
from harken.cli.terminal import discard
from harken.errors import OutputError
from harken.streaming import Event


class LiveDisplay:
    """A renderer of events that stops showing them once standard output cannot be written.

    Parameters
    ----------
    renderer : EventRenderer

    Attributes
    ----------
    problem : str
        Why nothing is shown any more; empty as long as events are shown.
    """

    def __init__(self, renderer: EventRenderer) -> None:
        self.problem = ""
        self._renderer = renderer

    def show(self, event: Event) -> None:
        """Show an event."""
        if not self.problem:
            with self._noticing_loss():
                self._renderer.show(event)

    def tell(self, text: str) -> None:
        """Write a message to standard error, if that is still there."""
        try:
            self._renderer.write_stderr(text)
        except OSError:
            discard(sys.stderr)

    def close(self) -> None:
        """Finish the output and leave the text shown so far."""
        with self._noticing_loss():
            self._renderer.close()

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            known = isinstance(error, OutputError)
            self.problem = (
                str(error) if known else f"standard output: cannot be written: {error.strerror or error}"
            )
            discard(sys.stdout)
