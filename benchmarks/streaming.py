"""Live sessions beside what is done today: latency of words, errors, and cost, in one run.

Every stream is heard by a session of each delay and kind of finals, by those of the first delay with a single thread,
and by what encodes everything up to 30 s anew every second (rereading.py), in turns; of several passes the one of
median time counts. How many times less a session computes is told where it has as many threads as that. Sets with
speakers are joined, one stream a speaker. The last table is of sound in which nobody speaks. `harken bench --streaming`
measures the same of one model, and docs/cli.md says what the rows are.

    python benchmarks/streaming.py --repeats 3
    python benchmarks/streaming.py --delay minimal low medium high --finals exact --set librispeech-test-other
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from common import GAP_S, SAMPLE_RATE, limit_threads, machine, note, parser, positive, require, run, table

if TYPE_CHECKING:
    from harken import Recognizer, TranscribeOptions
    from harken.evaluation.live_runs import LiveSummary
    from harken.evaluation.simulation import JoinedStream, LiveSessionProtocol

JOINED = ("librispeech-test-other",)
SILENT = "non-speech"
SINGLE = ", 1 thread"
REREADING = {
    "everything anew every second": {"fidelity": "fast"},
    "the same, in windows of 30 s": {"fidelity": "exact"},
}
"""What today's streamers do; with short windows as harken's offline pass has them, and as other engines do."""
COLUMNS = (
    "session", "shown, s: median", "95 %", "longest", "committed, s: median", "95 %", "longest",
    "without computing: median", "longest", "WER %", "against offline", "computing, s a second", "processors",
    "times less", "behind, s", "taken back", "flicker", "revised",
)  # fmt: skip
SILENT_COLUMNS = ("session", "minutes", "words", "computing, s a second", "processors")


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken

    print(machine())
    recognizer = harken.load(args.model, threads=args.threads)
    alone = recognizer if args.threads == 1 else harken.load(args.model, threads=1)
    ways = list(product(args.delay, args.finals))
    clock = time.process_time if args.one_core else time.perf_counter
    sessions = {f"{delay}, {finals}": partial(live, recognizer, delay, finals, clock) for delay, finals in ways}
    single = {
        f"{delay}, {finals}{SINGLE}": partial(live, alone, delay, finals, clock)
        for delay, finals in ways[: len(args.finals) if args.threads > 1 else 0]
    }
    again = {name: partial(rereading, recognizer, changes) for name, changes in REREADING.items()}
    for name in args.set:
        print(f"\n{measure(recognizer, {**sessions, **single, **again}, name, args)}", flush=True)
    if not args.no_silent:
        print(f"\n{silence(recognizer, sessions, args)}", flush=True)


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", metavar="M", help="name or path (tiny.en)")
    its.add_argument("--delay", nargs="+", default=["low"], metavar="D", help="names or milliseconds (low)")
    its.add_argument("--finals", nargs="+", default=["exact", "streamed"], metavar="F", help="(exact streamed)")
    its.add_argument(
        "--set",
        nargs="+",
        default=["librispeech-test-other", "long-form"],
        metavar="NAME",
        help="sets of recordings",
    )
    its.add_argument("--limit", type=positive, metavar="N", help="only N recordings of a set, spread over it")
    its.add_argument("--repeats", type=positive, default=1, metavar="N", help="passes of each (1)")
    its.add_argument("--block-ms", type=positive, default=20, metavar="N", help="sound fed at a time (20)")
    its.add_argument(
        "--one-core",
        action="store_true",
        help="let the time of all processors together pass, not that on the wall",
    )
    its.add_argument("--no-silent", action="store_true", help=f"leave {SILENT} out")
    return its.parse_args()


def live(
    recognizer: Recognizer, delay: str, finals: str, clock: Callable[[], float], options: TranscribeOptions
) -> LiveSessionProtocol:
    """Open a session."""
    return recognizer.stream(options, delay=delay, finals=finals, clock=clock)


def rereading(
    recognizer: Recognizer, changes: Mapping[str, Any], options: TranscribeOptions
) -> LiveSessionProtocol:
    """Open what hears everything again."""
    from dataclasses import replace

    from rereading import Rereading

    return Rereading(recognizer, replace(options, **changes))


def reels(name: str, args: argparse.Namespace) -> list[JoinedStream]:
    """Streams of a set."""
    from harken.evaluation import EvalRecording, read_manifests
    from harken.evaluation.simulation import JoinedStream, join_by_speaker

    entries = read_manifests([args.audio / name], args.limit, note)
    sounds = [EvalRecording(entry=entry, has_reference=True) for entry in entries]
    if name in (*JOINED, SILENT):
        return [*join_by_speaker(sounds, GAP_S)]
    return [JoinedStream(recordings=(sound,)) for sound in sounds]


def measure(recognizer: Recognizer, sessions: Mapping[str, Any], name: str, args: argparse.Namespace) -> str:
    """One table: all sessions over a set, and the offline pass below them."""
    from harken import TranscribeOptions
    from harken.evaluation.live_runs import LiveRound, run_live_rounds, summarise_live

    options = TranscribeOptions()
    turns = []
    outcomes = run_live_rounds(
        recognizer, sessions, reels(name, args), options,
        block_samples=args.block_ms * SAMPLE_RATE // 1000, repeats=args.repeats, one_core=args.one_core,
    )  # fmt: skip
    for outcome in outcomes:
        if not isinstance(outcome, LiveRound):
            note(outcome.reason)
            continue
        turns.append(outcome)
        note(f"{name}: {outcome.stream.entry.name}, {outcome.offline_cost.audio_s:.0f} s")
    timings = {way: summarise_live(turns, way, options) for way in sessions}
    slowest = timings[next(iter(REREADING))].cost.cpu_real_time_factor
    rows = [row(way, its, slowest) for way, its in timings.items()]
    its = next(iter(timings.values()))
    offline = f"offline: WER {percent(its.offline_wer)} %, {its.offline_cost.real_time_factor:.3f} s a second"
    words = f"{len(its.latencies.words)} words timed, {its.latencies.unmatched_hypothesis_words} and {its.latencies.unmatched_reference_words} without"
    title = f"### {args.model}, {name}: {len(turns)} streams, {its.cost.audio_s / 60:.1f} minutes; {offline}; {words}"
    return f"{title}\n\n{table(COLUMNS, rows)}"


def row(way: str, its: LiveSummary, slowest: float) -> list[str]:
    """One session."""

    def seconds(spread, *which: str) -> list[str]:
        return [f"{getattr(spread, name):.2f}" if spread else "-" for name in which]

    return [
        way,
        *seconds(its.interim_latency_aware, "p50", "p95", "max"),
        *seconds(its.commit_latency_aware, "p50", "p95", "max"),
        *seconds(its.commit_latency_unaware, "p50", "max"),
        percent(its.final_wer),
        "-" if its.relative_wer_increase is None else f"{100 * its.relative_wer_increase:+.1f} %",
        f"{its.cost.real_time_factor:.3f}",
        f"{its.cost.cpu_real_time_factor:.3f}",
        "-" if way.endswith(SINGLE) else f"{slowest / its.cost.cpu_real_time_factor:.1f}",
        f"{max(take.lag_s for take in its.runs):.2f}",
        f"{its.retractions}",
        "-" if its.flicker is None else f"{its.flicker:.2f}",
        f"{its.revised}",
    ]


def percent(rate) -> str:
    return "-" if rate is None else f"{100 * rate.rate:.2f}"


def silence(recognizer: Recognizer, sessions: Mapping[str, Any], args: argparse.Namespace) -> str:
    """What sessions hear where nobody speaks."""
    import numpy as np

    from harken import TranscribeOptions
    from harken.evaluation.live_runs import ComputeCost, run_live

    rows = []
    for way, open_session in sessions.items():
        cost, words = ComputeCost(), 0
        for reel in reels(SILENT, args):
            samples = np.concatenate(reel.load())
            take = run_live(
                open_session(TranscribeOptions()), samples, args.block_ms * SAMPLE_RATE // 1000, (), None
            )
            cost += take.cost
            words += len(take.final.split()) + len(take.interim.split())
            if words:
                note(f"{way}: {reel.entry.name}: {take.interim!r}, {take.final!r}")
        factors = (f"{cost.real_time_factor:.4f}", f"{cost.cpu_real_time_factor:.4f}")
        rows.append((way, f"{cost.audio_s / 60:.1f}", str(words), *factors))
    return f"### {args.model}, {SILENT}\n\n{table(SILENT_COLUMNS, rows)}"


if __name__ == "__main__":
    run(main)
