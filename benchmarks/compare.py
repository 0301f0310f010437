"""Speed, errors and memory of harken and other engines, side by side, on sets of recordings.

Every engine gets the same model, threads, beam width and language, and its own defaults otherwise. Each runs in a
process of its own; they take turns, so that a busy minute of the machine affects all of them. The first engine is the
one that the others are compared with: ratios of time turn by turn, differences of errors recording by recording.

With ``--dims`` all get the same random weights of a published model's dimensions, which are written and converted
first; each window of 30 s then gives the same number of tokens in every engine and is decoded once, and errors mean
nothing. With ``--busy`` the turns are taken beside so many endless loops, each on a core of its own.

    python benchmarks/compare.py --engines harken faster-whisper openvino-genai openai-whisper \\
        --peer-models openvino-genai=tiny.en-genai openai-whisper=tiny.en.pt --save engines
    python benchmarks/compare.py --join --engines harken 'harken batched' 'faster-whisper batched' --busy 0 1
    python benchmarks/compare.py --dims large-v3-turbo --set long-form --minutes 1 --engines harken faster-whisper
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any

from engines import PACKAGES, Engine, Worker, add_engine_options, engine
from program import DEFAULT_SET, Args, Program, Row, add, main, note, positive, ratios, spread, stop
from random_weights import SIZES
from recordings import difference, error_percent, evaluate, read_set, write_joined

SETTLE_S = 0.5
"""Pause between two engines: idle threads of some pools spin for 0.2 s before they sleep."""
CONVERTED = ("harken", "faster-whisper", "openvino-genai")
"""Engines that random weights can be written for."""
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""An endless loop that ends with the process that began it."""


@dataclass(slots=True)
class Turns:
    """Turns of one engine over one set: texts of the last turn, and the cost of each."""

    worker: Worker
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    texts: list[str] = field(default_factory=list)

    def take(self, entries: Sequence[Any], beam_size: int, *, once: bool) -> None:
        """Transcribe a set once; see `engines.Request` for `once`."""
        time.sleep(SETTLE_S)
        replies = [self.worker.work(entry.path, entry.language, beam_size, once=once) for entry in entries]
        self.seconds.append(sum(reply.seconds for reply in replies))
        self.cpu_s.append(sum(reply.cpu_s for reply in replies))
        self.peak_mb, self.texts = replies[-1].peak_mb, [reply.text for reply in replies]


