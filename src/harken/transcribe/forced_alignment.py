"""Forced alignment: the times of the words of a known text in its recording."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from math import ceil
from typing import NamedTuple
from unicodedata import combining, normalize

import numpy as np

from harken.contract import Floats
from harken.errors import AudioError
from harken.results import Word
from harken.text.languages import LANGUAGES_WITHOUT_SPACES
from harken.transcribe.chunking import SpeechSegmenter
from harken.transcribe.hallucination import normalize_phrase
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.scheduler import Scheduler
from harken.transcribe.window_decoder import AudioWindow, WindowDecoder
from harken.transcribe.word_boundaries import fit_to_speech
from harken.transcribe.word_timestamps import align_tokens, words_by_segment
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, TIMESTAMP_STEP_S

LINE_BREAKS = re.compile(r"[^\S\u00a0\u202f]+")
"""White space at which a line may be broken: all but no-break spaces."""


def force_align(window_decoder: WindowDecoder, blocks: Iterator[Floats], text: str) -> Iterator[Word]:
    """Align the words of a known text with its recording.

    A recording of up to one window is aligned directly. A longer one is first transcribed, to find which part of the
    text is spoken in which window; its samples are kept in memory.

    Parameters
    ----------
    window_decoder : WindowDecoder
        Its options give the language, or the candidate languages, and the options of that transcription.
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    text : str

    Yields
    ------
    Word
        In order, with no word in silence that voice activity detection finds.

    Raises
    ------
    AudioError
        If the recording cannot be read to its end, or does not match the text.
    OptionError
        If a window has more text than fits into the decoder.
    """
    samples = np.concatenate(list(blocks))
    window_samples = window_decoder.window_frames * HOP_SAMPLES
    language = window_decoder.options.language_code
    if len(samples) <= window_samples:
        yield from _align_window(window_decoder, samples, text, language)
        return
    recognized, language = _transcribe(window_decoder, samples)
    duration_s, window_s = len(samples) / SAMPLE_RATE, window_samples / SAMPLE_RATE
    for chunk in split_text(text, recognized, duration_s, window_s, language=language):
        start, end = round(chunk.start_s * SAMPLE_RATE), round(chunk.end_s * SAMPLE_RATE)
        for word in _align_window(window_decoder, samples[start:end], chunk.text, language):
            start_s, end_s = round(word.start_s + chunk.start_s, 3), round(word.end_s + chunk.start_s, 3)
            yield replace(word, start_s=start_s, end_s=end_s)


def _transcribe(window_decoder: WindowDecoder, samples: Floats) -> tuple[list[Word], str]:
    """Return the words of a transcription of a recording, and the code of its language."""
    options = replace(window_decoder.options, word_timestamps=True, task="transcribe", clip_timestamps=())
    with_words = replace(window_decoder, options=options, speculator=None, clock=None)
    recording = RecordingTranscriber(with_words, iter([samples]))
    segments = list(Scheduler(with_words, [recording], options.batch_size).segments(recording))
    return [word for segment in segments for word in segment.words], recording.language or "en"


def _align_window(
    window_decoder: WindowDecoder, samples: Floats, text: str, language: str | None
) -> list[Word]:
    """Return the words of a text with their times in samples of up to one window."""
    backend, tokenizer, options = window_decoder.backend, window_decoder.tokenizer, window_decoder.options
    segmenter = SpeechSegmenter(iter([samples]), options.vad_options(), window_decoder.speech_detector)
    windows = MelWindows(segmenter.blocks(), backend.dims.n_mels, window_decoder.window_frames)
    mel, frames = windows.window(0, None)
    window = AudioWindow(mel=mel, content_frames=frames, seek=0, is_first=True)
    (encoded,) = window_decoder.encode([window])
    features = encoded.batch.features
    if language is None:
        (probabilities,) = window_decoder.languages_of(features)
        language = next(iter(probabilities))
    space, n_positions = "" if language in LANGUAGES_WITHOUT_SPACES else " ", frames // FRAMES_PER_POSITION
    text = LINE_BREAKS.sub(" ", text).strip()
    tokens = tuple(tokenizer.encode(space + text)) if text else ()
    alignment = align_tokens(backend, features, 0, tokens, tokenizer, n_positions, language=language)
    (timings,), _ = words_by_segment([tokens], alignment, tokenizer, language=language)
    words = [
        Word(
            text=timing.text,
            start_s=timing.start * TIMESTAMP_STEP_S,
            end_s=timing.end * TIMESTAMP_STEP_S,
            probability=timing.probability,
        )
        for timing in timings
    ]
    regions = segmenter.word_regions(0, frames)
    speech = [(start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in regions]
    return fit_to_speech(words, speech) if options.vad and speech else words


class TextChunk(NamedTuple):
    """A part of a text and the time span in which it is spoken."""

    text: str
    start_s: float
    end_s: float


class _Anchor(NamedTuple):
    """A position in the text, and in the pause between recognized words at which it is spoken."""

    text_index: int
    time_s: float
    pause_s: float


def split_text(
    text: str, recognized: Sequence[Word], duration_s: float, max_chunk_s: float, *, language: str
) -> Iterator[TextChunk]:
    """Yield the chunks of a text in order; joined they are the text, and together they cover the recording.

    Each chunk ends in the longest pause between recognized words in the second half of the time it may have, if there
    is one; one without text lies in longer silence. The language decides whether words are separated by spaces.

    Raises
    ------
    AudioError
        If no recognized words match the text for longer than a chunk may be, silence left out.
    """
    pauses = [*_pauses(text, recognized, language)]
    if pauses:
        at_ends = (0, 0.0, recognized[0].start_s), (len(text), recognized[-1].end_s, duration_s)
        pauses += [each for each in at_ends if each[2] - each[1] > max_chunk_s]
    anchors = [anchor for pause in pauses for anchor in _anchors(*pause, max_chunk_s)]
    start, start_s = 0, 0.0
    while duration_s - start_s > max_chunk_s:
        in_reach = [
            at for at in anchors if start_s < at.time_s <= start_s + max_chunk_s and at.text_index >= start
        ]
        in_second_half = [at for at in in_reach if at.time_s > start_s + max_chunk_s / 2]
        if not in_reach:
            raise AudioError(
                f"the recording does not match the text from {start_s:.2f} s on; "
                f"allowed are at most {max_chunk_s:g} s of speech without a matching word"
            )
        anchor = max(in_second_half or in_reach, key=lambda at: (at.pause_s, at.time_s))
        yield TextChunk(text[start : anchor.text_index], start_s, anchor.time_s)
        start, start_s = anchor.text_index, anchor.time_s
    yield TextChunk(text[start:], start_s, duration_s)


def _anchors(text_index: int, start_s: float, end_s: float, max_chunk_s: float) -> Iterator[_Anchor]:
    """Yield the anchor in the middle of a pause, or several if it is longer than a chunk may be."""
    parts = max(2, ceil(2 * (end_s - start_s) / max_chunk_s))
    for part in range(1, parts):
        time_s = start_s + (end_s - start_s) * part / parts
        yield _Anchor(text_index=text_index, time_s=time_s, pause_s=end_s - start_s)


def _pauses(text: str, recognized: Sequence[Word], language: str) -> Iterator[tuple[int, float, float]]:
    """Yield the pause between every two words that follow each other both in the text and in the transcription.

    Each is the index in the text of the word behind it, its start and its end.
    """
    unit = r"\S" if language in LANGUAGES_WITHOUT_SPACES else r"\S+"
    text_units = list(re.finditer(unit, text))
    recognized_units = [(match[0], word) for word in recognized for match in re.finditer(unit, word.text)]
    matcher = SequenceMatcher(
        None,
        [_letters(match[0]) for match in text_units],
        [_letters(part) for part, _ in recognized_units],
        autojunk=False,
    )
    for block in matcher.get_matching_blocks():
        for offset in range(1, block.size):
            (_, before), (_, word) = recognized_units[block.b + offset - 1 : block.b + offset + 1]
            if word is not before:
                yield text_units[block.a + offset].start(), before.end_s, word.start_s


def _letters(text: str) -> str:
    """Return a text without accents and vowel marks, which one of two texts of the same words may leave out."""
    return normalize_phrase("".join(char for char in normalize("NFKD", text) if not combining(char)))
