"""Live sessions: latency of words, errors and cost, beside the offline pass.

Every stream is transcribed by a session of each delay and kind of finals, in turns; of several turns the one of median
time counts. Sets with speakers are joined, one stream a speaker. In streams without speech all `words` are invented.
With ``--baseline`` sessions stand beside whisper_streaming's method (local_agreement.py), which encodes everything up
to 30 s again every second. `harken bench --streaming` measures the same of one model.

    python benchmarks/streaming latency --delay minimal low medium high --finals streamed
    python benchmarks/streaming latency --baseline --limit 8 --one-core
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import results
from arguments import DEFAULT_SET, limit_threads, note, parser, positive, require
from recordings import SAMPLE_RATE, percent, read_streams

if TYPE_CHECKING:
    from harken import Recognizer, TranscribeOptions
    from harken.evaluation.live_runs import LiveSummary
    from harken.streaming import LiveSession

BASELINES = {
    "everything again every second": {"fidelity": "fast"},
    "the same in windows of 30 s": {"fidelity": "exact"},
}
"""Baselines: with short windows, as in harken's offline pass, and with whole ones, as in other engines."""


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken

    clock = "CPU time" if args.one_core else "wall clock"
    settings = {"model": args.model, "threads": args.threads, "clock": clock, "block ms": args.block_ms}
    result = results.begin(args.save or "live", settings)
    recognizer = harken.load(args.model, threads=args.threads)
    sessions: dict[str, Any] = {
        f"{delay}, {finals}": partial(
            live, recognizer, delay, finals, time.process_time if args.one_core else time.perf_counter
        )
        for delay, finals in product(args.delay, args.finals)
    }
    if args.baseline:
        sessions |= {name: partial(baseline, recognizer, changes) for name, changes in BASELINES.items()}
    for name in args.set:
        for row in measure(recognizer, sessions, name, args):
            result.add(set=name, **row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en", sets=(DEFAULT_SET,))
    options.add_argument("--delay", nargs="+", default=["low"], metavar="D", help="names or milliseconds (low)")
    options.add_argument("--finals", nargs="+", default=["streamed"], metavar="F", help="(streamed)")
    options.add_argument("--baseline", action="store_true", help="also the method of whisper_streaming")
    options.add_argument("--repeats", type=positive, default=1, metavar="N", help="turns of each (1)")
    options.add_argument("--block-ms", type=positive, default=20, metavar="N", help="audio fed at a time (20)")
    options.add_argument("--one-core", action="store_true", help="count the CPU time of all cores as delay")
    return options.parse_args()


def live(
    recognizer: Recognizer, delay: str, finals: str, clock: Callable[[], float], options: TranscribeOptions
) -> LiveSession:
    """Open a session."""
    return recognizer.stream(options, delay=delay, finals=finals, clock=clock)


def baseline(recognizer: Recognizer, changes: Mapping[str, Any], options: TranscribeOptions) -> LiveSession:
    """Open a session of the baseline."""
    from dataclasses import replace

    from local_agreement import LocalAgreement

    return LocalAgreement(recognizer, replace(options, **changes))


def measure(
    recognizer: Recognizer, sessions: Mapping[str, Any], name: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run all sessions over a set; return a row for each."""
    from harken import TranscribeOptions
    from harken.evaluation.live_runs import LiveRound, run_live_rounds, summarise_live

    options, rounds = TranscribeOptions(), []
    outcomes = run_live_rounds(
        recognizer, sessions, read_streams(args.audio, name, args.limit), options,
        block_samples=args.block_ms * SAMPLE_RATE // 1000, repeats=args.repeats, one_core=args.one_core,
    )  # fmt: skip
    for outcome in outcomes:
        if isinstance(outcome, LiveRound):
            rounds.append(outcome)
            note(f"{name}: {outcome.stream.entry.name}, {outcome.offline_cost.audio_s:.0f} s")
        else:
            note(outcome.reason)
    rows = []
    for session, open_session in sessions.items():
        plan = getattr(open_session(options), "plan", None)
        rows.append({"session": session, **row(summarise_live(rounds, session, options), plan)})
    return rows


def row(summary: LiveSummary, plan: Any) -> dict[str, Any]:
    """Return the row of one session."""
    interim, commit = summary.interim_latency_aware, summary.commit_latency_aware
    words = " ".join(run.final_text for run in summary.runs).split()
    return {
        "streams": len(summary.runs),
        "minutes": round(summary.cost.audio_s / 60, 2),
        "wait_shown_s": plan and round(plan.bound.interim_s, 3),
        "shown_median_s": interim and round(interim.p50, 3),
        "shown_95_s": interim and round(interim.p95, 3),
        "wait_committed_s": plan and round(plan.bound.total_s, 3),
        "committed_median_s": commit and round(commit.p50, 3),
        "committed_95_s": commit and round(commit.p95, 3),
        "error_percent": percent(summary.final_wer and summary.final_wer.rate),
        "offline_error_percent": percent(summary.offline_wer and summary.offline_wer.rate),
        "words": len(words),
        "real_time_factor": round(summary.cost.real_time_factor, 4),
        "cpu_factor": round(summary.cost.cpu_real_time_factor, 4),
        "offline_cpu_factor": round(summary.offline_cost.cpu_real_time_factor, 4),
        "lag_s": round(max(run.lag_s for run in summary.runs), 3),
        "retractions": sum(run.retractions for run in summary.runs),
        "revised": sum(run.revised for run in summary.runs),
        "flicker": None if summary.flicker is None else round(summary.flicker, 4),
    }
