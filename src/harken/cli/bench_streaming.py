"""``harken bench --streaming``: measures the latency, the errors and the cost of live sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from heapq import nlargest
from itertools import product
from time import perf_counter, process_time
from typing import Any

from harken.api import Recognizer
from harken.cli.measuring import Measurement, Report, Row, format_heading, table_rows
from harken.cli.terminal import format_table, pluralize
from harken.evaluation.live_runs import (
    ComputeCost,
    JoinedStream,
    LiveRound,
    LiveRun,
    LiveSummary,
    join_by_speaker,
    run_live_rounds,
    summarise_live,
)
from harken.evaluation.scoring import Failure, failed_recordings
from harken.formats import as_json
from harken.manifests import Entry
from harken.streaming import StreamingConfig, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

LIVE_ROWS: tuple[Row[LiveSummary], ...] = (
    Row(
        "word shown, s: median / 95 % / longest",
        lambda timing: timing.latencies.percentiles("interim")["aware"],
    ),
    Row("  as if computing took no time", lambda timing: timing.latencies.percentiles("interim")["unaware"]),
    Row("word committed, s", lambda timing: timing.latencies.percentiles("commit")["aware"]),
    Row("  as if computing took no time", lambda timing: timing.latencies.percentiles("commit")["unaware"]),
    Row("largest lag behind the audio, s", lambda timing: max(run.lag_s for run in timing.runs)),
    Row("WER offline, %", lambda timing: timing.offline_wer),
    Row("WER of the segments, %", lambda timing: timing.final_wer),
    Row(
        "  relative to offline, %",
        lambda timing: None if timing.relative_wer_increase is None else 100 * timing.relative_wer_increase,
        1,
    ),
    Row("WER of what was shown before them, %", lambda timing: timing.interim_wer),
    Row("computing, s per second of audio", lambda timing: timing.cost.real_time_factor, 3),
    Row("  of all processors", lambda timing: timing.cost.cpu_real_time_factor, 3),
    Row("  offline, of all processors", lambda timing: timing.offline_cost.cpu_real_time_factor, 3),
    Row("committed text taken back", lambda timing: timing.counts.retractions, 0),
    Row("words taken off the screen for one that stays", lambda timing: timing.flicker),
    Row("committed words revised by the segments", lambda timing: timing.counts.revised, 0),
    Row("words timed", lambda timing: len(timing.latencies.words), 0),
    Row("  not in the reference (insertions)", lambda timing: timing.latencies.unmatched_hypothesis_words, 0),
    Row(
        "  missing from the segments (deletions)", lambda timing: timing.latencies.unmatched_reference_words, 0
    ),
    Row("changes of load", lambda timing: timing.counts.load_changes, 0),
)

SLOWEST_WORDS = 10
"""Number of words with the longest latency in the JSON object."""


def live_stream_options(params: Mapping[str, Any]) -> dict[str, StreamOptions]:
    """Return the options of the sessions by name, for every pair of a delay and a kind of finals."""
    shared = {field.name: params[field.name] for field in fields(StreamOptions)}
    pairs = product(shared.pop("delay").split(","), shared.pop("finals").split(","))
    return {
        f"{delay} {finals}": StreamOptions(delay=delay.strip(), finals=finals.strip(), **shared)
        for delay, finals in pairs
    }


def live_measurement(
    recognizer: Recognizer,
    eval_recordings: Sequence[Entry],
    options: TranscribeOptions,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Measurement[LiveRound]:
    """Return the measurement of live sessions."""
    stream_options = live_stream_options(params)
    clock = process_time if params["one_core"] else perf_counter
    sessions = {
        name: partial(recognizer.stream, stream_options=session_options, clock=clock)
        for name, session_options in stream_options.items()
    }
    configs = {name: open_session(options).config for name, open_session in sessions.items()}
    single_streams = (JoinedStream(recordings=(recording,)) for recording in eval_recordings)
    streams = (
        tuple(single_streams) if params["join"] is None else join_by_speaker(eval_recordings, params["join"])
    )

    def make_report(rounds: Sequence[LiveRound], failures: Sequence[Failure], complete: bool) -> Report:
        timings = {name: summarise_live(rounds, name, options) for name in stream_options} if rounds else {}
        count = sum(len(one.stream.recordings) for one in rounds)
        streams = f"{pluralize(len(rounds), 'stream')} of {pluralize(count, 'recording')}"
        audio_s = sum(one.offline_cost.audio_s for one in rounds)
        windows = ("window, hop, history, s", *map(_describe_config, configs.values()))
        rows = [("", *timings), windows, *table_rows(LIVE_ROWS, timings)]
        as_json = {  # docs/eval.md lists the keys
            "by": dict(provenance),
            "engine": recognizer.backend.capabilities.detail,
            "complete": complete,
            "repeats": params["repeat"],
            "configs": {
                name: {
                    "options": asdict(stream_options[name]),
                    "config": asdict(configs[name]),
                    **_timing_json(timing),
                    "slowest": _slowest_words(rounds, timing),
                }
                for name, timing in timings.items()
            },
            "streams": [
                _stream_json(one, {name: timing.runs[index] for name, timing in timings.items()})
                for index, one in enumerate(rounds)
            ],
            "failed": failed_recordings(failures),
        }
        text = (
            format_heading(recognizer, streams, audio_s, params["repeat"]) + format_table(rows) if count else ""
        )
        return Report(recordings=count, text=text, as_json=as_json)

    return Measurement(
        outcomes=run_live_rounds(
            recognizer,
            sessions,
            streams,
            options,
            block_samples=round(params["block_s"] * SAMPLE_RATE),
            repeats=params["repeat"],
            one_core=params["one_core"],
        ),
        report=make_report,
        recordings=len(eval_recordings),
        label=pluralize(len(streams), "stream"),
        durations_s=[joined_stream.entry.seconds for joined_stream in streams],
        measured_s=lambda one: one.offline_cost.audio_s,
    )


def _slowest_words(rounds: Sequence[LiveRound], timing: LiveSummary) -> list[dict[str, Any]]:
    """Return the words with the longest commit latency, with their streams."""
    words = (
        {"audio": one.stream.entry.name, **asdict(word)}
        for one, run in zip(rounds, timing.runs, strict=True)
        for word in run.latencies.words
    )
    return nlargest(SLOWEST_WORDS, words, key=lambda word: word["commit_latency"]["computation_aware_s"])


def _stream_json(one: LiveRound, runs: Mapping[str, LiveRun]) -> dict[str, Any]:
    texts = {name: {"interim": run.interim_text, "final": run.final_text.strip()} for name, run in runs.items()}
    return {
        "audio": one.stream.entry.name,
        "seconds": one.offline_cost.audio_s,
        "offline": one.offline_text,
        **texts,
    }


def _describe_config(config: StreamingConfig) -> str:
    frames = (config.window_frames, config.hop_frames, config.history_frames)
    return ", ".join(f"{number / 100:g}" for number in frames)


def _timing_json(timing: LiveSummary) -> dict[str, Any]:
    latencies = timing.latencies
    return {
        "interim": as_json(latencies.percentiles("interim")),
        "commit": as_json(latencies.percentiles("commit")),
        "words": {
            "timed": len(latencies.words),
            "unmatched_hypothesis": latencies.unmatched_hypothesis_words,
            "unmatched_reference": latencies.unmatched_reference_words,
        },
        "wer": {
            "offline": timing.offline_wer and timing.offline_wer.rate,
            "final": timing.final_wer and timing.final_wer.rate,
            "interim": timing.interim_wer and timing.interim_wer.rate,
            "relative_increase": timing.relative_wer_increase,
        },
        "cost": _cost_json(timing.cost),
        "offline_cost": _cost_json(timing.offline_cost),
        **asdict(timing.counts),
        "lag_s": max(run.lag_s for run in timing.runs),
    }


def _cost_json(cost: ComputeCost) -> dict[str, float]:
    return {
        **asdict(cost),
        "real_time_factor": cost.real_time_factor,
        "cpu_real_time_factor": cost.cpu_real_time_factor,
    }
