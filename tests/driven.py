"""A long form that drives itself: for tests that look at one recording."""

from __future__ import annotations

from collections.abc import Iterator

from harken.contract import Backend, Floats
from harken.results import Segment
from harken.text import Tokenizer
from harken.transcribe import Batch, Hearing, Hooks, LongForm, TranscribeOptions


class Driven(LongForm):
    """One recording, decoded as its segments are asked for."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        blocks: Iterator[Floats],
        options: TranscribeOptions,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(Hearing(backend, tokenizer, options), blocks, hooks)

    def segments(self) -> Iterator[Segment]:
        return Batch(self.hearing, [self], self.options.batch_size).segments(self)
