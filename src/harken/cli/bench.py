"""``harken bench``: measures the speed of transcription, of drafting, and the latency of live sessions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from harken.api import Recognizer
from harken.audio.container import is_pipe
from harken.cli.bench_streaming import live_measurement, live_stream_options
from harken.cli.inputs import STDIN, expand_patterns, recording_duration_s, refuse_overwriting
from harken.cli.measuring import (
    Measurement,
    Report,
    Row,
    format_heading,
    json_option,
    limit_option,
    measure,
    table_rows,
)
from harken.cli.model_options import chosen_files, load_model_with_status, model_options, model_params
from harken.cli.options import (
    Command,
    FilePath,
    NumberRange,
    dataclass_options,
    decoding_options,
    progress_option,
    single_option,
    without_flag,
)
from harken.cli.terminal import Screen, format_table, format_time, pluralize, write_stderr
from harken.decoding import DecodeStats
from harken.decoding.speculation import NEAR_TIE
from harken.errors import AudioError, BackendUnavailable
from harken.evaluation.error_rate import normalizer
from harken.evaluation.evaluate import provenance
from harken.evaluation.scoring import Failure, failed_recordings
from harken.evaluation.speed import Divergence, Round, SpeedSummary, divergences, run_rounds, summarise_speed
from harken.manifests import Entry, named_files, read_manifests
from harken.option_types import options_from
from harken.streaming import StreamOptions
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions

PLAIN, SPECULATIVE = "plain", "speculative"


TIMING_ROWS: tuple[Row[SpeedSummary], ...] = (
    Row("decoding, s", lambda timing: timing.stats.decode_s),
    Row("of that drafting, s", lambda timing: timing.stats.draft_s, only=SPECULATIVE),
    Row("encoding, s", lambda timing: timing.stats.encode_s),
    Row("end to end, s", lambda timing: timing.wall_s),
    Row("times real time", lambda timing: timing.times_real_time, 1),
    Row("forward passes", lambda timing: timing.stats.forwards, 0),
    Row("tokens per forward pass", lambda timing: timing.stats.tokens_per_forward),
    Row("drafted tokens", lambda timing: timing.stats.drafted, 0, SPECULATIVE),
    Row("accepted tokens", lambda timing: timing.stats.accepted, 0, SPECULATIVE),
    Row("acceptance, %", lambda timing: _percent(timing.stats.acceptance_rate), 1, SPECULATIVE),
    Row("forward passes of the draft", lambda timing: timing.stats.draft_forwards, 0, SPECULATIVE),
    Row("skipped steps", lambda timing: timing.stats.skipped_steps, 0, SPECULATIVE),
    Row("WER, %", lambda timing: timing.evaluation.wer if timing.evaluation else None),
    Row("CER, %", lambda timing: timing.evaluation.cer if timing.evaluation else None),
)
RATIOS = {"decoding, s": "decode", "end to end, s": "wall", "forward passes": "forwards"}
"""Names of the ratios of plain to speculative, by the labels of their rows."""


def _rows(timings: Mapping[str, SpeedSummary], ratios: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    if len(timings) == 1:
        yield from table_rows(TIMING_ROWS, timings)
        return
    yield ("", *timings, "ratio")
    for label, *cells in table_rows(TIMING_ROWS, timings):
        yield (label, *cells, f"{ratios[label]:.2f}" if label in ratios else "")


def _ratios(timings: Mapping[str, SpeedSummary]) -> dict[str, float]:
    """Return the ratios of plain to speculative by the labels of their rows, where both are above 0."""
    if len(timings) < 2:
        return {}
    pairs = {row.label: map(row.figure, timings.values()) for row in TIMING_ROWS if row.label in RATIOS}
    return {label: plain / drafted for label, (plain, drafted) in pairs.items() if plain and drafted}  # type: ignore[operator]


def _divergence_summary(found: Sequence[Divergence], count: int, tokenizer: Tokenizer) -> str:
    """Return lines that compare the tokens of both engines and show the first difference in each recording."""
    recordings = pluralize(count, "recording")
    if not found:
        return f"The tokens are the same in {recordings}.\n"
    differing_texts = sum(not divergence.same_text for divergence in found)
    lines = [
        f"The tokens differ in {len(found)} of {recordings}, the text in {differing_texts}; the first difference of "
        "each:\n"
    ]
    for divergence in found:
        one, other = (
            "the end" if token is None else f'"{tokenizer.describe_token(token)}"'
            for token in divergence.tokens
        )
        lines.append(
            f"  {divergence.entry.name}: window at {format_time(divergence.start_s)}, token {divergence.index}: "
            f"{one}, with drafts {other}\n"
        )
    return "".join(lines)


def _footnotes(stats: DecodeStats) -> Iterator[str]:
    if ties := stats.near_ties:
        yield (
            f"Near ties: {pluralize(len(ties), 'token')} verified by a margin below {NEAR_TIE} in log-probability, "
            f"the least {min(ties):.6f}.\n"
        )
    if stats.undrafted_windows:
        yield (
            "Beam search does not use drafts, since its hypotheses diverge at every step and a draft continues one of "
            f"them: {pluralize(stats.undrafted_windows, 'window')} decoded plainly.\n"
        )


def _recording_texts(timings: Mapping[str, SpeedSummary]) -> list[dict[str, Any]]:
    """Return the text of each engine for each recording."""
    texts: dict[str, dict[str, Any]] = {}
    for name, timing in timings.items():
        for run in timing.results:
            hypothesis = run.hypothesis
            row = {"audio": run.entry.name, "seconds": hypothesis.seconds, "language": hypothesis.language}
            texts.setdefault(run.entry.name, row)[name] = hypothesis.text
    return [*texts.values()]


def _divergence_json(divergence: Divergence) -> dict[str, Any]:
    return {
        "audio": divergence.entry.name,
        "start_s": divergence.start_s,
        "index": divergence.index,
        "same_text": divergence.same_text,
        **dict(zip((PLAIN, SPECULATIVE), divergence.tokens, strict=True)),
    }


def _timing_json(timing: SpeedSummary) -> dict[str, Any]:
    scores = timing.evaluation
    return {
        "wall_s": timing.wall_s,
        "audio_s": timing.audio_s,
        "times_real_time": timing.times_real_time,
        **asdict(timing.stats),
        "acceptance_rate": timing.stats.acceptance_rate,
        "tokens_per_forward": timing.stats.tokens_per_forward,
        "wer": scores.wer.rate if scores and scores.wer else None,
        "cer": scores.cer.rate if scores and scores.cer else None,
    }


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


bench_option = partial(single_option, section="Measuring")
streaming_option = partial(bench_option, no_effect=without_flag("streaming"))


@click.command("bench", cls=Command)
@click.argument("recordings", metavar="FILE|MANIFEST...", nargs=-1, required=True, type=FilePath())
@bench_option(
    "--speculative",
    is_flag=True,
    help="Decode with and without drafts, alternately; --assistant makes the drafts.",
)
@bench_option(
    "--streaming",
    is_flag=True,
    help="Transcribe live streams in simulated real time; --delay and --finals may name several.",
)
@streaming_option(
    "--join",
    type=NumberRange(0, 3600),
    metavar="S",
    help="With --streaming, join the recordings of a speaker to one stream, separated by S seconds of silence.",
)
@streaming_option(
    "--block-s",
    type=NumberRange(0.001, 60),
    default=0.02,
    metavar="S",
    help="With --streaming, duration of the blocks of audio.",
)
@streaming_option(
    "--one-core",
    is_flag=True,
    help="With --streaming, measure the processor time of all cores instead of the elapsed time.",
)
@bench_option(
    "--repeat",
    type=click.IntRange(1, 10_000),
    default=3,
    metavar="N",
    help="Number of passes; the result is their median.",
)
@limit_option(section="Measuring")
@json_option(section="Measuring")
@progress_option(section="Measuring")
@dataclass_options(StreamOptions)
@model_options
@decoding_options
def command(recordings: Sequence[str], json_file: str | None, **params: Any) -> int:
    """Measure the speed of transcription.

    FILE is a recording, MANIFEST a file of JSON lines as for 'harken eval', or a folder that holds such a
    manifest.jsonl; with a manifest, errors are counted too.

    With --speculative one loaded model decodes everything plainly and with drafts, alternately, and compares times,
    passes of the decoder, accepted drafts, and tokens.

    With --streaming live sessions transcribe the recordings in simulated real time, and report how long after they were
    spoken words are shown and committed, errors compared with an offline pass, and cost. The options under Live are
    those of 'harken listen'.
    """
    options = options_from(TranscribeOptions, params)
    if params["speculative"] and options.beam_size is None:
        options = replace(options, beam_size=1)  # beams take no drafts
    if params["speculative"] and params["streaming"]:
        raise click.UsageError("--speculative and --streaming exclude each other")
    if params["streaming"]:
        # Wrong options and a missing package fail here, before the work.
        live_stream_options(params)
        normalizer(None)
    names = expand_patterns(recordings)
    if pipes := [*filter(is_pipe, names)]:
        pipe = "standard input" if pipes[0] == STDIN else pipes[0]
        raise click.UsageError(f"{pipe} can be read only once; allowed are files and manifests")
    manifests = [name for name in names if os.path.isdir(name) or name.endswith(".jsonl")]
    eval_recordings = [*read_manifests(manifests, params["limit"], note=write_stderr)]
    found, unreadable = _find_recordings(name for name in names if name not in manifests)
    eval_recordings += found
    if unreadable and not eval_recordings:
        raise AudioError(unreadable[0].reason)
    refuse_overwriting(filter(None, [json_file]), [*named_files(manifests), *names, *chosen_files(params)])
    with Screen(params["progress"]) as screen:

        def start() -> Measurement[Any]:
            recognizer = load_model_with_status(screen, params)
            made_by = provenance(options, **model_params(params, exclude=("download",)))
            make = live_measurement if params["streaming"] else partial(_speed_measurement, screen)
            measurement: Measurement[Any] = make(recognizer, eval_recordings, options, params, made_by)
            return replace(measurement, outcomes=chain(unreadable, measurement.outcomes))

        return measure(screen, start, json_file)


def _speed_measurement(
    screen: Screen,
    recognizer: Recognizer,
    eval_recordings: Sequence[Entry],
    options: TranscribeOptions,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Measurement[Round]:
    """Return the measurement of speed, plain and with drafts."""
    can_score = _can_score(eval_recordings, screen)
    engines = {SPECULATIVE if recognizer.speculator else PLAIN: recognizer}
    if params["speculative"]:
        if not recognizer.speculator:
            raise click.UsageError(
                f"--speculative: {recognizer.model} has no assistant on this machine that pays; --assistant names one"
            )
        plain = Recognizer(recognizer.backend, recognizer.tokenizer, recognizer.model)
        engines = {PLAIN: plain, **engines}

    def make_report(rounds: Sequence[Round], failed: Sequence[Failure], complete: bool) -> Report:
        timings = {name: summarise_speed(rounds, name, options, scored=can_score) for name in engines}
        found = divergences(rounds, *engines) if len(engines) == 2 else ()
        count, ratios = max(len(timing.results) for timing in timings.values()), _ratios(timings)
        drafts = recognizer.speculator.detail if recognizer.speculator else None
        first, last = timings[next(iter(engines))], [*timings.values()][-1]
        as_json = {  # docs/speculation.md lists the keys
            "by": dict(provenance),
            "engine": recognizer.backend.capabilities.detail,
            "draft": drafts,
            "complete": complete,
            "repeats": params["repeat"],
            **{name: _timing_json(timing) for name, timing in timings.items()},
            "ratios": {RATIOS[label]: ratio for label, ratio in ratios.items()},
            "divergences": [_divergence_json(divergence) for divergence in found],
            "recordings": _recording_texts(timings),
            "failed": failed_recordings(failed),
        }
        if not count:
            return Report(recordings=0, text="", as_json=as_json)
        text = [
            format_heading(recognizer, pluralize(count, "recording"), first.audio_s, params["repeat"], drafts),
            format_table(_rows(timings, ratios)),
            _divergence_summary(found, count, recognizer.tokenizer) if len(engines) == 2 else "",
            *_footnotes(last.stats),
        ]
        return Report(recordings=count, text="".join(text), as_json=as_json)

    return Measurement(
        outcomes=run_rounds(engines, eval_recordings, options, params["repeat"]),
        report=make_report,
        recordings=len(eval_recordings),
        durations_s=[recording.seconds for recording in eval_recordings],
        measured_s=lambda one: sum(recording.seconds or 0.0 for recording in one.recordings),
    )


def _find_recordings(names: Iterable[str]) -> tuple[list[Entry], list[Failure]]:
    """Return the recordings of these names, and those that cannot be read."""
    found: list[Entry] = []
    unreadable: list[Failure] = []
    for name in names:
        entry = Entry(name=name, path=Path(name), text="", has_reference=False)
        try:
            found.append(replace(entry, seconds=recording_duration_s(name)))
        except AudioError as failure:
            unreadable.append(Failure(entry=entry, reason=str(failure)))
    return found, unreadable


def _can_score(eval_recordings: Sequence[Entry], screen: Screen) -> bool:
    """Return whether errors can be counted; if only the extra is missing, report how to install it."""
    if not any(recording.has_reference for recording in eval_recordings):
        return False
    try:
        normalizer(None)
    except BackendUnavailable as error:
        screen.write_stderr(f"harken: errors are not counted: {error}")
        return False
    return True
