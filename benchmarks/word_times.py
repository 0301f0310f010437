"""Word times: how far starts and ends are from known ones, offline, live and of a known text, beside other engines.

The words are spoken by eSpeak NG, which reports the sample at which every phoneme begins: references of a set as
sentences, joined with pauses of 0.1 to 1.5 s and some noise. Words that an engine wrote otherwise are left out of the
errors, and count against F1, for which start and end have to be within 50 ms.

    pip install espeakng-loader
    python benchmarks/word_times.py --engines harken 'harken live' 'harken align' faster-whisper --save word-times
"""

from __future__ import annotations

import ctypes
import importlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import PACKAGES, Words, Worker, add_engine_options, workers_of
from program import Args, Parser, Row, add, main, note, stop
from recordings import SAMPLE_RATE, read_set, write_wav

if TYPE_CHECKING:
    from harken.contract import Floats

VOICES = {"en": ("en-gb-scotland", "en-us-nyc")}
"""Voices of a language, others than word heads were chosen with; for other languages the one that has its code."""
JOINED, PAUSES_S, NOISE = 4, (0.1, 0.2, 0.4, 0.8, 1.5), 10 ** (-65 / 20)
WITHIN_MS = (20, 50, 100)
F1_S = 0.05
SYNCHRONOUS, UTF8, PHONEME_EVENTS, WORD_EVENT, PHONEME_EVENT = 2, 1, 1, 1, 7


class Event(ctypes.Structure):
    """`espeak_EVENT` of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int), ("identifier", ctypes.c_uint), ("text_position", ctypes.c_int),
        ("length", ctypes.c_int), ("audio_ms", ctypes.c_int), ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p), ("phoneme", ctypes.c_char * 8),
    )  # fmt: skip


class Synthesizer:
    """eSpeak NG's library, which speaks texts and tells when."""

    def __init__(self) -> None:
        import numpy as np

        loader: Any = importlib.import_module("espeakng_loader")
        self._library = ctypes.CDLL(loader.get_library_path())
        data = loader.get_data_path().encode()
        self._rate = self._library.espeak_Initialize(SYNCHRONOUS, 0, data, PHONEME_EVENTS)
        self._events: list[tuple[int, int, float, bytes]] = []
        self._blocks: list[Floats] = []

        def callback(samples: Any, count: int, events: Any) -> int:
            if samples and count:
                self._blocks.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / 32768)
            for event in iter_events(events):
                self._events.append((event.type, event.text_position, event.audio_ms / 1000, event.phoneme))
            return 0

        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event)
        )
        self._callback = kind(callback)
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: str) -> tuple[Floats, Words]:
        """Return samples at 16 kHz, and the words with their times; words spoken as one are one."""
        import numpy as np

        self._blocks.clear()
        self._events.clear()
        if self._library.espeak_SetVoiceByName(voice.encode()):
            stop(f"eSpeak NG has no voice {voice!r}")
        data = text.encode()
        self._library.espeak_Synth(data, len(data) + 1, 0, 1, 0, UTF8, None, None)
        samples = np.concatenate(self._blocks)
        length_s = len(samples) / self._rate
        phonemes = [event for event in self._events if event[0] == PHONEME_EVENT]
        ends = dict(zip(map(id, phonemes), [*(each[2] for each in phonemes[1:]), length_s], strict=True))
        begun: list[tuple[int, list[tuple[float, float]]]] = []
        for event in self._events:
            if event[0] == WORD_EVENT:
                begun.append((event[1] - 1, []))
            elif event[0] == PHONEME_EVENT and begun and not event[3].startswith(b"_"):  # _ is a pause
                begun[-1][1].append((event[2], ends[id(event)]))
        words: Words = [
            (text[position:following], spans[0][0], spans[-1][1])
            for (position, spans), (following, _) in pairwise([*begun, (len(text), [])])
            if spans
        ]
        positions = np.arange(0, len(samples), self._rate / SAMPLE_RATE)
        return np.interp(positions, np.arange(len(samples)), samples).astype(np.float32), words


def iter_events(events: Any) -> Iterator[Event]:
    """Yield the events of a callback, which end with one of type 0."""
    index = 0
    while events[index].type:
        yield events[index]
        index += 1


@dataclass(frozen=True, slots=True)
class Spoken:
    """A recording with the times of its words."""

    path: Path
    words: Words


