"""Speed, errors and memory of harken and other engines, side by side, on sets of recordings.

Every engine gets the same model, threads, beam width and language, and its own defaults otherwise. Each runs in a
process of its own; they take turns, so that a busy minute of the machine affects all of them. The first engine is the
one that the others are compared with: ratios of time turn by turn, differences of errors recording by recording.
Nothing is installed: an engine that cannot be imported ends the program with one line.

    python benchmarks/compare.py --engines harken faster-whisper openvino-genai openai-whisper \\
        --peer-models openvino-genai=tiny.en-genai openai-whisper=tiny.en.pt --save engines
    python benchmarks/compare.py --join --engines harken 'harken batched' 'faster-whisper batched'
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import results
from arguments import DEFAULT_SET, limit_threads, note, parser, positive, require, run
from engines import LOADERS, Engine, Worker
from recordings import evaluate, percent, read_set, write_joined

if TYPE_CHECKING:
    from harken.manifests import Entry

SETTLE_S = 0.5
"""Pause between two engines: idle threads of some pools spin for 0.2 s before they sleep."""
MODULES = {
    "harken": "harken",
    "faster-whisper": "faster_whisper",
    "openvino-genai": "openvino_genai",
    "openai-whisper": "whisper",
}
"""Module of each engine, by the first word of its name."""
PRECISIONS = {
    "faster-whisper": {"int8": "int8", "fp32": "float32"},
    "openai-whisper": {"int8": "fp32", "fp32": "fp32"},
}
"""Names of precisions in other engines; openai-whisper has float32 only on a CPU."""


@dataclass(slots=True)
class Turns:
    """Turns of one engine over one set: texts of the last turn, and the cost of each."""

    worker: Worker
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    texts: list[str] = field(default_factory=list)

    def take(self, entries: Sequence[Entry], beam_size: int, *, once: bool = False) -> None:
        """Transcribe a set once; see `engines.Request` for `once`."""
        time.sleep(SETTLE_S)
        replies = [
            self.worker.transcribe(entry.path, entry.language, beam_size, once=once) for entry in entries
        ]
        self.seconds.append(sum(reply.seconds for reply in replies))
        self.cpu_s.append(sum(reply.cpu_s for reply in replies))
        self.peak_mb, self.texts = replies[-1].peak_mb, [reply.text for reply in replies]


def main() -> None:
    args = arguments()
    require(*dict.fromkeys(module_of(name) for name in args.engines), "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    settings = {
        "model": args.model,
        "threads": args.threads,
        "beam size": args.beam,
        "precision": args.precision,
    }
    packages = ("faster-whisper", "ctranslate2", "openvino-genai", "openai-whisper", "torch")
    result = results.begin(args.save or "compare", settings, packages)
    engines = [engine(name, args) for name in args.engines]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        sets = dict(read_sets(args, Path(scratch)))
        workers = [stack.enter_context(Worker(engine)) for engine in engines]
        for worker in workers:
            worker.transcribe(next(iter(sets.values()))[0].path)
        for name, entries in sets.items():
            for row in compare(name, entries, workers, args):
                result.add(**row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en", sets=(DEFAULT_SET,))
    add_engine_options(options, ["harken"])
    options.add_argument("--beam", type=positive, default=1, metavar="N", help="beam width; 1 is greedy (1)")
    options.add_argument("--language", help="only recordings in this language")
    options.add_argument(
        "--join", action="store_true", help="join the recordings of a set into one, but not long-form"
    )
    options.add_argument("--repeats", type=positive, default=3, metavar="N", help="turns of each engine (3)")
    return options.parse_args()


def add_engine_options(options: argparse.ArgumentParser, engines: Sequence[str]) -> None:
    """Add the arguments that `engine` reads; `engines` are the default ones."""
    options.add_argument(
        "--engines", nargs="+", default=[*engines], choices=LOADERS, metavar="E", help=", ".join(LOADERS)
    )
    options.add_argument(
        "--peer-models", nargs="+", default=[], metavar="E=PATH",
        help="the same model for other engines; by default the directory of harken's model",
    )  # fmt: skip
    options.add_argument("--precision", default="int8", choices=("int8", "fp32"), help="of all engines (int8)")


def module_of(engine: str) -> str:
    """Return the module that an engine is imported from."""
    return MODULES[engine.split()[0]]


def engine(name: str, args: argparse.Namespace) -> Engine:
    """Return one engine with its model."""
    kind = name.split()[0]
    peers = dict(pair.split("=", 1) for pair in args.peer_models)
    model = args.model if kind == "harken" else peers.get(kind) or model_directory(args.model)
    precision = PRECISIONS.get(kind, {}).get(args.precision, args.precision)
    return Engine(label=name, kind=name, model=model, precision=precision, threads=args.threads)


def model_directory(model: str) -> str:
    """Return the directory of a model, for engines that read the same files."""
    from harken.checkpoints import resolve_model

    return str(resolve_model(model))


def read_sets(args: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Sequence[Entry]]]:
    """Yield the recordings of each set; joined into one where that is asked for."""
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model, language=args.language, speech=False)
        if args.join and name != "long-form":
            yield f"{name}, joined", [join(entries, scratch / f"{name}.wav")]
        else:
            yield name, entries


def join(entries: Sequence[Entry], to: Path) -> Entry:
    """Write recordings into one file, with 0.3 s of silence between them."""
    from dataclasses import replace

    seconds = write_joined((entry.path for entry in entries), to)
    text = " ".join(entry.text for entry in entries)
    return replace(entries[0], path=to, text=text, seconds=seconds)


def compare(
    name: str, entries: Sequence[Entry], workers: Sequence[Worker], args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine on one set."""
    from harken.evaluation import compare_evaluations

    turns = [Turns(worker) for worker in workers]
    for repeat in range(args.repeats):
        for engine_turns in turns[repeat % len(turns) :] + turns[: repeat % len(turns)]:
            engine_turns.take(entries, args.beam)
            note(
                f"{name}, turn {repeat + 1}: {engine_turns.worker.engine.label} {engine_turns.seconds[-1]:.2f} s"
            )
    audio_s = sum(entry.seconds or 0.0 for entry in entries)
    first, evaluations = turns[0], [evaluate(entries, engine_turns.texts) for engine_turns in turns]
    for engine_turns, evaluation in zip(turns, evaluations, strict=True):
        ratios = [own / base for own, base in zip(engine_turns.seconds, first.seconds, strict=True)]
        difference = compare_evaluations(evaluation, evaluations[0])
        interval = difference and difference.confidence_interval
        yield {
            "set": name,
            "engine": engine_turns.worker.engine.label,
            "recordings": len(entries),
            "minutes": round(audio_s / 60, 2),
            "seconds": round(median(engine_turns.seconds), 3),
            "cpu_s": round(median(engine_turns.cpu_s), 3),
            "times_real_time": round(audio_s / median(engine_turns.seconds), 2),
            "ratio": round(median(ratios), 3),
            "ratio_low": round(min(ratios), 3),
            "ratio_high": round(max(ratios), 3),
            "error_percent": percent(evaluation.overall and evaluation.overall.rate),
            "difference_percent": percent(difference and difference.rate),
            "difference_low": percent(interval and interval[0]),
            "difference_high": percent(interval and interval[1]),
            "hallucinated_words": evaluation.hallucinations.words,
            "peak_mb": round(engine_turns.peak_mb, 1),
            "load_s": round(engine_turns.worker.load_s, 2),
        }


if __name__ == "__main__":
    run(main)
