"""Find the words of a text that is known in the recording of it."""

from __future__ import annotations

from collections.abc import Iterator

from harken.contract import Floats
from harken.decoding import language_probabilities
from harken.errors import AudioError
from harken.results import Word
from harken.text import resolve
from harken.transcribe.hearing import Hearing
from harken.transcribe.listener import Listener
from harken.transcribe.settle import within
from harken.transcribe.windows import MelWindows
from harken.transcribe.words import align
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP, TIMESTAMP_STEP_S


def find_words(hearing: Hearing, blocks: Iterator[Floats], text: str) -> tuple[Word, ...]:
    """Find out when each word of a text is spoken in a recording that fits into one window.

    Parameters
    ----------
    hearing : Hearing
        Its options say which language is spoken, or which come into question.
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    text : str

    Returns
    -------
    tuple of Word
        In order, none in a silence that voice activity detection finds.

    Raises
    ------
    AudioError
        If the recording cannot be read to its end, or is longer than a window.
    OptionError
        If the text does not fit into the decoder.
    """
    backend, tokenizer, options = hearing.backend, hearing.tokenizer, hearing.options
    window_frames = FRAMES_PER_STEP * backend.dims.n_audio_ctx
    listener = Listener(blocks, options.vad_options())
    windows = MelWindows(listener.blocks(), backend.dims.n_mels, window_frames, silence=not hearing.exact)
    mel, frames = windows.window(0, None)
    if windows.failure:
        raise windows.failure
    if windows.frames_read > window_frames:
        limit_s = window_frames / FRAMES_PER_SECOND
        raise AudioError(
            f"the recording is too long for a text to be aligned with it; allowed is {limit_s:g} s"
        )
    features = backend.encode(mel)
    if options.language is None:
        (probabilities,) = language_probabilities(backend, features, tokenizer, options.languages)
        language = next(iter(probabilities))
    else:
        language = resolve(options.language)
    timed = align(backend, features, text, tokenizer, frames // FRAMES_PER_STEP, language=language)
    words = [
        Word(
            text=word.text,
            start_s=word.start * TIMESTAMP_STEP_S,
            end_s=word.end * TIMESTAMP_STEP_S,
            probability=word.probability,
        )
        for word in timed
    ]
    speech = [
        (start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in listener.between_words(0, frames)
    ]
    return tuple(within(words, speech) if options.vad and speech else words)
