"""Errors of engines over whole sets, by set and by length of recording: each recording once, no times.

The first engine is compared with each of the others recording by recording. ``harken exact`` encodes windows whole,
as the reference does. Engines work at the same time, since nothing is timed. Where nobody names the language, the
percentage of recordings whose language an engine got right stands beside its errors. Most recordings are shorter than a
window; ``--join`` makes longer ones of them.

    python benchmarks/errors.py --model base --threads 1 --beam 1 5 --language named detected --save errors-base
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from engines import PACKAGES, Reply, Worker, add_engine_options, workers_of
from program import Args, Parser, Row, add, main, note, percent
from recordings import SCORING, difference, evaluate, read_sets, write_joined

SETS = (
    "accents", "arctic", "chinese", "common-voice", "dutch", "french", "german", "librispeech-test-other",
    "librispeech-train-clean", "ljspeech", "long-form", "many-languages", "noisy", "telephone",
)  # fmt: skip
LENGTHS_S = {"under 3 s": (0, 3), "3 to 8 s": (3, 8), "over 8 s": (8, float("inf"))}
"""Classes of recordings by their seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A recording of a set, and the reply of each engine."""

    set: str
    entry: Any
    replies: Sequence[Reply]


def options(parser: Parser) -> None:
    add_engine_options(parser, ("harken", "harken exact", "faster-whisper"))
    add(parser, "--beam", (1,), "beam widths; 1 is greedy")
    add(parser, "--language", ("named",), "named, detected or both", choices=("named", "detected"))
    add(parser, "--join", 0.0, "least seconds that recordings of a set in one language are joined to")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each group of recordings."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, workers_of(args) as workers:
        recordings = read_sets(args)
        if args.join:
            recordings = [*joined(recordings, args.join, Path(scratch))]
        for language, beam_size in product(args.language, args.beam):
            named = language == "named"
            outcomes = transcribe_all(workers, recordings, named=named, beam_size=beam_size)
            for group, members in groups(outcomes):
                if members:
                    row = measure(group, members, args.engines)
                    yield {"beam_size": beam_size, "language": language} | row


def joined(recordings: Sequence[tuple[str, Any]], seconds: float, scratch: Path) -> Iterator[tuple[str, Any]]:
    """Yield recordings of at least some seconds, each of several of one set in one language, without what is left."""
    waiting: dict[tuple[str, str | None], list[Any]] = {}
    for number, (name, entry) in enumerate(recordings):
        parts = waiting.setdefault((name, entry.language), [])
        parts.append(entry)
        if sum(part.seconds or 0.0 for part in parts) >= seconds:
            path = scratch / f"{number}.wav"
            length = write_joined([part.path for part in parts], path)
            text = " ".join(part.text for part in parts)
            yield name, replace(entry, path=path, text=text, seconds=length, speaker=None)
            parts.clear()


def transcribe_all(
    workers: Sequence[Worker], recordings: Sequence[tuple[str, Any]], *, named: bool, beam_size: int
) -> list[Outcome]:
    """Have each engine transcribe all recordings."""

    def transcribe(worker: Worker) -> list[Reply]:
        replies = [
            worker.work(entry.path, language=entry.language if named else None, beam_size=beam_size)
            for _, entry in recordings
        ]
        note(f"beam size {beam_size}: {worker.engine.label} has ended")
        return replies

    with ThreadPoolExecutor(len(workers)) as pool:
        replies = zip(*pool.map(transcribe, workers), strict=True)
        return [Outcome(name, entry, own) for (name, entry), own in zip(recordings, replies, strict=True)]


def groups(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """Yield the recordings of each set, of each class of lengths, and all."""
    for name in dict.fromkeys(outcome.set for outcome in outcomes):
        yield name, [outcome for outcome in outcomes if outcome.set == name]
    for name, (least, end) in LENGTHS_S.items():
        yield name, [outcome for outcome in outcomes if least <= (outcome.entry.seconds or 0.0) < end]
    yield "all", [*outcomes]


def measure(group: str, members: Sequence[Outcome], engines: Sequence[str]) -> Row:
    """Return the errors of each engine on a group, and the differences of the first to the others."""
    entries = [member.entry for member in members]
    rates = [
        evaluate(entries, [member.replies[index].text for member in members]) for index in range(len(engines))
    ]
    cells: Row = {"group": group, "recordings": len(members)}
    for index, (name, rate) in enumerate(zip(engines, rates, strict=True)):
        right = sum(member.replies[index].language == member.entry.language for member in members)
        cells[name] = percent(rate and rate.rate)
        cells[f"{name}, language right"] = percent(right / len(members))
        if index:
            cells |= difference(f"to {name}", rates[0], rate)
    return cells


if __name__ == "__main__":
    main(
        rows, options, model="base", sets=SETS, packages=PACKAGES, needs=SCORING,
        settings=("precision",),
    )  # fmt: skip
