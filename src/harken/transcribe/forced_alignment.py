"""Forced alignment: the times of the words of a known text in its recording."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import chain, islice, pairwise
from math import ceil
from typing import NamedTuple
from unicodedata import combining, normalize

import numpy as np

from harken.contract import Floats
from harken.errors import AudioError
from harken.results import Word
from harken.text import Tokenizer
from harken.text.languages import LANGUAGES_WITHOUT_SPACES
from harken.transcribe.chunking import SpeechSegmenter
from harken.transcribe.hallucination import normalize_phrase
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.scheduler import Scheduler
from harken.transcribe.window_decoder import AudioWindow, WindowDecoder
from harken.transcribe.word_boundaries import fit_to_speech
from harken.transcribe.word_timestamps import align_tokens, text_room, words_by_segment
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, TIMESTAMP_STEP_S

LINE_BREAKS = re.compile(r"[^\S\u00a0\u202f]+")
"""White space at which a line may be broken: all but no-break spaces."""
MIN_MATCHING = 0.1
"""Least share of the words, of the text or the transcription, that stand in both behind the same word."""
BESIDE_S = 0.4
"""Longest pause assumed beside a recognized word of the text, where its neighbour there was not recognized."""
SPOKEN_PROBABILITY, MIN_PROBABILITY = 0.1, 1e-3
"""Probability of a word that is as likely spoken as not, and the one below which it tells no more."""


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
        If the text of a recording of up to one window does not fit into the decoder.
    """
    data = bytearray()  # grows in place: arrays and their concatenation would take twice the memory
    for block in blocks:
        data += block.tobytes()
    samples = np.frombuffer(data, np.float32)
    window_samples = window_decoder.window_frames * HOP_SAMPLES
    language = window_decoder.options.language_code
    if len(samples) <= window_samples:
        yield from _align_window(window_decoder, samples, text, language)
        return
    if not text.strip():
        return
    recognized, language = _transcribe(window_decoder, samples)
    duration_s, window_s = len(samples) / SAMPLE_RATE, window_samples / SAMPLE_RATE
    room = text_room(window_decoder.backend, window_decoder.tokenizer, language)

    def fits(part: str) -> bool:
        return len(_tokens(window_decoder.tokenizer, part, language)) <= room

    left = ""
    for chunk in split_text(text, recognized, duration_s, window_s, fits, language=language):
        start, end = round(chunk.start_s * SAMPLE_RATE), round(chunk.end_s * SAMPLE_RATE)
        words = _align_window(window_decoder, samples[start:end], left + chunk.text, language, room)
        n_spoken = len(words) if chunk.complete else _count_spoken(words)
        left = "".join(word.text for word in words[n_spoken:])
        for word in words[:n_spoken]:
            start_s, end_s = round(word.start_s + chunk.start_s, 3), round(word.end_s + chunk.start_s, 3)
            yield replace(word, start_s=start_s, end_s=end_s)


def _count_spoken(words: Sequence[Word]) -> int:
    """Return how many of the first words are spoken: as many as make it most likely, by their probabilities."""
    odds = np.log(np.clip([word.probability for word in words], MIN_PROBABILITY, 1) / SPOKEN_PROBABILITY)
    return int(np.append(0, np.cumsum(odds)).argmax())


def _tokens(tokenizer: Tokenizer, text: str, language: str) -> tuple[int, ...]:
    """Return the tokens of a text as if it began behind others, without its line breaks."""
    text = LINE_BREAKS.sub(" ", text).strip()
    space = "" if language in LANGUAGES_WITHOUT_SPACES else " "
    return tuple(tokenizer.encode(space + text)) if text else ()


def _transcribe(window_decoder: WindowDecoder, samples: Floats) -> tuple[list[Word], str]:
    """Return the words of a transcription of a recording, and the code of its language."""
    options = replace(window_decoder.options, word_timestamps=True, task="transcribe")
    with_words = replace(window_decoder, options=options, speculator=None, clock=None)
    recording = RecordingTranscriber(with_words, iter([samples]))
    segments = list(Scheduler(with_words, [recording], options.batch_size).segments(recording))
    return [word for segment in segments for word in segment.words], recording.language or "en"


