"""Errors against latency: streamed text for windows, hops, commit delays and numbers of agreeing hypotheses.

Sessions run without a clock, so all figures but the cost are the same on every machine and in every run.

    python benchmarks/streaming sweep --window 100 200 300 --commit-delay 40 100 --agreement 1 2
    python benchmarks/streaming sweep --model base.en --window 300 --limit 25
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import results
from arguments import DEFAULT_SET, limit_threads, note, parser, positive, require
from recordings import percent, read_streams

if TYPE_CHECKING:
    from harken import Recognizer, StreamOptions, TranscribeOptions
    from harken.streaming import LiveSession

BLOCK_SAMPLES = 1600


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken
    from harken.evaluation.live_runs import LiveRound, run_live_rounds, summarise_live
    from harken.streaming import StreamOptions

    settings = {"model": args.model, "threads": args.threads, "set": args.set, "history frames": args.history}
    result = results.begin(args.save or "live-sweep", settings)
    recognizer = harken.load(args.model, threads=args.threads)
    options = harken.TranscribeOptions()
    grid = [
        (window, hop, delay, agreement)
        for window, hop, delay, agreement in product(args.window, args.hop, args.commit_delay, args.agreement)
        if hop <= window
    ]
    sessions = {}
    for window, hop, delay, agreement in grid:
        stream_options = StreamOptions(
            finals="streamed",
            adaptive=args.adaptive,
            window_frames=window,
            hop_frames=hop,
            history_frames=args.history,
            commit_delay_frames=delay,
            local_agreement=agreement,
        )
        sessions[str((window, hop, delay, agreement))] = partial(live, recognizer, stream_options)
    streams = [stream for name in args.set for stream in read_streams(args.audio, name, args.limit)]
    rounds = []
    for outcome in run_live_rounds(
        recognizer, sessions, streams, options, block_samples=BLOCK_SAMPLES, repeats=1
    ):
        if isinstance(outcome, LiveRound):
            rounds.append(outcome)
            note(outcome.stream.entry.name)
    for point, (name, open_session) in zip(grid, sessions.items(), strict=True):
        summary = summarise_live(rounds, name, options)
        commit, (window, hop, delay, agreement) = summary.commit_latency_unaware, point
        result.add(
            window_s=window / 100,
            hop_s=hop / 100,
            commit_delay_s=delay / 100,
            agreement=agreement,
            wait_committed_s=round(open_session(options).plan.bound.wait_s, 3),
            committed_median_s=commit and round(commit.p50, 3),
            committed_95_s=commit and round(commit.p95, 3),
            error_percent=percent(summary.final_wer and summary.final_wer.rate),
            offline_error_percent=percent(summary.offline_wer and summary.offline_wer.rate),
            flicker=None if summary.flicker is None else round(summary.flicker, 4),
            cpu_factor=round(summary.cost.cpu_real_time_factor, 4),
        )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en", sets=(DEFAULT_SET,))
    numbers = {"nargs": "+", "type": positive, "metavar": "N"}
    options.add_argument("--window", default=[100, 200, 300, 400], help="frames (100 200 300 400)", **numbers)
    options.add_argument("--hop", default=[50], help="frames (50)", **numbers)
    options.add_argument("--commit-delay", default=[40, 100], help="frames (40 100)", **numbers)
    options.add_argument("--agreement", default=[1, 2], help="hypotheses (1 2)", **numbers)
    options.add_argument("--history", type=positive, default=400, metavar="N", help="frames (400)")
    options.add_argument("--adaptive", action="store_true", help="let windows follow the noise")
    return options.parse_args()


def live(recognizer: Recognizer, stream_options: StreamOptions, options: TranscribeOptions) -> LiveSession:
    """Open a session without a clock."""
    return recognizer.stream(options, stream_options=stream_options, clock=None)
