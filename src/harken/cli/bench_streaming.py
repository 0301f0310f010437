"""``harken bench --streaming``: measures the latency, the errors and the cost of live sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from time import perf_counter, process_time
from typing import Any

from harken.api import Recognizer
from harken.cli.measuring import Measurement, Report, Row, table_rows
from harken.cli.terminal import Screen, format_table, pluralize
from harken.evaluation.error_rate import ErrorRate
from harken.evaluation.latency import Percentiles
from harken.evaluation.live_runs import (
    ComputeCost,
    JoinedStream,
    LiveRound,
    LiveSummary,
    join_by_speaker,
    run_live_rounds,
    summarise_live,
)
from harken.evaluation.scoring import EvalRecording, Failure, failed_recordings
from harken.streaming import LiveSession, StreamingConfig, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

LIVE_ROWS: tuple[Row[LiveSummary], ...] = (
    Row("word shown, s: median / 95 % / longest", lambda timing: timing.interim_latency_aware),
    Row("  as if computing took no time", lambda timing: timing.interim_latency_unaware),
    Row("word committed, s", lambda timing: timing.commit_latency_aware),
    Row("  as if computing took no time", lambda timing: timing.commit_latency_unaware),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBenchResult:
    """The result of a benchmark of live sessions.

    Parameters
    ----------
    provenance : mapping
        Options of the model and of decoding.
    recognizer : Recognizer
    repeats : int
    stream_options : mapping of str to StreamOptions
        Options of the sessions, by their names.
    configs : mapping of str to StreamingConfig
        Configuration that each session starts with.
    rounds : tuple of LiveRound
    timings : mapping of str to LiveSummary
    failures : tuple of Failure
    complete : bool
        True if all streams were transcribed.
    """

    provenance: Mapping[str, Any]
    recognizer: Recognizer
    repeats: int
    stream_options: Mapping[str, StreamOptions]
    configs: Mapping[str, StreamingConfig]
    rounds: tuple[LiveRound, ...]
    timings: Mapping[str, LiveSummary]
    failures: tuple[Failure, ...]
    complete: bool

    @property
    def recording_count(self) -> int:
        """Number of recordings that were transcribed."""
        return sum(len(bench_round.stream.recordings) for bench_round in self.rounds)

    def table(self) -> str:
        """Return the report as text, with a column for each session."""
        passes = "" if self.repeats == 1 else f", median of {self.repeats} passes"
        audio_s = sum(bench_round.offline_cost.audio_s for bench_round in self.rounds)
        streams = f"{pluralize(len(self.rounds), 'stream')} of {pluralize(self.recording_count, 'recording')}"
        return (
            f"{self.recognizer.model}, {self.recognizer.backend.capabilities.detail}\n"
            f"{streams}: {audio_s:.1f} s of audio{passes}\n"
            f"{format_table(self._rows())}"
        )

    def report(self) -> dict[str, Any]:
        """Return all results for `json.dumps`; docs/eval.md lists the keys."""
        return {
            "by": dict(self.provenance),
            "engine": self.recognizer.backend.capabilities.detail,
            "complete": self.complete,
            "repeats": self.repeats,
            "configs": {
                name: {
                    "options": asdict(self.stream_options[name]),
                    "config": asdict(self.configs[name]),
                    **_timing_json(timing),
                    "slowest": self._slowest_words(name),
                }
                for name, timing in self.timings.items()
            },
            "streams": [self._stream_json(bench_round, index) for index, bench_round in enumerate(self.rounds)],
            "failed": failed_recordings(self.failures),
        }

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield ("", *self.timings)
        yield ("window, hop, history, s", *map(_describe_config, self.configs.values()))
        yield from table_rows(LIVE_ROWS, self.timings)

    def _slowest_words(self, name: str) -> list[dict[str, Any]]:
        """Return the words with the longest commit latency, with their streams."""
        words = (
            {"audio": bench_round.stream.entry.name, **asdict(word)}
            for bench_round, run in zip(self.rounds, self.timings[name].runs, strict=True)
            for word in run.latencies.words
        )
        return sorted(words, key=lambda timed_word: -timed_word["commit_latency"]["computation_aware_s"])[
            :SLOWEST_WORDS
        ]

    def _stream_json(self, bench_round: LiveRound, index: int) -> dict[str, Any]:
        runs = {name: timing.runs[index] for name, timing in self.timings.items()}
        return {
            "audio": bench_round.stream.entry.name,
            "seconds": bench_round.offline_cost.audio_s,
            "offline": bench_round.offline_text,
            **{
                name: {"interim": run.interim_text, "final": run.final_text.strip()}
                for name, run in runs.items()
            },
        }


def live_stream_options(params: Mapping[str, Any]) -> dict[str, StreamOptions]:
    """Return the options of the sessions by name, for every pair of a delay and a kind of finals.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """
    shared = {field.name: params[field.name] for field in fields(StreamOptions)}
    pairs = product(shared.pop("delay").split(","), shared.pop("finals").split(","))
    return {
        f"{delay} {finals}": StreamOptions(delay=delay.strip(), finals=finals.strip(), **shared)
        for delay, finals in pairs
    }


def live_measurement(
    screen: Screen,
    recognizer: Recognizer,
    eval_recordings: Sequence[EvalRecording],
    options: TranscribeOptions,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Measurement[LiveRound]:
    """Return the measurement of live sessions."""
    stream_options = live_stream_options(params)
    clock = process_time if params["one_core"] else perf_counter
    sessions = {
        name: partial(_open_session, recognizer, session_options, clock)
        for name, session_options in stream_options.items()
    }
    configs = {
        name: recognizer.stream(options, stream_options=session_options, clock=clock).config
        for name, session_options in stream_options.items()
    }
    single_streams = (JoinedStream(recordings=(recording,)) for recording in eval_recordings)
    streams = (
        tuple(single_streams) if params["join"] is None else join_by_speaker(eval_recordings, params["join"])
    )

    def make_report(rounds: Sequence[LiveRound], failures: Sequence[Failure], complete: bool) -> Report:
        result = LiveBenchResult(
            provenance=provenance,
            recognizer=recognizer,
            repeats=params["repeat"],
            stream_options=stream_options,
            configs=configs,
            rounds=tuple(rounds),
            timings={name: summarise_live(rounds, name, options) for name in stream_options} if rounds else {},
            failures=tuple(failures),
            complete=complete,
        )
        count = result.recording_count
        return Report(recordings=count, text=result.table() if count else "", as_json=result.report())

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


def _open_session(
    recognizer: Recognizer,
    stream_options: StreamOptions,
    clock: Callable[[], float],
    options: TranscribeOptions,
) -> LiveSession:
    return recognizer.stream(options, stream_options=stream_options, clock=clock)


def _describe_config(config: StreamingConfig) -> str:
    frames = (config.window_frames, config.hop_frames, config.history_frames)
    return ", ".join(f"{number / 100:g}" for number in frames)


def _timing_json(timing: LiveSummary) -> dict[str, Any]:
    latencies = timing.latencies
    return {
        "interim": {
            "aware": _percentiles_json(timing.interim_latency_aware),
            "unaware": _percentiles_json(timing.interim_latency_unaware),
        },
        "commit": {
            "aware": _percentiles_json(timing.commit_latency_aware),
            "unaware": _percentiles_json(timing.commit_latency_unaware),
        },
        "words": {
            "timed": len(latencies.words),
            "unmatched_hypothesis": latencies.unmatched_hypothesis_words,
            "unmatched_reference": latencies.unmatched_reference_words,
        },
        "wer": {
            "offline": _error_rate(timing.offline_wer),
            "final": _error_rate(timing.final_wer),
            "interim": _error_rate(timing.interim_wer),
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


def _percentiles_json(percentiles: Percentiles | None) -> dict[str, float] | None:
    return None if percentiles is None else asdict(percentiles)


def _error_rate(error: ErrorRate | None) -> float | None:
    return None if error is None else error.rate