def _align_window(
    window_decoder: WindowDecoder, samples: Floats, text: str, language: str | None, room: int | None = None
) -> list[Word]:
    """Return the words of a text with their times in samples of up to one window.

    Tokens that have no room, if that is given, are at the end, with probability 0.
    """
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
    tokens, n_positions = _tokens(tokenizer, text, language), frames // FRAMES_PER_POSITION
    alignment = align_tokens(backend, features, 0, tokens[:room], tokenizer, n_positions, language=language)
    behind = 0, len(tokens) - len(alignment.starts)
    alignment = replace(
        alignment,
        starts=np.pad(alignment.starts, behind, constant_values=n_positions),
        ends=np.pad(alignment.ends, behind, constant_values=n_positions),
        probabilities=np.pad(alignment.probabilities, behind),
    )
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
    """A part of a text and the time span in which it is spoken.

    Of one that is not complete, what the end of the span does not reach is spoken in the chunks without text behind it.
    """

    text: str
    start_s: float
    end_s: float
    complete: bool = True


class _Anchor(NamedTuple):
    """A pause between recognized words, and the position in the text that is spoken behind it, where that is known."""

    text_index: int | None
    time_s: float
    pause_s: float


def split_text(
    text: str,
    recognized: Sequence[Word],
    duration_s: float,
    max_chunk_s: float,
    fits: Callable[[str], bool],
    *,
    language: str,
) -> Iterator[TextChunk]:
    """Yield the chunks of a text in order; joined they are the text, and together they cover the recording.

    The recording is longer than a chunk may be. Each chunk ends in the longest pause between recognized words in the
    second half of the time it may have, if there is one: of those whose place in the text is known, so that its text
    fits, or else of all. The language decides whether words are separated by spaces.

    Raises
    ------
    AudioError
        If too little of what was recognized is in the text.
    """
    anchors = [*_anchors(text, recognized, duration_s, max_chunk_s, language)]
    start, start_s, complete = 0, 0.0, True
    while True:
        first, behind = (bisect_right(anchors, at_s, key=_time_s) for at_s in (start_s, start_s + max_chunk_s))
        in_reach = anchors[first:behind]
        known = [at for at in in_reach if at.text_index is not None]
        if duration_s - start_s <= max_chunk_s and (not known or (complete and fits(text[start:]))):
            yield TextChunk(text[start:], start_s, duration_s)
            return
        while len(known) > 1 and not (complete and fits(text[start : known[-1].text_index])):
            known.pop()
        candidates = known or in_reach or [_Anchor(None, start_s + max_chunk_s, 0.0)]
        in_second_half = [at for at in candidates if at.time_s > start_s + max_chunk_s / 2]
        anchor = max(in_second_half or candidates, key=lambda at: (at.pause_s, at.time_s))
        indices = (at.text_index for at in chain([anchor], islice(anchors, behind, None)))
        end, complete = next((index for index in indices if index is not None), len(text)), bool(known)
        yield TextChunk(text[start:end], start_s, anchor.time_s, complete)
        start, start_s = end, anchor.time_s


def _time_s(anchor: _Anchor) -> float:
    return anchor.time_s


