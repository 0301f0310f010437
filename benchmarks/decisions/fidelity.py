"""Windows as the reference makes them against windows with a little silence: error rates and time.

A window of the reference has 30 s, with zeros behind the end of the recording. A row with a number encodes that many
seconds of silence behind the end instead; 30 of them fill the whole window.

    python benchmarks/decisions fidelity --silence 2 4 6 30
"""

from __future__ import annotations

from time import perf_counter

import results
from arguments import limit_threads, parser, positive, require
from recordings import error_percent, read_set

SETS = ("librispeech-test-other", "librispeech-train-clean", "arctic", "ljspeech")
DEFAULT_S = 4
"""Silence that harken encodes by default."""


def main() -> None:
    options = parser(__doc__, model="tiny.en", sets=SETS)
    options.add_argument("--precision", default="int8", metavar="P", help="(int8)")
    options.add_argument(
        "--silence", type=positive, nargs="*", default=[DEFAULT_S], metavar="S", help="seconds (4)"
    )
    args = options.parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken
    from harken.transcribe import window_decoder
    from harken.types import FRAMES_PER_SECOND

    settings = {"model": args.model, "precision": args.precision, "threads": args.threads}
    result = results.begin(args.save or "fidelity", settings)
    recognizer = harken.load(args.model, precision=args.precision, threads=args.threads)
    sets = {name: read_set(args.audio, name, args.limit, model=args.model) for name in args.set}
    for silence_s in (None, *args.silence):
        window_decoder.FINAL_SILENCE_FRAMES = (silence_s or 0) * FRAMES_PER_SECOND
        fidelity = "fast" if silence_s else "exact"
        everything, all_texts, total_s = [], [], 0.0
        for name, entries in sets.items():
            began = perf_counter()
            texts = [recognizer.transcribe(entry.path, fidelity=fidelity).text for entry in entries]
            seconds = perf_counter() - began
            windows = f"{silence_s} s of silence" if silence_s else "exact"
            errors = error_percent(entries, texts)
            result.add(windows=windows, set=name, error_percent=errors, seconds=round(seconds, 2))
            everything += entries
            all_texts += texts
            total_s += seconds
        errors = error_percent(everything, all_texts)
        result.add(windows=windows, set="all", error_percent=errors, seconds=round(total_s, 2))
    if args.save:
        print(results.write(result))
