"""Speculative decoding beside plain decoding: time, errors and decoder passes, with and without an assistant.

One loaded model decodes plainly and with drafts in turns, recording by recording, or with a batch set by set; of
several turns the median counts. 73 recordings of a set, English and Dutch, are the shape of the published experiments
(huggingface.co/blog/whisper-speculative-decoding). `harken bench --speculative` does the same for one model.

With ``--forced`` drafts are made at every step, whether they pay or not: it shows whether drafts change a token, and
leaves the times out. A recording in which a token differs is named; near ties are tokens chosen by less than the margin
that rounding can turn round.

    python benchmarks/speculative.py --pair small tiny --pair base.en tiny.en
    python benchmarks/speculative.py --forced --pair base tiny --precision fp32 --set ljspeech
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, note, parser, positive, require, run
from recordings import percent, read_set

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.evaluation.speed import SpeedSummary
    from harken.manifests import Entry

SETS = ("librispeech-train-clean", "dutch")
RECORDINGS = 73
PLAIN, DRAFTED = "plain", "drafted"
MIN_ACCEPTANCE = 0.05
"""With ``--forced`` a draft ends where its tokens are less likely than this to be accepted: longer than pays."""
TIMES = ("plain_decode_s", "decode_s", "decode_ratio", "plain_wall_s", "wall_s", "wall_ratio")


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    settings = {"threads": args.threads, "precision": args.precision, "drafts forced": args.forced}
    result = results.begin(args.save or "speculation", settings)
    for model, assistant in args.pair or [("small", "tiny")]:
        engines = load(model, assistant, args)
        for name, batch in product(args.set, args.batch):
            entries = read_set(args.audio, name, args.limit, model=model)
            row = measure(engines, entries, batch, 1 if args.forced else args.repeats)
            if args.forced:
                row |= dict.fromkeys(TIMES)
            pair = f"{Path(model).name}, {Path(assistant).name}"
            result.add(pair=pair, set=name, recordings=len(entries), batch=batch, **row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, sets=SETS)
    options.set_defaults(limit=RECORDINGS)
    options.add_argument(
        "--pair", nargs=2, action="append", metavar=("MODEL", "ASSISTANT"),
        help="names or paths, or ngram as an assistant; may be repeated (small tiny)",
    )  # fmt: skip
    options.add_argument("--precision", default="int8", metavar="P", help="of the model (int8)")
    options.add_argument(
        "--batch", type=positive, nargs="+", default=[1], metavar="N", help="windows together (1)"
    )
    options.add_argument("--repeats", type=positive, default=3, metavar="N", help="turns of each (3)")
    options.add_argument("--forced", action="store_true", help="draft at every step; no times")
    return options.parse_args()


def load(model: str, assistant: str, args: argparse.Namespace) -> dict[str, Recognizer]:
    """Load one model, without its assistant and with it."""
    import harken

    drafted = harken.load(model, assistant=assistant, precision=args.precision, threads=args.threads)
    plain = harken.Recognizer(drafted.backend, drafted.tokenizer, drafted.model)
    if args.forced:
        force_drafts(drafted)
    return {PLAIN: plain, DRAFTED: drafted}


def force_drafts(recognizer: Recognizer) -> None:
    """Let a recognizer draft at every step but the first ones, which measure plain decoding."""
    from harken.decoding.draft_controller import DraftController

    class ForcedDrafts(DraftController):
        def may_draft(self) -> bool:
            return self.plain_cost.measurements > 0

        def may_set_up(self, *, setup_s: float, n_rows: int, n_tokens: float) -> bool:
            return True

        def draft_threshold(self, n_rows: int) -> float:
            return MIN_ACCEPTANCE

    assert recognizer.speculator, "there is an assistant"
    for statistics in (recognizer.speculator.greedy, recognizer.speculator.sampling):
        statistics.controller = ForcedDrafts(time.perf_counter)


def measure(
    engines: Mapping[str, Recognizer], entries: Sequence[Entry], batch: int, repeats: int
) -> dict[str, Any]:
    """Decode a set plainly and with drafts."""
    from harken import TranscribeOptions
    from harken.evaluation.scoring import EvalRecording
    from harken.evaluation.speed import divergences, run_rounds, summarise_speed

    options = TranscribeOptions(batch_size=batch)
    recordings = [EvalRecording(entry=entry, has_reference=True) for entry in entries]
    rounds = [*run_rounds(engines, recordings, options, repeats)]
    plain, drafted = (summarise_speed(rounds, engine, options, scored=True) for engine in engines)
    stats, differing = drafted.stats, divergences(rounds, *engines)
    for divergence in differing:
        note(
            f"{divergence.entry.name}: {divergence.start_s:.2f} s, token {divergence.index}: {divergence.tokens}"
        )
    return {
        "minutes": round(plain.audio_s / 60, 2),
        "plain_decode_s": round(plain.stats.decode_s, 2),
        "decode_s": round(stats.decode_s, 2),
        "decode_ratio": round(plain.stats.decode_s / stats.decode_s, 3),
        "plain_wall_s": round(plain.wall_s, 2),
        "wall_s": round(drafted.wall_s, 2),
        "wall_ratio": round(plain.wall_s / drafted.wall_s, 3),
        "tokens": stats.sampled_tokens,
        "plain_forwards": plain.stats.forwards,
        "forwards": stats.forwards,
        "tokens_per_forward": stats.tokens_per_forward and round(stats.tokens_per_forward, 3),
        "drafted": stats.drafted,
        "acceptance_percent": percent(stats.acceptance_rate),
        "plain_error_percent": errors(plain),
        "error_percent": errors(drafted),
        "differing": len(differing),
        "near_ties": len(stats.near_ties),
    }


def errors(summary: SpeedSummary) -> float | None:
    """Return the errors of an engine in percent."""
    overall = summary.evaluation and summary.evaluation.overall
    return percent(overall and overall.rate)


if __name__ == "__main__":
    run(main)
