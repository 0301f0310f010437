"""``harken bench``: how long transcribing takes, what drafting brings, how soon a live session has words."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from harken.api import Recognizer
from harken.atomic import open_atomic
from harken.backend_factory import AUTO
from harken.cli.bench_streaming import live_stream_options, measure_live
from harken.cli.exits import EPILOGUE, SOME_FAILED, Stop
from harken.cli.inputs import STDIN, expand_patterns, recording_duration_s
from harken.cli.options import (
    Command,
    Option,
    dataclass_options,
    decoding_options,
    load_model,
    model_options,
    single_option,
    transcribe_options_from,
)
from harken.cli.screen import Screen
from harken.cli.timings import PLAIN, SPECULATIVE, BenchResult
from harken.errors import BackendUnavailable
from harken.evaluation import (
    Entry,
    EvalRecording,
    Round,
    divergences,
    failures,
    provenance,
    read_manifests,
    run_rounds,
    summarise_speed,
)
from harken.evaluation.normalize import normalizer
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

bench_option = partial(single_option, section="Measuring")


@click.command("bench", cls=Command, epilog=EPILOGUE)
@click.argument("recordings", metavar="FILE|MANIFEST...", nargs=-1, required=True)
@bench_option(
    "--speculative",
    is_flag=True,
    help="Decode with and without drafts, in turns; what drafts is --assistant, by default auto.",
)
@bench_option(
    "--streaming",
    is_flag=True,
    help="Hear everything as live streams in simulated real time; --delay and --finals may name several.",
)
@bench_option(
    "--join",
    type=click.FloatRange(0),
    metavar="S",
    help="With --streaming, join the recordings of a speaker to one stream, S seconds of silence between them.",
)
@bench_option(
    "--block-s",
    type=click.FloatRange(0.001, 60),
    default=0.02,
    metavar="S",
    help="With --streaming, how much sound is fed at a time.",
)
@bench_option(
    "--one-core",
    is_flag=True,
    help="With --streaming, let the time of all processors together pass, whatever else the machine does.",
)
@bench_option("--repeat", type=click.IntRange(1), default=3, metavar="N", help="Passes; the median counts.")
@bench_option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Only N recordings of each manifest, spread evenly over it.",
)
@bench_option("--json", "json_file", metavar="FILE", help="Write everything to a file as one JSON object.")
@bench_option("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@dataclass_options(StreamOptions)
@model_options
@decoding_options
def command(recordings: Sequence[str], json_file: str | None, **params: Any) -> int:
    """Measure how long transcribing takes.

    FILE is a recording, MANIFEST a file of JSON lines as 'harken eval' takes it, or a folder that holds such a
    manifest.jsonl: then errors are counted too.

    With --speculative one loaded model decodes everything plainly and with drafts, in turns: times, passes of the
    decoder, how many drafted tokens it accepted, and whether it said the same.

    With --streaming live sessions hear it, in simulated real time: how long after they were spoken words are shown and
    committed, errors beside those of an offline pass, and cost. The options under Live are those of 'harken listen'.
    """
    options = transcribe_options_from(params)
    if params["speculative"] and params["streaming"]:
        raise click.UsageError("--speculative and --streaming exclude each other")
    if params["speculative"]:
        params["assistant"] = params["assistant"] or AUTO
    if params["streaming"]:
        live_stream_options(params)  # these two fail before the work
        normalizer(None)
    eval_recordings = _find_recordings(recordings, params["limit"])
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before the work, not after it.
        write = stack.enter_context(open_atomic(Path(json_file))) if json_file else None
        screen = stack.enter_context(Screen(params["progress"]))
        measure = measure_live if params["streaming"] else _measure_offline
        recognizer = _load_with_status(screen, params)
        made_by = provenance(options, **_model_params(params))
        result, stop = measure(screen, recognizer, eval_recordings, options, params, made_by)
        for failure in result.failures:
            screen.write_stderr(f"harken: {failure.reason}")
        if write:
            write(json.dumps(result.report(), ensure_ascii=False, indent=1) + "\n")
        if result.recording_count:
            screen.write_stdout(result.table())
    if stop:
        raise Stop(stop.code, f"{stop} after {result.recording_count} of {len(eval_recordings)} recordings")
    return SOME_FAILED if result.failures else 0


def _measure_offline(
    screen: Screen,
    recognizer: Recognizer,
    eval_recordings: Sequence[EvalRecording],
    options: TranscribeOptions,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> tuple[BenchResult, Stop | None]:
    """Transcribe everything; how long it took, and what ended it early."""
    can_score = _can_score(eval_recordings, screen)
    engines = {SPECULATIVE if recognizer.speculator else PLAIN: recognizer}
    if params["speculative"]:
        plain = Recognizer(recognizer.backend, recognizer.tokenizer, recognizer.model)
        engines = {PLAIN: plain, **engines}
    rounds, stop = _run_rounds(screen, engines, eval_recordings, options, params["repeat"])
    result = BenchResult(
        provenance=provenance,
        recognizer=recognizer,
        repeats=params["repeat"],
        timings={name: summarise_speed(rounds, name, options, scored=can_score) for name in engines},
        divergences=divergences(rounds, *engines) if len(engines) == 2 else (),
        failures=failures(rounds),
        complete=stop is None,
    )
    return result, stop


def _find_recordings(names: Sequence[str], limit: int | None) -> list[EvalRecording]:
    """What is to be transcribed: recordings, and those of manifests.

    Raises
    ------
    AudioError, ManifestError
        If one is missing or cannot be read: before a model is loaded.
    """
    eval_recordings: list[EvalRecording] = []
    for name in expand_patterns(names):
        if name == STDIN:
            raise click.UsageError("standard input can be read only once; allowed are files and manifests")
        if Path(name).is_dir() or name.endswith(".jsonl"):
            entries = read_manifests([name], limit, note=partial(click.echo, err=True))
            eval_recordings += [EvalRecording(entry=entry, has_reference=True) for entry in entries]
        else:
            entry = Entry(name=name, path=Path(name), text="", seconds=recording_duration_s(name))
            eval_recordings.append(EvalRecording(entry=entry, has_reference=False))
    return eval_recordings


def _can_score(eval_recordings: Sequence[EvalRecording], screen: Screen) -> bool:
    """Whether errors are counted: where some text is known, and the extra is there; otherwise say how to get it."""
    if not any(recording.has_reference for recording in eval_recordings):
        return False
    try:
        normalizer(None)
    except BackendUnavailable as error:
        screen.write_stderr(f"harken: errors are not counted: {error}")
        return False
    return True


def _load_with_status(screen: Screen, params: dict[str, Any]) -> Recognizer:
    if not params["progress"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.show_status("loading the model ...")
    try:
        return load_model(params)
    finally:
        screen.show_status("")


def _run_rounds(
    screen: Screen,
    engines: dict[str, Recognizer],
    eval_recordings: Sequence[EvalRecording],
    options: TranscribeOptions,
    repeats: int,
) -> tuple[list[Round], Stop | None]:
    """What every turn gave, and what ended them early."""
    rounds: list[Round] = []
    durations_s = [recording.entry.seconds for recording in eval_recordings]
    total_s = None if None in durations_s else sum(filter(None, durations_s))
    progress = screen.track(f"{len(eval_recordings)} recordings", total_s)
    done_s = 0.0
    try:
        for bench_round in run_rounds(engines, eval_recordings, options, repeats):
            rounds.append(bench_round)
            done_s += sum(sound.entry.seconds or 0.0 for sound in bench_round.recordings)
            progress(done_s, False)
    except Stop as stop:
        return rounds, stop
    return rounds, None


def _model_params(params: dict[str, Any]) -> dict[str, Any]:
    """What was chosen to compute with."""
    return {
        option.name: params[option.name]
        for option in command.params
        if isinstance(option, Option) and option.section == "Model" and option.name != "download"
    }
