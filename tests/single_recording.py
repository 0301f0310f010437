"""Transcriptions of one recording, and of single windows, by a window decoder of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harken.contract import Backend, Floats
from harken.results import Segment
from harken.text import Tokenizer
from harken.transcribe import Callbacks, RecordingTranscriber, Scheduler, TranscribeOptions, WindowDecoder
from harken.transcribe.window_decoder import AudioWindow, DecodePass, DecodeRequest, EncodedLength, WindowResult
from tiny_models import DIMS, TOKENIZER

SHORT_LENGTH = EncodedLength(margin=0, step=4)
"""With it a window of the tiny model, which has 48 frames, is encoded in part if it holds 24 frames of audio."""


class SingleRecordingTranscriber(RecordingTranscriber):
    """A transcriber of one recording, decoded as its segments are asked for; `fields` are of its `WindowDecoder`."""

    def __init__(
        self,
        backend: Backend,
        blocks: Iterator[Floats],
        options: TranscribeOptions,
        hooks: Callbacks | None = None,
        tokenizer: Tokenizer = TOKENIZER,
        **fields: Any,
    ) -> None:
        super().__init__(WindowDecoder(backend, tokenizer, options, **fields), blocks, hooks)

    def segments(self) -> Iterator[Segment]:
        return Scheduler(self.window_decoder, [self], self.options.batch_size).segments(self)


def audio_window(
    mel: Floats, seek: int = 0, content_frames: int = 2 * DIMS.n_audio_ctx, *, is_first: bool = False
) -> AudioWindow:
    return AudioWindow(mel=mel[None], content_frames=content_frames, seek=seek, is_first=is_first)


def decode_windows(
    decoder: WindowDecoder, windows: Sequence[AudioWindow], callbacks: Callbacks | None = None
) -> tuple[list[WindowResult], list[DecodePass]]:
    """Decode windows in English, each behind the prompt of its language."""
    prompt = TOKENIZER.sot_sequence("en")
    return decoder.decode(
        [
            DecodeRequest(encoded=encoded, language="en", prompt=prompt, callbacks=callbacks or Callbacks())
            for encoded in decoder.encode(windows)
        ]
    )
