"""Whole windows against windows with sparse padding: error rates and time.

A window has 30 s, with zeros behind the end of the recording. A row with two numbers, BLOCK/PERIOD, encodes so many of
every so many positions of these zeros; the others encode all of them. For differences with intervals and for other
engines see ``benchmarks/errors.py``.

    python benchmarks/decisions fidelity --model base --padding 8/64 16/64 32/64
"""

from __future__ import annotations

import argparse
from time import perf_counter
from unittest.mock import patch

import results
from arguments import limit_threads, parser, require
from errors import SETS
from recordings import error_percent, read_set


def main() -> None:
    options = parser(__doc__, model="tiny.en", sets=SETS)
    options.add_argument("--precision", default="int8", metavar="P", help="(int8)")
    options.add_argument(
        "--padding", type=block_of_period, nargs="*", default=[(24, 64)], metavar="B/P", help="(24/64)"
    )
    args = options.parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken
    from harken.transcribe.window_decoder import PaddingSample

    settings = {"model": args.model, "precision": args.precision, "threads": args.threads}
    result = results.begin(args.save or "fidelity", settings)
    recognizer = harken.load(args.model, precision=args.precision, threads=args.threads)
    sets = {name: read_set(args.audio, name, args.limit, model=args.model) for name in args.set}
    for padding in (None, *args.padding):
        sample = PaddingSample(block=padding[0], period=padding[1]) if padding else PaddingSample()
        windows, fidelity = ("{}/{}".format(*padding), "fast") if padding else ("whole", "exact")
        everything, all_texts, total_s = [], [], 0.0
        for name, entries in sets.items():
            began = perf_counter()
            with patch.object(PaddingSample, "positions", sample.positions):
                texts = [
                    recognizer.transcribe(entry.path, language=entry.language, fidelity=fidelity).text
                    for entry in entries
                ]
            seconds = perf_counter() - began
            errors = error_percent(entries, texts)
            result.add(windows=windows, set=name, error_percent=errors, seconds=round(seconds, 2))
            everything += entries
            all_texts += texts
            total_s += seconds
        errors = error_percent(everything, all_texts)
        result.add(windows=windows, set="all", error_percent=errors, seconds=round(total_s, 2))
    if args.save:
        print(results.write(result))


def block_of_period(text: str) -> tuple[int, int]:
    """Return two integers with a slash between them, for argparse."""
    block, _, period = text.partition("/")
    if not (block.isdecimal() and period.isdecimal() and 0 < int(block) <= int(period)):
        raise argparse.ArgumentTypeError(f"{text}: allowed are two integers, B/P, with 0 < B <= P")
    return int(block), int(period)
