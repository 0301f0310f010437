"""Live sessions: latency, errors and cost beside the offline pass, as `harken bench --streaming` measures them.

The recordings of a speaker are joined to one stream, which a session of each delay and kind of finals transcribes in
turns.

    python benchmarks/live.py --delay minimal low medium high --one-core --save live
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from program import DEFAULT_SET, Args, Parser, Row, add, main, note, percent
from recordings import GAP_S, SAMPLE_RATE, SCORING, read_set

BLOCK_SAMPLES = SAMPLE_RATE // 50


def options(parser: Parser) -> None:
    add(parser, "--delay", ("low",), "names or milliseconds")
    add(parser, "--finals", ("streamed",), "exact, streamed or both", choices=("exact", "streamed"))
    add(parser, "--repeats", 1, "turns of each session, of which that of median time counts")
    add(parser, "--one-core", False, "count the CPU time of all cores as delay")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each set and session."""
    import harken
    from harken.evaluation.live_runs import LiveRound, join_by_speaker, run_live_rounds, summarise_live

    recognizer, options = harken.load(args.model, threads=args.threads), harken.TranscribeOptions()
    clock = time.process_time if args.one_core else time.perf_counter
    sessions: dict[str, Any] = {
        f"{delay}, {finals}": partial(recognizer.stream, delay=delay, finals=finals, clock=clock)
        for delay, finals in product(args.delay, args.finals)
    }
    for name in args.set:
        recordings = read_set(args.audio, name, args.limit, model=args.model)
        rounds = []
        for outcome in run_live_rounds(
            recognizer, sessions, join_by_speaker(recordings, GAP_S), options,
            block_samples=BLOCK_SAMPLES, repeats=args.repeats, one_core=args.one_core,
        ):  # fmt: skip
            if isinstance(outcome, LiveRound):
                rounds.append(outcome)
                note(f"{name}: {outcome.stream.entry.name}, {outcome.offline_cost.audio_s:.0f} s")
            else:
                note(outcome.reason)
        for session, open_session in sessions.items():
            found = summarise_live(rounds, session, options)
            yield {"set": name, "session": session} | figures(found, open_session(options).plan.bound)


def figures(found: Any, bound: Any) -> Row:
    """Return the figures of one session; the planned waits are those of its latency plan."""
    interim, commit = (found.latencies.percentiles(kind)["aware"] for kind in ("interim", "commit"))
    return {
        "streams": len(found.runs),
        "minutes": round(found.cost.audio_s / 60, 2),
        "wait_shown_s": round(bound.interim_s, 3),
        "shown_median_s": interim and round(interim.p50, 3),
        "shown_95_s": interim and round(interim.p95, 3),
        "wait_committed_s": round(bound.total_s, 3),
        "committed_median_s": commit and round(commit.p50, 3),
        "committed_95_s": commit and round(commit.p95, 3),
        "error_percent": percent(found.final_wer and found.final_wer.rate),
        "offline_error_percent": percent(found.offline_wer and found.offline_wer.rate),
        "words": len(" ".join(run.final_text for run in found.runs).split()),
        "cpu_factor": round(found.cost.cpu_real_time_factor, 4),
        "lag_s": round(max(run.lag_s for run in found.runs), 3),
        "retractions": found.counts.retractions,
        "flicker": found.flicker and round(found.flicker, 4),
    }


if __name__ == "__main__":
    main(rows, options, model="tiny.en", sets=(DEFAULT_SET,), needs=SCORING, settings=("one_core",))
