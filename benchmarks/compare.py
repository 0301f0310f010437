"""Speed, errors and memory of harken and other engines, side by side, on sets of recordings.

Every engine gets the same model, threads, beam width and language, and its own defaults otherwise. Each runs in a
process of its own; they take turns, so that a busy minute of the machine affects all of them. The first engine is the
one that the others are compared with: ratios of time turn by turn, differences of errors recording by recording.

    python benchmarks/compare.py --engines harken faster-whisper openvino-genai openai-whisper \\
        --peer-models openvino-genai=tiny.en-genai openai-whisper=tiny.en.pt --save engines
    python benchmarks/compare.py --join --engines harken 'harken batched' 'faster-whisper batched' --save engines-long
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from engines import PACKAGES, Worker, add_engine_options, workers_of
from program import DEFAULT_SET, Args, Parser, Row, add, main, note, percent, ratios, spread
from recordings import SCORING, difference, evaluate, read_set, write_joined

SETTLE_S = 0.5
"""Pause between two engines: idle threads of some pools spin for 0.2 s before they sleep."""


@dataclass(slots=True)
class Turns:
    """Turns of one engine over one set: texts of the last turn, and the cost of each."""

    worker: Worker
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    texts: list[str] = field(default_factory=list)

    def take(self, entries: Sequence[Any], beam_size: int) -> None:
        """Transcribe a set once."""
        time.sleep(SETTLE_S)
        replies = [
            self.worker.work(entry.path, language=entry.language, beam_size=beam_size) for entry in entries
        ]
        self.seconds.append(sum(reply.seconds for reply in replies))
        self.cpu_s.append(sum(reply.cpu_s for reply in replies))
        self.peak_mb, self.texts = replies[-1].peak_mb, [reply.text for reply in replies]


def options(parser: Parser) -> None:
    add_engine_options(parser, ("harken",))
    add(parser, "--beam", (1,), "beam widths; 1 is greedy")
    add(parser, "--repeats", 3, "turns of each engine")
    add(parser, "--join", False, "join the recordings of a set into one")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each set, beam width and engine."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, workers_of(args) as workers:
        sets = dict(read_speech(args, Path(scratch)))
        for worker in workers:
            worker.work(next(iter(sets.values()))[0].path)  # warms up
        for name, beam_size in product(sets, args.beam):
            yield from compare(name, sets[name], workers, beam_size, args)


def read_speech(args: Args, scratch: Path) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the recordings of each set; joined into one where that is asked for."""
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model)
        if not args.join:
            yield name, entries
            continue
        path = scratch / f"{name}.wav"
        seconds = write_joined([entry.path for entry in entries], path)
        text = " ".join(entry.text for entry in entries)
        yield f"{name}, joined", [replace(entries[0], path=path, text=text, seconds=seconds)]


def compare(
    name: str, entries: Sequence[Any], workers: Sequence[Worker], beam_size: int, args: Args
) -> Iterator[Row]:
    """Yield a row for each engine on one set."""
    from harken.evaluation.speed import rotation

    turns = {worker.engine.label: Turns(worker) for worker in workers}
    for label in rotation(turns, 0, args.repeats):
        turns[label].take(entries, beam_size)
        note(f"{name}, turn {len(turns[label].seconds)}: {label} {turns[label].seconds[-1]:.2f} s")
    audio_s = sum(entry.seconds or 0.0 for entry in entries)
    all_errors = [evaluate(entries, own.texts) for own in turns.values()]
    first, *_ = turns.values()
    for (label, own), errors in zip(turns.items(), all_errors, strict=True):
        yield {
            "set": name,
            "model": Path(args.model).name,
            "beam": beam_size,
            "engine": label,
            "recordings": len(entries),
            "minutes": round(audio_s / 60, 2),
            "seconds": round(median(own.seconds), 3),
            "cpu_s": round(median(own.cpu_s), 3),
            "times_real_time": round(audio_s / median(own.seconds), 2),
            **spread("ratio", ratios(own.seconds, first.seconds)),
            "error_percent": percent(errors and errors.rate),
            **difference("difference", errors, all_errors[0]),
            "peak_mb": round(own.peak_mb, 1),
            "load_s": round(own.worker.load_s, 2),
        }


if __name__ == "__main__":
    main(
        rows, options, model="tiny.en", sets=(DEFAULT_SET,), needs=SCORING, packages=PACKAGES,
        settings=("precision", "repeats"),
    )  # fmt: skip
