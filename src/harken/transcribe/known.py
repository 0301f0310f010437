"""Find the words of a text that is known in the recording of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harken.contract import Floats
from harken.decoding import language_probabilities
from harken.results import Word
from harken.text import resolve
from harken.transcribe.batch import Batch
from harken.transcribe.hearing import Hearing
from harken.transcribe.listener import Listener
from harken.transcribe.longform import LongForm
from harken.transcribe.pieces import pieces
from harken.transcribe.settle import within
from harken.transcribe.windows import MelWindows
from harken.transcribe.words import align
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP, HOP_SAMPLES, SAMPLE_RATE, TIMESTAMP_STEP_S


def find_words(hearing: Hearing, blocks: Iterator[Floats], text: str) -> Iterator[Word]:
    """Find out when each word of a text is spoken.

    A recording of up to one window is aligned as it is. A longer one is transcribed first, to know which part of the
    text is spoken in which window; it is kept in memory.

    Parameters
    ----------
    hearing : Hearing
        Its options say which language is spoken, or which come into question, and how to transcribe.
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    text : str

    Yields
    ------
    Word
        In order, none in a silence that voice activity detection finds.

    Raises
    ------
    AudioError
        If the recording cannot be read to its end, or does not say the text.
    OptionError
        If more text falls on a window than fits into the decoder.
    """
    samples = np.concatenate(list(blocks))
    window_samples = FRAMES_PER_STEP * hearing.backend.dims.n_audio_ctx * HOP_SAMPLES
    language = hearing.options.language and resolve(hearing.options.language)
    if len(samples) <= window_samples:
        yield from _in_window(hearing, samples, text, language)
        return
    heard, language = _hear(hearing, samples)
    seconds = (len(samples) / SAMPLE_RATE, window_samples / SAMPLE_RATE)
    for piece in pieces(text, heard, *seconds, language=language):
        start, end = round(piece.start_s * SAMPLE_RATE), round(piece.end_s * SAMPLE_RATE)
        for word in _in_window(hearing, samples[start:end], piece.text, language):
            start_s, end_s = round(word.start_s + piece.start_s, 3), round(word.end_s + piece.start_s, 3)
            yield replace(word, start_s=start_s, end_s=end_s)


def _hear(hearing: Hearing, samples: Floats) -> tuple[list[Word], str]:
    """What a transcription makes of a recording, and in which language."""
    options = replace(hearing.options, word_timestamps=True, task="transcribe", clip_timestamps=())
    hearing = Hearing(hearing.backend, hearing.tokenizer, options)
    work = LongForm(hearing, iter([samples]))
    segments = list(Batch(hearing, [work], options.batch_size).segments(work))
    return [word for segment in segments for word in segment.words], work.language or "en"


def _in_window(hearing: Hearing, samples: Floats, text: str, language: str | None) -> list[Word]:
    """Words of a text in samples of up to one window."""
    backend, tokenizer, options = hearing.backend, hearing.tokenizer, hearing.options
    window_frames = FRAMES_PER_STEP * backend.dims.n_audio_ctx
    listener = Listener(iter([samples]), options.vad_options())
    windows = MelWindows(listener.blocks(), backend.dims.n_mels, window_frames, silence=not hearing.exact)
    mel, frames = windows.window(0, None)
    features = backend.encode(mel)
    if language is None:
        (probabilities,) = language_probabilities(backend, features, tokenizer, options.languages)
        language = next(iter(probabilities))
    words = [
        Word(
            text=word.text,
            start_s=word.start * TIMESTAMP_STEP_S,
            end_s=word.end * TIMESTAMP_STEP_S,
            probability=word.probability,
        )
        for word in align(backend, features, text, tokenizer, frames // FRAMES_PER_STEP, language=language)
    ]
    regions = listener.between_words(0, frames)
    speech = [(start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in regions]
    return within(words, speech) if options.vad and speech else words
