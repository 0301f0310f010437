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
from harken.cli.bench_streaming import live_ways, measure_live
from harken.cli.exits import EPILOGUE, SOME_FAILED, Stop
from harken.cli.inputs import STDIN, expand, length_s
from harken.cli.options import (
    Command,
    Option,
    chosen_options,
    decoding_options,
    flag,
    load_model,
    model_options,
    options_of,
)
from harken.cli.screen import Screen
from harken.cli.timings import PLAIN, SPECULATIVE, Measured
from harken.engines import AUTO
from harken.errors import BackendUnavailable
from harken.evaluation import (
    Entry,
    Sound,
    Turn,
    failures,
    partings,
    provenance,
    read_manifests,
    take_turns,
    timing,
)
from harken.evaluation.normalize import normalizer
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

measuring = partial(flag, section="Measuring")


@click.command("bench", cls=Command, epilog=EPILOGUE)
@click.argument("recordings", metavar="FILE|MANIFEST...", nargs=-1, required=True)
@measuring(
    "--speculative",
    is_flag=True,
    help="Decode with and without drafts, in turns; what drafts is --assistant, by default auto.",
)
@measuring(
    "--streaming",
    is_flag=True,
    help="Hear everything as live streams in simulated real time; --delay and --finals may name several.",
)
@measuring(
    "--join",
    type=click.FloatRange(0),
    metavar="S",
    help="With --streaming, join the recordings of a speaker to one stream, S seconds of silence between them.",
)
@measuring(
    "--block-s",
    type=click.FloatRange(0.001, 60),
    default=0.02,
    metavar="S",
    help="With --streaming, how much sound is fed at a time.",
)
@measuring(
    "--one-core",
    is_flag=True,
    help="With --streaming, let the time of all processors together pass, whatever else the machine does.",
)
@measuring("--repeat", type=click.IntRange(1), default=3, metavar="N", help="Passes; the median counts.")
@measuring(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Only N recordings of each manifest, spread evenly over it.",
)
@measuring("--json", "json_file", metavar="FILE", help="Write everything to a file as one JSON object.")
@measuring("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@options_of(StreamOptions)
@model_options
@decoding_options
def command(recordings: Sequence[str], json_file: str | None, **given: Any) -> int:
    """Measure how long transcribing takes.

    FILE is a recording, MANIFEST a file of JSON lines as 'harken eval' takes it, or a folder that holds such a
    manifest.jsonl: then errors are counted too.

    With --speculative one loaded model decodes everything plainly and with drafts, in turns: times, passes of the
    decoder, how many drafted tokens it accepted, and whether it said the same.

    With --streaming live sessions hear it, in simulated real time: how long after they were spoken words are shown and
    committed, errors beside those of an offline pass, and cost. The options under Live are those of 'harken listen'.
    """
    options = chosen_options(given)
    if given["speculative"] and given["streaming"]:
        raise click.UsageError("--speculative and --streaming exclude each other")
    if given["speculative"]:
        given["assistant"] = given["assistant"] or AUTO
    if given["streaming"]:
        live_ways(given)  # these two fail before the work
        normalizer(None)
    sounds = _sounds(recordings, given["limit"])
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before the work, not after it.
        write = stack.enter_context(open_atomic(Path(json_file))) if json_file else None
        screen = stack.enter_context(Screen(given["progress"]))
        measure = measure_live if given["streaming"] else _measure
        recognizer = _load(screen, given)
        by = provenance(options, **_engine(given))
        measured, stop = measure(screen, recognizer, sounds, options, given, by)
        for failure in measured.failures:
            screen.note(f"harken: {failure.reason}")
        if write:
            write(json.dumps(measured.report(), ensure_ascii=False, indent=1) + "\n")
        if measured.recordings:
            screen.say(measured.table())
    if stop:
        raise Stop(stop.code, f"{stop} after {measured.recordings} of {len(sounds)} recordings")
    return SOME_FAILED if measured.failures else 0


def _measure(
    screen: Screen,
    recognizer: Recognizer,
    sounds: Sequence[Sound],
    options: TranscribeOptions,
    given: Mapping[str, Any],
    by: Mapping[str, Any],
) -> tuple[Measured, Stop | None]:
    """Transcribe everything; how long it took, and what ended it early."""
    scored = _scored(sounds, screen)
    engines = {SPECULATIVE if recognizer.speculator else PLAIN: recognizer}
    if given["speculative"]:
        plain = Recognizer(recognizer.backend, recognizer.tokenizer, recognizer.model)
        engines = {PLAIN: plain, **engines}
    turns, stop = _take_turns(screen, engines, sounds, options, given["repeat"])
    measured = Measured(
        by=by,
        recognizer=recognizer,
        repeats=given["repeat"],
        timings={name: timing(turns, name, options, scored=scored) for name in engines},
        partings=partings(turns, *engines) if len(engines) == 2 else (),
        failures=failures(turns),
        complete=stop is None,
    )
    return measured, stop


def _sounds(names: Sequence[str], limit: int | None) -> list[Sound]:
    """What is to be transcribed: recordings, and those of manifests.

    Raises
    ------
    AudioError, ManifestError
        If one is missing or cannot be read: before a model is loaded.
    """
    sounds: list[Sound] = []
    for name in expand(names):
        if name == STDIN:
            raise click.UsageError("standard input can be read only once; allowed are files and manifests")
        if Path(name).is_dir() or name.endswith(".jsonl"):
            entries = read_manifests([name], limit, note=partial(click.echo, err=True))
            sounds += [Sound(entry=entry, referenced=True) for entry in entries]
        else:
            entry = Entry(name=name, path=Path(name), text="", seconds=length_s(name))
            sounds.append(Sound(entry=entry, referenced=False))
    return sounds


def _scored(sounds: Sequence[Sound], screen: Screen) -> bool:
    """Whether errors are counted: where some text is known, and the extra is there; otherwise say how to get it."""
    if not any(sound.referenced for sound in sounds):
        return False
    try:
        normalizer(None)
    except BackendUnavailable as error:
        screen.note(f"harken: errors are not counted: {error}")
        return False
    return True


def _load(screen: Screen, given: dict[str, Any]) -> Recognizer:
    if not given["progress"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.waiting("loading the model ...")
    try:
        return load_model(given)
    finally:
        screen.waiting("")


def _take_turns(
    screen: Screen,
    engines: dict[str, Recognizer],
    sounds: Sequence[Sound],
    options: TranscribeOptions,
    repeats: int,
) -> tuple[list[Turn], Stop | None]:
    """What every turn gave, and what ended them early."""
    turns: list[Turn] = []
    lengths_s = [sound.entry.seconds for sound in sounds]
    total_s = None if None in lengths_s else sum(filter(None, lengths_s))
    progress = screen.track(f"{len(sounds)} recordings", total_s)
    done_s = 0.0
    try:
        for turn in take_turns(engines, sounds, options, repeats):
            turns.append(turn)
            done_s += sum(sound.entry.seconds or 0.0 for sound in turn.sounds)
            progress(done_s, False)
    except Stop as stop:
        return turns, stop
    return turns, None


def _engine(given: dict[str, Any]) -> dict[str, Any]:
    """What was chosen to compute with."""
    return {
        option.name: given[option.name]
        for option in command.params
        if isinstance(option, Option) and option.section == "Model" and option.name != "download"
    }
