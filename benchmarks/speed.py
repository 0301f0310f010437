"""Speed, accuracy and memory of harken, and of its peers beside it.

Every engine has the same model, the same number of threads, greedy search and its own fallback ladder, and runs
in a process of its own; they take turns, A B A B, so that a busy minute of the machine hits all of them.
Nothing is installed: --peers runs whichever of faster-whisper and openai-whisper can be imported.

    python benchmarks/speed.py --peers --openai-model tiny.en.pt
    python benchmarks/speed.py --peers --long
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common import (
    DEFAULT_SET,
    GAP_S,
    Recording,
    importable,
    machine,
    note,
    parser,
    positive,
    read_set,
    require,
    run,
    stop,
    table,
    word_error_rate,
    write_joined,
)
from engines import Engine, Worker

SETTLE_S = 0.5
"""Pause between two engines: idle threads of some pools spin for 0.2 s before they sleep."""
LONG_FORM = "long-form"
COLUMNS = (
    "engine", "seconds", "processor s", "times real time", "WER %", "peak MB", "load s", "time over harken's",
    "each turn, s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every engine transcribes, once a repeat."""

    title: str
    recordings: Sequence[Recording]
    warm_up: Path

    @property
    def seconds(self) -> float:
        return sum(recording.seconds for recording in self.recordings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One engine's turn in one repeat."""

    seconds: float
    cpu_s: float
    wer: float
    peak_mb: float


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    print(machine())
    engines = choose_engines(args)
    with tempfile.TemporaryDirectory() as scratch:
        for workload in workloads(args, Path(scratch)):
            print("\n" + report(workload, engines, args), flush=True)


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--peers", action="store_true", help="run the peers that are installed, too")
    its.add_argument("--set", nargs="+", default=[DEFAULT_SET], metavar="NAME", help=f"sets ({DEFAULT_SET})")
    its.add_argument(
        "--long", action="store_true",
        help=f"join each set into one recording, and run {LONG_FORM} file by file; adds the batched peer",
    )  # fmt: skip
    its.add_argument("--repeats", type=positive, default=3, metavar="N", help="turns of each engine (3)")
    its.add_argument("--limit", type=positive, metavar="N", help="only the first N recordings of a set")
    its.add_argument("--model", default="tiny.en", help="name or path of harken's model (tiny.en)")
    its.add_argument(
        "--precision",
        nargs="+",
        default=["int8"],
        metavar="P",
        help="of harken; ratios refer to the first (int8)",
    )
    its.add_argument("--openai-model", type=Path, metavar="FILE", help="the same model as a .pt file")
    return its.parse_args()


def choose_engines(args: argparse.Namespace) -> list[Engine]:
    """Engines to run, harken first; says which are left out, and why."""

    def engine(kind: str, model: str, precision: str) -> Engine:
        label = f"{kind} {precision}"
        return Engine(label=label, kind=kind, model=model, precision=precision, threads=args.threads)

    kinds = ["harken", "harken batched"] if args.long else ["harken"]
    engines = [engine(kind, args.model, precision) for precision in args.precision for kind in kinds]
    if not args.peers:
        return engines
    from harken.checkpoints import resolve_model

    directory = resolve_model(args.model)
    if not importable("faster_whisper"):
        note("faster-whisper is left out: it is not installed")
    elif not (directory / "model.bin").is_file():
        note(f"faster-whisper is left out: {directory} is not a CTranslate2 directory")
    else:
        kinds = ["faster-whisper", "faster-whisper batched"] if args.long else ["faster-whisper"]
        engines += [engine(kind, str(directory), "int8") for kind in kinds]
    if not importable("whisper"):
        note("openai-whisper is left out: it is not installed")
    elif args.openai_model is None:
        note("openai-whisper is left out: --openai-model is not given")
    elif not args.openai_model.is_file():
        stop(f"{args.openai_model}: no such file")
    else:
        engines.append(engine("openai-whisper", str(args.openai_model), "fp32"))
    return engines


def workloads(args: argparse.Namespace, scratch: Path) -> Iterator[Workload]:
    """What to run: sets file by file, or joined and then the long recordings."""
    for name in args.set:
        recordings = read_set(args.audio, name, args.limit)
        if args.long:
            yield joined(name, recordings, scratch / f"{name}.wav")
        else:
            yield file_by_file(name, recordings)
    if args.long:
        yield file_by_file(LONG_FORM, read_set(args.audio, LONG_FORM, args.limit))


def file_by_file(name: str, recordings: Sequence[Recording]) -> Workload:
    title = f"{name}, {len(recordings)} files one by one"
    return Workload(title=title, recordings=recordings, warm_up=recordings[0].path)


def joined(name: str, recordings: Sequence[Recording], to: Path) -> Workload:
    whole = Recording(
        path=to,
        text=" ".join(recording.text for recording in recordings),
        seconds=write_joined((recording.path for recording in recordings), to),
    )
    title = f"{name}, {len(recordings)} files joined with {GAP_S} s of silence"
    return Workload(title=title, recordings=[whole], warm_up=recordings[0].path)


def report(workload: Workload, engines: Sequence[Engine], args: argparse.Namespace) -> str:
    """Measure one workload and put it into a table."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(engine)) for engine in engines]
        runs = measure(workers, workload, args.repeats)
    rows = [row(worker, its, runs[0], workload.seconds) for worker, its in zip(workers, runs, strict=True)]
    title = f"### {workload.title}: {workload.seconds:.0f} s, {args.threads} threads, median of {args.repeats}"
    return f"{title}\n\n{table(COLUMNS, rows)}"


def measure(workers: Sequence[Worker], workload: Workload, repeats: int) -> list[list[Run]]:
    """Runs of each worker, one a repeat; one worker works at a time."""
    for worker in workers:
        worker.transcribe(workload.warm_up)
    runs: list[list[Run]] = [[] for _ in workers]
    for repeat in range(repeats):
        for worker, its in zip(workers, runs, strict=True):
            time.sleep(SETTLE_S)
            its.append(take_turn(worker, workload.recordings))
            note(f"{workload.title}: {repeat + 1} of {repeats}: {worker.engine.label} {its[-1].seconds:.2f} s")
    return runs


def take_turn(worker: Worker, recordings: Sequence[Recording]) -> Run:
    replies = [worker.transcribe(recording.path) for recording in recordings]
    return Run(
        seconds=sum(reply.seconds for reply in replies),
        cpu_s=sum(reply.cpu_s for reply in replies),
        wer=word_error_rate([recording.text for recording in recordings], [reply.text for reply in replies]),
        peak_mb=replies[-1].peak_mb,
    )


def row(worker: Worker, runs: Sequence[Run], first: Sequence[Run], audio_s: float) -> list[str]:
    """One engine's line; ratios are taken repeat by repeat, before the median."""
    seconds = median(run.seconds for run in runs)
    ratios = [run.seconds / baseline.seconds for run, baseline in zip(runs, first, strict=True)]
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if runs is not first else ""
    return [
        worker.engine.label,
        f"{seconds:.2f}",
        f"{median(run.cpu_s for run in runs):.2f}",
        f"{audio_s / seconds:.1f}",
        f"{median(run.wer for run in runs):.2f}",
        f"{max(run.peak_mb for run in runs):.0f}",
        f"{worker.load_s:.2f}",
        f"{median(ratios):.2f}{spread}",
        " ".join(f"{run.seconds:.2f}" for run in runs),
    ]


if __name__ == "__main__":
    run(main)
