"""Speculative decoding beside plain decoding: time, errors and passes of the decoder, with and without an assistant.

The shape is that of the two published experiments (huggingface.co/blog/whisper-speculative-decoding): 73 English and
73 Dutch clips, time and word error rate. One loaded model decodes plainly and with drafts in turns, clip by clip, or
with a batch set by set; of several passes the median counts. `harken bench --speculative` does the same for one model.

    python benchmarks/speculative.py --pair small tiny --pair small small-assistant/ --pair base.en tiny.en
    python benchmarks/speculative.py --pair small tiny --precision int8 fp32 --batch 1 4 8
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from common import limit_threads, machine, note, parser, positive, require, run, table
from quality import percent, read_sets, suitable

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.evaluation import Entry

SETS = ("librispeech-train-clean", "dutch")
CLIPS = 73
PLAIN, DRAFTED = "plain", "drafted"
COLUMNS = (
    "set", "clips", "minutes", "batch", "decoding, s", "with drafts", "times faster", "end to end, s",
    "with drafts", "times faster", "encoding, s", "drafting, s", "passes", "with drafts", "drafted", "accepted, %",
    "tokens a pass", "at rest", "WER, %", "with drafts", "other tokens", "near ties",
)  # fmt: skip


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    print(machine())
    sets = read_sets(args)
    for (model, assistant), precision in product(args.pair or [("small", "tiny")], args.precision):
        engines = load(model, assistant, precision, args.threads)
        title = f"{Path(model).name} with {Path(assistant).name}, {precision}, {args.threads} threads"
        print(f"\n### {title}\n\n{table(COLUMNS, [])}", flush=True)
        for (name, entries), batch in product(suitable(sets, model, args.limit).items(), args.batch):
            began_s = time.perf_counter()
            print(line(measure(engines, name, entries, batch, args.repeats)), flush=True)
            note(f"{title}: {name}, batch {batch}, in {time.perf_counter() - began_s:.0f} s")


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument(
        "--pair", nargs=2, action="append", metavar=("MODEL", "ASSISTANT"),
        help="names or paths, or ngram as an assistant; may be repeated (small tiny)",
    )  # fmt: skip
    its.add_argument("--precision", nargs="+", default=["int8"], metavar="P", help="of the model (int8)")
    its.add_argument("--batch", type=positive, nargs="+", default=[1], metavar="N", help="windows together (1)")
    its.add_argument(
        "--set", nargs="+", default=[*SETS], metavar="NAME", help=f"sets ({' '.join(SETS)}); what a model cannot "
        "speak is left out",
    )  # fmt: skip
    its.add_argument(
        "--limit", type=positive, default=CLIPS, metavar="N", help=f"clips of a set, spread over it ({CLIPS})"
    )
    its.add_argument("--repeats", type=positive, default=3, metavar="N", help="passes of each (3)")
    return its.parse_args()


def load(model: str, assistant: str, precision: str, threads: int) -> dict[str, Recognizer]:
    """One model, without its assistant and with it."""
    import harken

    drafted = harken.load(model, assistant=assistant, precision=precision, threads=threads)
    plain = harken.Recognizer(drafted.backend, drafted.tokenizer, drafted.model)
    return {PLAIN: plain, DRAFTED: drafted}


def measure(
    engines: dict[str, Recognizer], name: str, entries: Sequence[Entry], batch: int, repeats: int
) -> list[str]:
    """One line of a table: a set, plainly and with drafts."""
    from harken import TranscribeOptions
    from harken.evaluation import EvalRecording, divergences, run_rounds, summarise_speed

    options = TranscribeOptions(batch_size=batch)
    sounds = [EvalRecording(entry=entry, has_reference=True) for entry in entries]
    turns = [*run_rounds(engines, sounds, options, repeats)]
    plain, drafted = (summarise_speed(turns, engine, options, scored=True) for engine in engines)
    stats, apart = drafted.stats, divergences(turns, *engines)
    return [
        name,
        f"{len(plain.results)}",
        f"{plain.audio_s / 60:.1f}",
        f"{batch}",
        *times(plain.stats.decode_s, stats.decode_s),
        *times(plain.wall_s, drafted.wall_s),
        f"{stats.encode_s:.1f}",
        f"{stats.draft_s:.1f}",
        f"{plain.stats.forwards}",
        f"{stats.forwards}",
        f"{stats.drafted}",
        f"{100 * (stats.acceptance_rate or 0):.1f}",
        f"{stats.tokens_per_forward or 0:.2f}",
        f"{stats.skipped_steps}",
        *(percent(its.evaluation.wer if its.evaluation else None) for its in (plain, drafted)),
        f"{len(apart)}",
        f"{len(stats.near_ties)}",
    ]


def times(plain_s: float, drafted_s: float) -> list[str]:
    """Two times, and how many times the second is faster."""
    return [f"{plain_s:.1f}", f"{drafted_s:.1f}", f"{plain_s / drafted_s:.2f}"]


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return table(cells, []).splitlines()[0]


if __name__ == "__main__":
    run(main)