def options(parser: argparse.ArgumentParser) -> None:
    add_engine_options(parser, ("harken",))
    add(parser, "--beam", (1,), "beam widths; 1 is greedy")
    add(parser, "--busy", (0,), "numbers of busy processes beside", kind=int)
    add(parser, "--repeats", 3, "turns of each engine")
    parser.add_argument("--language", help="only recordings in this language")
    parser.add_argument("--join", action="store_true", help="join the recordings of a set into one")
    parser.add_argument("--minutes", type=float, metavar="N", help="join and repeat recordings to this length")
    parser.add_argument("--dims", choices=SIZES, help="random weights of these dimensions instead of a model")
    parser.add_argument(
        "--tokens", type=positive, default=100, metavar="N", help="tokens of a window with --dims (100)"
    )
    parser.add_argument(
        "--vocabulary-of", default="base", metavar="M", help="multilingual model with the text tokens (base)"
    )


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each set, beam width, number of busy processes and engine."""
    check(args)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ExitStack() as stack:
        sets = dict(read_speech(args, Path(scratch)))
        workers = [stack.enter_context(Worker(each)) for each in make_engines(args, Path(scratch))]
        for worker in workers:
            worker.work(next(iter(sets.values()))[0].path, once=bool(args.dims))
        for name, beam_size in product(sets, args.beam):
            yield from compare(name, sets[name], workers, beam_size, args)


def check(args: Args) -> None:
    """Stop at arguments that do not fit one another or this machine."""
    if any(not 0 <= busy <= len(usable_cores()) for busy in args.busy):
        stop(f"--busy {' '.join(map(str, args.busy))}: allowed are numbers from 0 to {len(usable_cores())}")
    if args.dims and args.peer_models:
        stop("--peer-models: allowed is none with --dims, whose weights are converted for every engine")
    if args.dims and (others := [name for name in args.engines if name not in CONVERTED]):
        stop(f"--engines {' '.join(others)}: allowed with --dims are {', '.join(CONVERTED)}")


def make_engines(args: Args, scratch: Path) -> Iterator[Engine]:
    """Yield the engines with their models; random ones are written first."""
    if not args.dims:
        yield from (engine(name, args) for name in args.engines)
        return
    from random_weights import convert, make_dims, write_checkpoint

    note(f"writing random weights of the dimensions of {args.dims}")
    checkpoint = scratch / "random"
    write_checkpoint(checkpoint, make_dims(args.dims), args.vocabulary_of, args.tokens)
    for name in args.engines:
        converted = convert(name, checkpoint, scratch / name)
        own = argparse.Namespace(
            **vars(args) | {"model": str(converted), "peer_models": [f"{name}={converted}"]}
        )
        yield engine(name, own)


def read_speech(args: Args, scratch: Path) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the recordings of each set; joined into one where that is asked for."""
    for name in args.set:
        model = None if args.dims else args.model
        entries = read_set(args.audio, name, args.limit, model=model, language=args.language)
        if not args.join and not args.minutes:
            yield name, entries
            continue
        paths, path = [entry.path for entry in entries], scratch / f"{name}.wav"
        seconds = write_joined(
            cycle(paths) if args.minutes else paths, path, *([60 * args.minutes] if args.minutes else [])
        )
        text = " ".join(entry.text for entry in entries)
        yield f"{name}, joined", [replace(entries[0], path=path, text=text, seconds=seconds)]


def compare(
    name: str, entries: Sequence[Any], workers: Sequence[Worker], beam_size: int, args: Args
) -> Iterator[Row]:
    """Yield a row for each engine on one set."""
    once = bool(args.dims)
    turns = {(busy, worker.engine.label): Turns(worker) for busy in args.busy for worker in workers}
    for repeat in range(args.repeats):
        order = [*turns]
        at = repeat % len(order)
        for busy, label in order[at:] + order[:at]:
            with busy_processes(busy):
                turns[busy, label].take(entries, beam_size, once=once)
            note(f"{name}, turn {repeat + 1}: {label} {turns[busy, label].seconds[-1]:.2f} s")
    audio_s = sum(entry.seconds or 0.0 for entry in entries)
    scored = not once and not args.minutes
    first_evaluation = evaluate(entries, next(iter(turns.values())).texts) if scored else None
    for (busy, label), own in turns.items():
        evaluation = evaluate(entries, own.texts) if scored else None
        first = turns[busy, workers[0].engine.label]
        yield {
            "set": name,
            "model": args.dims or Path(args.model).name,
            "beam": beam_size,
            "busy": busy,
            "engine": label,
            "recordings": len(entries),
            "minutes": round(audio_s / 60, 2),
            "seconds": round(median(own.seconds), 3),
            "cpu_s": round(median(own.cpu_s), 3),
            "times_real_time": round(audio_s / median(own.seconds), 2),
            **spread("ratio", ratios(own.seconds, first.seconds)),
            "error_percent": error_percent(evaluation) if scored else None,
            **(difference("difference", evaluation, first_evaluation) if scored else {}),
            "characters": sum(len("".join(text.split())) for text in own.texts),
            "peak_mb": round(own.peak_mb, 1),
            "load_s": round(own.worker.load_s, 2),
        }


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """Keep so many cores busy; where the system allows it, each process stays on its core."""
    processes = []
    try:
        for core in usable_cores()[:n]:
            processes.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(processes[-1].pid, {core})
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(
        Program(
            doc=__doc__, name="compare", rows=rows, options=options, model="tiny.en", sets=(DEFAULT_SET,),
            needs=("harken", "jiwer", "whisper_normalizer"), packages=PACKAGES,
            settings=("precision", "dims", "repeats"),
        )
    )  # fmt: skip
