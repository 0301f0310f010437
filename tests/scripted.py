"""A language model that is a table: for tests of decoding that need to know every logit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harken.backends.host_logits import HostLogits
from harken.contract import Floats

Script = Callable[[int, tuple[int, ...]], Sequence[float] | Floats]
"""Logits after a prefix of tokens in a window."""


class ScriptedSession:
    """`harken.contract.Session` that looks its logits up.

    Parameters
    ----------
    script : callable
    windows : sequence of int
        Window of each row.
    """

    def __init__(self, script: Script, windows: Sequence[int]) -> None:
        self._script = script
        self._rows: list[tuple[int, tuple[int, ...]]] = [(window, ()) for window in windows]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(tokens) for _, tokens in self._rows)

    @property
    def logits(self) -> HostLogits:
        """Logits after what each row holds."""
        return HostLogits(np.array([self._script(window, tokens) for window, tokens in self._rows], np.float32))

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        assert last_n == 1
        assert all(tokens), "this script has no use for empty sequences"
        self._rows = [(w, (*seen, *new)) for (w, seen), new in zip(self._rows, tokens, strict=True)]
        return self.logits

    def rewind(self, lengths: Sequence[int]) -> None:
        self._rows = [(w, seen[:n]) for (w, seen), n in zip(self._rows, lengths, strict=True)]

    def reorder(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
