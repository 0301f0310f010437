"""Speech without words in long recordings: how much of it there is, and what decoding it again gives and costs.

The recordings of a set are joined, one language after another and the speakers of each in turns, with 0.3 s of silence
between them. A row has the seconds of detected speech without words, the errors, the windows and the processor time,
each without and with a second decoding of the gaps. The set `non-speech` has words that nobody said instead of errors.

    python benchmarks/decisions unwritten --model base --set librispeech-test-other telephone
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, zip_longest
from time import process_time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import results
from arguments import EXAMPLE, limit_threads, parser, require
from recordings import NON_SPEECH, error_percent, join, read_set

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.contract import Floats
    from harken.manifests import Entry

SETS = ("librispeech-train-clean", "librispeech-test-other", "arctic", "telephone", "noisy", NON_SPEECH)


def main() -> None:
    args = parser(__doc__, model="tiny.en", sets=SETS).parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken

    result = results.begin(args.save or "unwritten", {"model": args.model, "threads": args.threads})
    recognizer = harken.load(args.model, threads=args.threads)
    recognizer.transcribe(EXAMPLE).result()  # the first window takes longer
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model, speech=False)
        for language, pieces in by_language(entries):
            result.add(set=name, language=language, **row(recognizer, language, pieces))
    if args.save:
        print(results.write(result))


def by_language(entries: Sequence[Entry]) -> Iterator[tuple[str | None, list[Entry]]]:
    """Yield the recordings of each language, the speakers in turns."""
    for language, group in groupby(sorted(entries, key=lambda e: e.language or ""), lambda e: e.language):
        of_language = [*group]
        speakers = [
            [entry for entry in of_language if entry.speaker == speaker]
            for speaker in dict.fromkeys(entry.speaker for entry in of_language)
        ]
        turns = chain.from_iterable(zip_longest(*speakers))
        yield language, [entry for entry in turns if entry is not None]


def row(recognizer: Recognizer, language: str | None, pieces: Sequence[Entry]) -> dict[str, Any]:
    """Return what is without words in the joined recordings, before and after gaps are decoded."""
    from harken.audio import load_audio

    samples = join(load_audio(entry.path) for entry in pieces)
    spoken = any(entry.text for entry in pieces)
    cells: dict[str, Any] = {"minutes": round(len(samples) / 16_000 / 60, 1)}
    # At depth 0 gaps are found and reported, and none is decoded.
    for label, depth in (("before", 0), ("after", 2)):
        with patch("harken.transcribe.gap_filling.MAX_DEPTH", depth):
            cells |= {
                f"{name}_{label}": value for name, value in run(recognizer, samples, language, spoken, pieces)
            }
    return cells


def run(
    recognizer: Recognizer, samples: Floats, language: str | None, spoken: bool, pieces: Sequence[Entry]
) -> Iterator[tuple[str, Any]]:
    """Yield the cells of one transcription."""
    from dataclasses import replace

    began_s = process_time()
    transcription = recognizer.transcribe(samples, language=language if spoken else None)
    transcript = transcription.result()
    yield "cpu_s", round(process_time() - began_s, 2)
    yield "without_words_s", round(sum(gap.end_s - gap.start_s for gap in transcript.unwritten), 1)
    yield "windows", transcription.stats.windows
    if spoken:
        whole = replace(pieces[0], text=" ".join(entry.text for entry in pieces))
        yield "errors_percent", error_percent([whole], [transcript.text])
    else:
        yield "words", len(transcript.text.split())
