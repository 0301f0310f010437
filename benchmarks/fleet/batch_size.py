"""Windows decoded at a time (``--batch-size``) across the recordings of a shard, for short and for long recordings.

Sizes take turns; that round is repeated, and each size is compared with the first in its own round. Processor time
stands beside the time, as it is steadier on a machine that does other work.

    python benchmarks/fleet batch_size --threads 1
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, note, parser, positive, require
from recordings import read_set

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harken import Recognizer


def main() -> None:
    args = arguments()
    require("harken")
    limit_threads(args.threads)
    import harken

    settings = {"model": args.model, "threads": args.threads, "word timestamps": "on"}
    result = results.begin(args.save or "fleet-batch-size", settings)
    recognizer = harken.load(args.model, threads=args.threads)
    for name, limit in (
        ("arctic", args.clips),
        ("librispeech-test-other", args.clips),
        ("long-form", args.long),
    ):
        entries = read_set(args.audio, name, limit, model=args.model)
        paths = [entry.path for entry in entries]
        transcribe(recognizer, paths[:1], 1)
        turns: dict[int, list[tuple[float, float]]] = {size: [] for size in args.size}
        texts = {}
        for turn in range(args.repeat):
            for size in args.size:
                began_s, began_work_s = perf_counter(), process_time()
                texts[size], audio_s = transcribe(recognizer, paths, size)
                turns[size].append((perf_counter() - began_s, process_time() - began_work_s))
            note(f"{name}: round {turn + 1} of {args.repeat}")
        for size in args.size:
            result.add(
                set=name,
                recordings=len(paths),
                audio_s=round(audio_s, 1),
                batch_size=size,
                **row(turns[size], turns[args.size[0]]),
                texts_differ=sum(
                    one != other for one, other in zip(texts[size], texts[args.size[0]], strict=True)
                ),
            )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--size", nargs="+", type=positive, default=[1, 4, 8], metavar="N", help="(1 4 8)")
    options.add_argument(
        "--clips", type=positive, default=24, metavar="N", help="short recordings of each set (24)"
    )
    options.add_argument("--long", type=positive, default=3, metavar="N", help="long recordings (3)")
    options.add_argument("--repeat", type=positive, default=3, metavar="N", help="rounds (3)")
    return options.parse_args()


def transcribe(recognizer: Recognizer, paths: Sequence[Path], size: int) -> tuple[list[str], float]:
    """Return the texts of recordings, and how many seconds they last."""
    transcriptions = recognizer.transcribe_many(paths, batch_size=size, word_timestamps=True)
    transcripts = [transcription.result() for transcription in transcriptions]
    return [transcript.text for transcript in transcripts], sum(each.duration_s for each in transcripts)


def row(own: Sequence[tuple[float, float]], first: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the medians of a size, and of its ratios to the first one."""
    ratios, work_ratios = ([one[i] / other[i] for one, other in zip(own, first, strict=True)] for i in (0, 1))
    return {
        "seconds": round(median(seconds for seconds, _ in own), 2),
        "ratio": round(median(ratios), 3),
        "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
        "processor_ratio": round(median(work_ratios), 3),
    }
