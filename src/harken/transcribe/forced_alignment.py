"""Find the words of a text that is known in the recording of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np

from harken.contract import Floats
from harken.decoding import language_probabilities
from harken.errors import AudioError
from harken.results import Word
from harken.text import to_language_code
from harken.text.languages import LANGUAGES_WITHOUT_SPACES
from harken.transcribe.chunking import SpeechSegmenter
from harken.transcribe.hallucination import normalize_phrase
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.scheduler import Scheduler
from harken.transcribe.window_decoder import WindowDecoder
from harken.transcribe.word_boundaries import fit_to_speech
from harken.transcribe.word_timestamps import align_words
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, TIMESTAMP_STEP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """Some of the text, and between which times it is spoken."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """A place between two words that were heard as the text has them."""

    text_index: int
    time_s: float
    pause_s: float


def split_text(
    text: str, recognized: Sequence[Word], duration_s: float, max_chunk_s: float, *, language: str
) -> Iterator[TextChunk]:
    """Pieces of a text, one after the other; together they are the text, and cover the recording.

    Each ends in the longest pause of its second half, if there is one.

    Parameters
    ----------
    text : str
        What is said in the recording.
    heard : sequence of Word
        What was heard in it.
    duration_s : float
        Length of the recording.
    longest_s : float
        Most seconds that a piece may have.
    language : str
        Code of the language: it says whether words are written apart.

    Raises
    ------
    AudioError
        If for so long nothing was heard that stands in the text.
    """
    anchors = list(_anchors(text, recognized, language))
    start, start_s = 0, 0.0
    while duration_s - start_s > max_chunk_s:
        candidates = [
            cut for cut in anchors if start_s < cut.time_s <= start_s + max_chunk_s and cut.text_index > start
        ]
        in_second_half = [cut for cut in candidates if cut.time_s > start_s + max_chunk_s / 2] or candidates
        if not in_second_half:
            raise AudioError(
                f"the recording does not say what stands in the text, from {start_s:.2f} s on; "
                f"allowed are at most {max_chunk_s:g} s without a word of it"
            )
        anchor = max(in_second_half, key=lambda cut: (cut.pause_s, cut.time_s))
        yield TextChunk(text=text[start : anchor.text_index], start_s=start_s, end_s=anchor.time_s)
        start, start_s = anchor.text_index, anchor.time_s
    yield TextChunk(text=text[start:], start_s=start_s, end_s=duration_s)


def _anchors(text: str, recognized: Sequence[Word], language: str) -> Iterator[_Anchor]:
    """Between any two words that follow one another both in the text and in what was heard."""
    unit = r"\S" if language in LANGUAGES_WITHOUT_SPACES else r"\S+"
    text_units = list(re.finditer(unit, text))
    recognized_units = [(match[0], word) for word in recognized for match in re.finditer(unit, word.text)]
    matcher = SequenceMatcher(
        None,
        [normalize_phrase(match[0]) for match in text_units],
        [normalize_phrase(part) for part, _ in recognized_units],
        autojunk=False,
    )
    for block in matcher.get_matching_blocks():
        for offset in range(1, block.size):
            (_, before), (_, word) = recognized_units[block.b + offset - 1 : block.b + offset + 1]
            if word is not before:
                yield _Anchor(
                    text_index=text_units[block.a + offset].start(),
                    time_s=(before.end_s + word.start_s) / 2,
                    pause_s=word.start_s - before.end_s,
                )


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