def _anchors(
    text: str, recognized: Sequence[Word], duration_s: float, max_chunk_s: float, language: str
) -> Iterator[_Anchor]:
    """Yield the anchors in the middle of pauses, several in one that is longer than a chunk may be.

    A pause between words that do not follow each other in the text may hold speech that was not recognized; the anchors
    there are beside the words whose places are known.
    """
    begins, follows = _places(text, recognized, language)
    pauses: list[tuple[int | None, float, float]] = []
    if recognized[0].start_s > max_chunk_s:
        pauses.append((0, 0.0, recognized[0].start_s))
    for i, (before, word) in enumerate(pairwise(recognized), 1):
        start_s, end_s = before.end_s, word.start_s
        if begins.get(i) == follows.get(i):
            pauses.append((begins.get(i), start_s, end_s))
            continue
        if i in follows:
            pauses.append((follows[i], start_s, min(end_s, start_s + BESIDE_S)))
        if i in begins:
            pauses.append((begins[i], max(start_s, end_s - BESIDE_S), end_s))
    if duration_s - recognized[-1].end_s > max_chunk_s:
        pauses.append((len(text), recognized[-1].end_s, duration_s))
    for text_index, start_s, end_s in pauses:
        parts = max(2, ceil(2 * (end_s - start_s) / max_chunk_s))
        for part in range(1, parts):
            time_s = start_s + (end_s - start_s) * part / parts
            yield _Anchor(text_index=text_index, time_s=time_s, pause_s=end_s - start_s)


def _places(text: str, recognized: Sequence[Word], language: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return where in the text the recognized words with some indices begin, and what follows the words before them.

    Only words count that stand in both texts with the same word beside them: a single one may do so by chance.
    """
    unit = r"\S" if language in LANGUAGES_WITHOUT_SPACES else r"\S+"
    in_text = [(_letters(match[0]), match.start()) for match in re.finditer(unit, text)]
    spoken = [(_letters(part), i) for i, word in enumerate(recognized) for part in re.findall(unit, word.text)]
    in_text, spoken = ([each for each in units if each[0]] for units in (in_text, spoken))  # a dash is none
    matches = pairwise(_matches([letters for letters, _ in in_text], [letters for letters, _ in spoken]))
    pairs = [before for before, (a, b) in matches if before == (a - 1, b - 1)]
    shorter = min(len(in_text), len(spoken))
    if len(pairs) <= MIN_MATCHING * shorter:
        raise AudioError(
            f"the recording does not match the text: {len(pairs)} of {shorter} words were recognized before the "
            f"word that follows; allowed are more than {MIN_MATCHING:.0%}"
        )
    starts, numbers = [*(start for _, start in in_text), len(text)], [*(i for _, i in spoken), len(recognized)]
    begins, follows = (
        {numbers[b + i]: starts[a + i] for a, b in pairs for i in each if numbers[b + i - 1] != numbers[b + i]}
        for each in ((0, 1), (1, 2))
    )
    return begins, follows


def _matches(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the indices of words that two texts share, in order.

    Three words that each text has once divide both into short parts, so the time grows hardly faster than the texts.
    """
    in_one, in_other = _once(one), _once(other)
    shared = [(a, in_other[words]) for words, a in in_one.items() if words in in_other]
    bounds = [(0, 0), *_longest_rising(shared), (len(one), len(other))]
    for (a, b), (a_end, b_end) in pairwise(bounds):
        matcher = SequenceMatcher(None, one[a:a_end], other[b:b_end], autojunk=False)
        for block in matcher.get_matching_blocks():
            yield from ((a + block.a + i, b + block.b + i) for i in range(block.size))


def _once(words: Sequence[str]) -> dict[tuple[str, ...], int]:
    """Return the places of three words that come but once, in order."""
    triples = [*zip(words, words[1:], words[2:], strict=False)]
    counts = Counter(triples)
    return {triple: i for i, triple in enumerate(triples) if counts[triple] == 1}


def _longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest sequence of pairs in order of which the second ones rise too."""
    lasts: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for i, (_, value) in enumerate(pairs):
        place = bisect_left(lasts, value)
        lasts[place : place + 1], ends[place : place + 1] = [value], [i]
        before.append(ends[place - 1] if place else -1)
    rising, i = [], ends[-1] if ends else -1
    while i >= 0:
        rising.append(pairs[i])
        i = before[i]
    return rising[::-1]


def _letters(text: str) -> str:
    """Return a text without accents and vowel marks, which one of two texts of the same words may leave out."""
    return normalize_phrase("".join(char for char in normalize("NFKD", text) if not combining(char)))