def speak(texts: Sequence[str], voice: str, folder: Path) -> Iterator[Spoken]:
    """Yield recordings of some sentences each."""
    import numpy as np

    synthesizer, random = Synthesizer(), np.random.default_rng(0)
    for first in range(0, len(texts), JOINED):
        parts: list[Floats] = []
        words: Words = []
        for text in texts[first : first + JOINED]:
            parts.append(np.zeros(round(float(random.choice(PAUSES_S)) * SAMPLE_RATE), np.float32))
            before_s = sum(map(len, parts)) / SAMPLE_RATE
            samples, spoken = synthesizer.speak(text, voice)
            words += [(word, before_s + (start or 0), before_s + (end or 0)) for word, start, end in spoken]
            parts.append(samples)
        joined = np.concatenate([*parts, np.zeros(SAMPLE_RATE // 2, np.float32)])
        joined += NOISE * random.standard_normal(len(joined)).astype(np.float32)
        path = folder / f"{voice}-{first}.wav"
        write_wav(path, [joined])
        yield Spoken(path, words)


def units(words: Words) -> Words:
    """Return the parts of words that spaces and hyphens separate, without marks and capitals."""
    parts: Words = []
    for text, start, end in words:
        names = [re.sub(r"[^\w']", "", name.lower()) for name in re.split(r"[\s-]+", text.strip())]
        names = [name for name in names if name.strip("'")]
        last = len(names) - 1
        parts += [(name, None if i else start, end if i == last else None) for i, name in enumerate(names)]
    return parts


def errors(spoken: Words, found: Words) -> tuple[list[float], list[float], int]:
    """Return the errors of starts and of ends in seconds, and the number of words with both within F1_S."""
    one, other = units(spoken), units(found)
    names = [name for name, _, _ in one], [name for name, _, _ in other]
    starts, ends, right = [], [], 0
    for block in SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
        for (_, start, end), (_, found_start, found_end) in zip(
            one[block.a : block.a + block.size], other[block.b : block.b + block.size], strict=True
        ):
            at_start = None if start is None or found_start is None else found_start - start
            at_end = None if end is None or found_end is None else found_end - end
            starts += [] if at_start is None else [at_start]
            ends += [] if at_end is None else [at_end]
            right += None not in (at_start, at_end) and max(abs(at_start or 0), abs(at_end or 0)) <= F1_S
    return starts, ends, right


def figures(name: str, values: Sequence[float]) -> Row:
    """Return mean and median error in ms, and the shares within some bounds in percent."""
    import numpy as np

    ms = 1000 * np.abs(values)
    shares = {
        f"{name}_within_{bound}_percent": round(100 * float((ms <= bound).mean()), 1) for bound in WITHIN_MS
    }
    return {
        f"{name}_mean_ms": round(float(ms.mean()), 1),
        f"{name}_median_ms": round(float(np.median(ms)), 1),
    } | shares


def options(parser: Parser) -> None:
    add_engine_options(parser, ("harken",))
    add(parser, "--language", "en", "of the set's references that are spoken")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each set, voice and engine."""
    with tempfile.TemporaryDirectory() as folder, workers_of(args) as workers:
        for name, voice in product(args.set, VOICES.get(args.language, (args.language,))):
            entries = read_set(args.audio, name, args.limit, model=args.model, language=args.language)
            spoken = list(speak([entry.text for entry in entries], voice, Path(folder)))
            for worker in workers:
                found = [find_words(worker, each, args.language) for each in spoken]
                note(f"{name}, {voice}: {worker.engine.label}")
                yield {"set": name, "voice": voice, "engine": worker.engine.label} | compare(spoken, found)


def find_words(worker: Worker, spoken: Spoken, language: str) -> Words:
    """Return the words of a recording as an engine finds them."""
    text = " ".join(word.strip() for word, _, _ in spoken.words)
    return worker.work(spoken.path, language=language, words=True, text=text).words


def compare(spoken: Sequence[Spoken], found: Sequence[Words]) -> Row:
    """Return the errors of the words that an engine found in some recordings."""
    starts: list[float] = []
    ends: list[float] = []
    right = count = 0
    for known, words in zip(spoken, found, strict=True):
        of_starts, of_ends, of_right = errors(known.words, words)
        starts, ends, right = starts + of_starts, ends + of_ends, right + of_right
        count += len(units(words)) + len(known.words)
    return {
        "words": len(starts),
        **figures("start", starts),
        **figures("end", ends),
        "f1_percent": round(200 * right / count, 1),
    }


if __name__ == "__main__":
    main(
        rows, options, model="tiny.en", sets=("arctic",), needs=("harken", "espeakng_loader"),
        packages=(*PACKAGES, "espeakng-loader", "stable-ts"), settings=("language",),
    )  # fmt: skip
