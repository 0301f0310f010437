"""Errors against latency: streamed text for windows, holds and numbers of hypotheses that have to agree.

Time does not count here but for the last column, so the figures are the same on every machine and in every run.

    python benchmarks/streaming_curve.py --window 100 200 300 --hold 40 100 --agreement 1 2
    python benchmarks/streaming_curve.py --model base.en --window 300 --limit 25
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from common import limit_threads, machine, note, parser, positive, require, run, table
from streaming import percent, reels

if TYPE_CHECKING:
    from harken import Recognizer, StreamOptions, TranscribeOptions
    from harken.evaluation.simulation import LiveSessionProtocol

COLUMNS = (
    "window", "hop", "hold", "agree", "waits at most, s", "committed, s: median", "95 %", "WER %",
    "against offline", "flicker", "processors",
)  # fmt: skip
BLOCK_SAMPLES = 1600


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken
    from harken.evaluation.live_runs import LiveRound, run_live_rounds, summarise_live
    from harken.streaming import StreamOptions

    print(machine())
    recognizer = harken.load(args.model, threads=args.threads)
    options = harken.TranscribeOptions()
    ways = {
        f"{window} {hop} {hold} {agreement}": StreamOptions(
            finals="streamed",
            adaptive=args.adaptive,
            window_frames=window,
            hop_frames=hop,
            history_frames=args.history,
            commit_delay_frames=hold,
            local_agreement=agreement,
        )
        for window, hop, hold, agreement in product(args.window, args.hop, args.hold, args.agreement)
        if hop <= window
    }
    sessions = {name: partial(live, recognizer, way) for name, way in ways.items()}
    turns = []
    for turn in run_live_rounds(
        recognizer, sessions, reels(args.set, args), options, block_samples=BLOCK_SAMPLES, repeats=1
    ):
        if isinstance(turn, LiveRound):
            turns.append(turn)
            note(turn.stream.entry.name)
    rows = []
    for name, open_session in sessions.items():
        its = summarise_live(turns, name, options)
        waits = open_session(options).plan.bound.wait_s
        late = its.commit_latency_unaware
        rows.append(
            [
                *name.split(),
                f"{waits:.2f}",
                f"{late.p50:.2f}" if late else "-",
                f"{late.p95:.2f}" if late else "-",
                percent(its.final_wer),
                "-" if its.relative_wer_increase is None else f"{100 * its.relative_wer_increase:+.1f} %",
                "-" if its.flicker is None else f"{its.flicker:.2f}",
                f"{its.cost.cpu_real_time_factor:.3f}",
            ]
        )
    offline = percent(its.offline_wer)
    print(f"\n### {args.model}, {args.set}, history {args.history}: offline WER {offline} %\n")
    print(table(COLUMNS, rows))


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", metavar="M", help="name or path (tiny.en)")
    its.add_argument(
        "--window", nargs="+", type=positive, default=[100, 200, 300, 400], metavar="N", help="frames"
    )
    its.add_argument("--hop", nargs="+", type=positive, default=[50], metavar="N", help="frames (50)")
    its.add_argument("--hold", nargs="+", type=positive, default=[40, 100], metavar="N", help="frames (40 100)")
    its.add_argument("--agreement", nargs="+", type=positive, default=[1, 2], metavar="N", help="(1 2)")
    its.add_argument("--history", type=positive, default=400, metavar="N", help="frames (400)")
    its.add_argument("--adaptive", action="store_true", help="let windows follow the noise")
    its.add_argument("--set", default="librispeech-test-other", metavar="NAME", help="set of recordings")
    its.add_argument("--limit", type=positive, metavar="N", help="only N recordings of it, spread over it")
    return its.parse_args()


def live(recognizer: Recognizer, way: StreamOptions, options: TranscribeOptions) -> LiveSessionProtocol:
    """Open a session that knows no time."""
    return recognizer.stream(options, stream_options=way, clock=None)


if __name__ == "__main__":
    run(main)
