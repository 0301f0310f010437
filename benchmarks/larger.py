"""Seconds that a minute of speech takes with larger models, greedily and with beams, beside other engines.

Engines take turns, each in a process of its own and with its defaults. With ``--dims`` all get the same random weights
of a published model's dimensions, which are written and converted first; every window of 30 s then gives the same
number of tokens in every engine, and is decoded once: no voice activity detection, no timestamps, no further attempts.
The number of characters of each text shows that engines did the same.
The first engine is the one that the others are compared with.

    python benchmarks/larger.py --model small --engines harken faster-whisper --save larger-small
    python benchmarks/larger.py --dims large-v3-turbo --engines harken faster-whisper openvino-genai \\
        --save larger-turbo
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, note, parser, positive, require, run, stop
from compare import Turns, add_engine_options, engine, module_of
from engines import Engine, Worker
from gpu import SIZES, make_dims
from recordings import read_set, write_joined

if TYPE_CHECKING:
    from harken.manifests import Entry

CONVERTED = ("harken", "faster-whisper", "openvino-genai")
"""Engines that random weights can be written for."""


def main() -> None:
    args = arguments()
    require(*dict.fromkeys(module_of(name) for name in args.engines))
    limit_threads(args.threads)
    settings = {"threads": args.threads, "precision": args.precision, "set": args.set}
    packages = ("faster-whisper", "ctranslate2", "openvino-genai", "transformers", "torch")
    fixed = {"tokens a window": args.tokens} if args.dims else {}
    result = results.begin(args.save or "larger", settings | fixed, packages)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ExitStack() as stack:
        entry = read_speech(args, Path(scratch))
        workers = [stack.enter_context(Worker(one)) for one in make_engines(args, Path(scratch))]
        for beam in args.beam:
            for row in measure(entry, workers, beam, args):
                result.add(**row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="base", sets=("long-form",))
    add_engine_options(options, ["harken"])
    options.add_argument("--dims", choices=SIZES, help="random weights of these dimensions instead of a model")
    options.add_argument(
        "--tokens", type=positive, default=100, metavar="N", help="tokens of a window with --dims (100)"
    )
    options.add_argument(
        "--vocabulary-of",
        default="base",
        metavar="M",
        help="multilingual model, for the text tokens of --dims (base)",
    )
    options.add_argument(
        "--beam", type=positive, nargs="+", default=[1, 5], metavar="N", help="beam widths; 1 is greedy (1 5)"
    )
    options.add_argument(
        "--minutes", type=positive, default=2, metavar="N", help="minutes of speech, joined recordings (2)"
    )
    options.add_argument("--repeats", type=positive, default=3, metavar="N", help="turns of each engine (3)")
    args = options.parse_args()
    if args.dims and (others := [name for name in args.engines if name not in CONVERTED]):
        options.error(f"--engines {' '.join(others)}: allowed with --dims are {', '.join(CONVERTED)}")
    if args.dims and args.peer_models:
        options.error(
            "--peer-models: allowed is none with --dims, whose weights are converted for every engine"
        )
    return args


def read_speech(args: argparse.Namespace, scratch: Path) -> Entry:
    """Return recordings joined into one of the length asked for, in English."""
    entries = [entry for name in args.set for entry in read_set(args.audio, name, args.limit, language="en")]
    path = scratch / "speech.wav"
    seconds = write_joined((entry.path for entry in cycle(entries)), path, 60 * args.minutes)
    return replace(entries[0], path=path, seconds=seconds)


def make_engines(args: argparse.Namespace, scratch: Path) -> list[Engine]:
    """Return the engines with their models; random ones are written first."""
    if not args.dims:
        return [engine(name, args) for name in args.engines]
    from random_checkpoint import convert, write_checkpoint

    dims, checkpoint = make_dims(args.dims), scratch / "random"
    longest = dims.n_text_ctx // 2 - 1  # what decoding allows
    if args.tokens > longest:
        stop(f"--tokens {args.tokens}: allowed are 1 to {longest}")
    note(f"writing random weights of the dimensions of {args.dims}")
    write_checkpoint(checkpoint, dims, args.vocabulary_of, args.tokens)
    engines = []
    for name in args.engines:
        args.model, args.peer_models = str(checkpoint), [f"{name}={convert(name, checkpoint, scratch / name)}"]
        engines.append(engine(name, args))
    return engines


def measure(
    entry: Entry, workers: Sequence[Worker], beam: int, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine at one beam width."""
    once, minutes = bool(args.dims), (entry.seconds or 0.0) / 60
    for worker in workers:
        worker.transcribe(entry.path, entry.language, beam, once=once)
    turns = [Turns(worker) for worker in workers]
    for repeat in range(args.repeats):
        for own in turns:
            own.take([entry], beam, once=once)
            note(f"beam {beam}, turn {repeat + 1}: {own.worker.engine.label} {own.seconds[-1]:.2f} s")
    for own in turns:
        ratios = [one / first for one, first in zip(own.seconds, turns[0].seconds, strict=True)]
        yield {
            "model": args.dims or Path(args.model).name,
            "weights": "random" if args.dims else "real",
            "beam": beam,
            "engine": own.worker.engine.label,
            "minutes": round(minutes, 2),
            "seconds_a_minute": round(median(own.seconds) / minutes, 3),
            "ratio": round(median(ratios), 3),
            "ratio_low": round(min(ratios), 3),
            "ratio_high": round(max(ratios), 3),
            "peak_mb": round(own.peak_mb, 1),
            "characters": sum(len(word) for word in own.texts[0].split()),
        }


if __name__ == "__main__":
    run(main)
