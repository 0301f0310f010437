"""Errors of engines over whole sets, by set and by length of recording: each recording once, no times.

The first engine is compared with each of the others recording by recording. ``harken exact`` encodes windows whole,
as the reference does. Engines work at the same time, since nothing is timed. Where nobody names the language, the
percentage of recordings whose language an engine got right stands beside its errors.

    python benchmarks/errors.py --model base --threads 1 --beam 1 5 --language named detected --save errors-base
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, note, parser, positive, require, run
from compare import add_engine_options, engine, module_of
from engines import Reply, Worker
from recordings import evaluate, percent, read_set

if TYPE_CHECKING:
    from harken.manifests import Entry

SETS = (
    "arctic", "chinese", "dutch", "french", "german", "librispeech-test-other", "librispeech-train-clean", "ljspeech",
    "long-form", "many-languages", "noisy", "telephone",
)  # fmt: skip
ENGINES = ("harken", "harken exact", "faster-whisper")
LENGTHS_S = {"under 3 s": (0, 3), "3 to 8 s": (3, 8), "over 8 s": (8, float("inf"))}
"""Classes of recordings by their seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A recording of a set, and the reply of each engine."""

    set: str
    entry: Entry
    replies: Sequence[Reply]


def main() -> None:
    args = arguments()
    require(*dict.fromkeys(module_of(name) for name in args.engines), "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    settings = {"model": args.model, "threads": args.threads, "precision": args.precision}
    result = results.begin(args.save or "errors", settings, ("faster-whisper", "ctranslate2"))
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(engine(name, args))) for name in args.engines]
        for language in args.language:
            for beam_size in args.beam:
                outcomes = transcribe_sets(workers, args, named=language == "named", beam_size=beam_size)
                for group, members in groups(outcomes):
                    result.add(beam_size=beam_size, language=language, **row(group, members, args.engines))
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="base", sets=SETS)
    add_engine_options(options, ENGINES)
    options.add_argument(
        "--beam", type=positive, nargs="+", default=[1], metavar="N", help="beam widths; 1 is greedy (1)"
    )
    options.add_argument(
        "--language", nargs="+", default=["named"], choices=("named", "detected"), help="(named)"
    )
    return options.parse_args()


def transcribe_sets(
    workers: Sequence[Worker], args: argparse.Namespace, *, named: bool, beam_size: int
) -> list[Outcome]:
    """Have each engine transcribe all sets."""
    members = [
        (name, entry) for name in args.set for entry in read_set(args.audio, name, args.limit, model=args.model)
    ]

    def transcribe(worker: Worker) -> list[Reply]:
        replies = [
            worker.transcribe(entry.path, entry.language if named else None, beam_size) for _, entry in members
        ]
        note(f"beam size {beam_size}: {worker.engine.label} has ended")
        return replies

    with ThreadPoolExecutor(len(workers)) as pool:
        replies = zip(*pool.map(transcribe, workers), strict=True)
        return [Outcome(name, entry, own) for (name, entry), own in zip(members, replies, strict=True)]


def groups(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """Yield the recordings of each set, of each class of lengths, and all."""
    for name in dict.fromkeys(outcome.set for outcome in outcomes):
        yield name, [outcome for outcome in outcomes if outcome.set == name]
    for name, (least, end) in LENGTHS_S.items():
        yield name, [outcome for outcome in outcomes if least <= (outcome.entry.seconds or 0.0) < end]
    yield "all", [*outcomes]


def row(group: str, members: Sequence[Outcome], engines: Sequence[str]) -> dict[str, Any]:
    """Return the errors of each engine on a group, and the differences of the first to the others."""
    from harken.evaluation import compare_evaluations

    entries = [member.entry for member in members]
    evaluations = [
        evaluate(entries, [member.replies[index].text for member in members]) for index in range(len(engines))
    ]
    cells: dict[str, Any] = {"group": group, "recordings": len(members)}
    for index, (name, evaluation) in enumerate(zip(engines, evaluations, strict=True)):
        right = sum(member.replies[index].language == member.entry.language for member in members)
        cells[name] = percent(evaluation.overall and evaluation.overall.rate)
        cells[f"{name}, language right"] = percent(right / len(members)) if members else None
        if index:
            difference = compare_evaluations(evaluations[0], evaluation)
            low, high = (difference and difference.confidence_interval) or (None, None)
            cells[f"to {name}"] = percent(difference and difference.rate)
            cells[f"to {name}, low"], cells[f"to {name}, high"] = percent(low), percent(high)
    return cells


if __name__ == "__main__":
    run(main)
