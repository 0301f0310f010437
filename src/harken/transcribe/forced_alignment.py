"""Find the words of a text that is known in the recording of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harken.contract import Floats
from harken.decoding import language_probabilities
from harken.results import Word
from harken.text import to_language_code
from harken.transcribe.listener import SpeechSegmenter
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.pieces import split_text
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.scheduler import Scheduler
from harken.transcribe.window_decoder import WindowDecoder
from harken.transcribe.word_boundaries import fit_to_speech
from harken.transcribe.word_timestamps import align_words
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, TIMESTAMP_STEP_S


def force_align(window_decoder: WindowDecoder, blocks: Iterator[Floats], text: str) -> Iterator[Word]:
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
    window_samples = FRAMES_PER_POSITION * window_decoder.backend.dims.n_audio_ctx * HOP_SAMPLES
    language = window_decoder.options.language and to_language_code(window_decoder.options.language)
    if len(samples) <= window_samples:
        yield from _align_window(window_decoder, samples, text, language)
        return
    recognized, language = _transcribe(window_decoder, samples)
    seconds = (len(samples) / SAMPLE_RATE, window_samples / SAMPLE_RATE)
    for chunk in split_text(text, recognized, *seconds, language=language):
        start, end = round(chunk.start_s * SAMPLE_RATE), round(chunk.end_s * SAMPLE_RATE)
        for word in _align_window(window_decoder, samples[start:end], chunk.text, language):
            start_s, end_s = round(word.start_s + chunk.start_s, 3), round(word.end_s + chunk.start_s, 3)
            yield replace(word, start_s=start_s, end_s=end_s)


def _transcribe(window_decoder: WindowDecoder, samples: Floats) -> tuple[list[Word], str]:
    """What a transcription makes of a recording, and in which language."""
    options = replace(window_decoder.options, word_timestamps=True, task="transcribe", clip_timestamps=())
    window_decoder = WindowDecoder(window_decoder.backend, window_decoder.tokenizer, options)
    recording = RecordingTranscriber(window_decoder, iter([samples]))
    segments = list(Scheduler(window_decoder, [recording], options.batch_size).segments(recording))
    return [word for segment in segments for word in segment.words], recording.language or "en"


def _align_window(
    window_decoder: WindowDecoder, samples: Floats, text: str, language: str | None
) -> list[Word]:
    """Words of a text in samples of up to one window."""
    backend, tokenizer, options = window_decoder.backend, window_decoder.tokenizer, window_decoder.options
    window_frames = FRAMES_PER_POSITION * backend.dims.n_audio_ctx
    segmenter = SpeechSegmenter(iter([samples]), options.vad_options())
    windows = MelWindows(
        segmenter.blocks(), backend.dims.n_mels, window_frames, pad_with_silence=not window_decoder.exact
    )
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
        for word in align_words(
            backend, features, text, tokenizer, frames // FRAMES_PER_POSITION, language=language
        )
    ]
    regions = segmenter.word_regions(0, frames)
    speech = [(start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in regions]
    return fit_to_speech(words, speech) if options.vad and speech else words
