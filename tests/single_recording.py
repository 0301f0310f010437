"""A transcription of a single recording that runs its own scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harken.contract import Backend, Floats
from harken.results import Segment
from harken.text import Tokenizer
from harken.transcribe import Callbacks, RecordingTranscriber, Scheduler, TranscribeOptions, WindowDecoder


class SingleRecordingTranscriber(RecordingTranscriber):
    """A transcriber of one recording, decoded as its segments are asked for; `fields` are of its `WindowDecoder`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        blocks: Iterator[Floats],
        options: TranscribeOptions,
        hooks: Callbacks | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(WindowDecoder(backend, tokenizer, options, **fields), blocks, hooks)

    def segments(self) -> Iterator[Segment]:
        return Scheduler(self.window_decoder, [self], self.options.batch_size).segments(self)
