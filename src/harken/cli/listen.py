"""``harken listen``: words on the screen while they are spoken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import fields
from functools import partial
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from harken.api import Recognizer
from harken.cli.captions import Captions, Lines
from harken.cli.events_json import json_line
from harken.cli.exits import EPILOGUE, Stop
from harken.cli.inputs import STDIN
from harken.cli.intake import Intake
from harken.cli.keep import recorded, transcribed
from harken.cli.layout import spoken, time
from harken.cli.listening import Face, Heard, Listening
from harken.cli.microphone import Microphone, table
from harken.cli.options import Command, flag, load_model, model_options, options_of
from harken.cli.screen import Screen, say
from harken.cli.sources import PCM_FORMATS, Container, Paced, Pcm, Source
from harken.cli.transcribe import OF_WORDS
from harken.contract import Floats
from harken.formats import FORMATS
from harken.results import Segment, Transcript
from harken.streaming import Committed, LiveSession, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

# What a stream has no use for: it is one recording that goes on, and where it holds speech decides where it is cut.
NOT_LIVE = ("batch_size", "clip_timestamps", "prefix", "vad")

sound = partial(flag, section="Sound")
output = partial(flag, section="Output")


def _transcript(name: str | None) -> tuple[Path, str] | None:
    """Where a transcript is to be written, and the form that its name ends with."""
    if name is None:
        return None
    forms = [form for form in FORMATS if name.endswith(f".{form}")]
    if not forms:
        raise click.BadParameter(f"{name!r}: allowed endings are {', '.join(f'.{form}' for form in FORMATS)}")
    return Path(name), max(forms, key=len)


@click.command("listen", cls=Command, epilog=EPILOGUE)
@click.argument("file", metavar="[FILE]", required=False)
@sound("--microphone", metavar="NAME|NUMBER", help="Which microphone; by default that of the system.")
@sound("--list-microphones", is_flag=True, help="Show which there are, and end.")
@sound(
    "--pace",
    type=click.Choice(["fast", "real"]),
    default="fast",
    help="Take in a file as fast as it can be heard, or in real time, as if it were spoken now.",
)
@sound("--pcm", is_flag=True, help="Standard input holds samples and nothing else.")
@sound("--pcm-format", type=click.Choice([*PCM_FORMATS]), default="s16le", help="What a sample is.")
@sound(
    "--pcm-rate",
    type=click.IntRange(1_000, 768_000),
    default=SAMPLE_RATE,
    metavar="HZ",
    help="Samples a second.",
)
@sound(
    "--pcm-channels",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="Channels, sample by sample; they are mixed.",
)
@output("--json", "as_json", is_flag=True, help="Every event as JSON, one object a line, with its times.")
@output("--times/--no-times", default=False, help="Whether lines begin with their times.")
@output(
    *("-o", "--output", "transcript"),
    metavar="FILE",
    callback=lambda context, option, name: _transcript(name),
    help=f"Write a transcript too, in the form that its name ends with: {', '.join(FORMATS)}.",
)
@output("--record", metavar="FILE", help="Write what was heard to a WAV file of 16 kHz.")
@output("-q", "--quiet", is_flag=True, help="Only errors, and what is said.")
@output("-v", "--verbose", is_flag=True, help="Say what computes and how, and at the end how fast.")
@options_of(StreamOptions)
@model_options
@options_of(TranscribeOptions, without=NOT_LIVE)
def command(file: str | None, **given: Any) -> int:
    """Show what is said while it is said.

    FILE is a recording of any kind, or - for standard input, where --pcm says that raw samples come. Without it the
    microphone is heard, if standard input is a terminal, and else standard input.

    On a terminal the words of an utterance appear as they are spoken, dim as long as they may change, and become
    lines when it is over. Elsewhere there is a line a segment as soon as it is final, or with --json every event.

    Ctrl-C ends the sound: what was heard until then is transcribed to its end. A second one ends at once.
    """
    if given["list_microphones"]:
        say(table())
        return 0
    changes = _changes(given)
    _check_targets(file, given)
    source = _source(file, given)
    heard = Heard()
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before anything is said.
        keep_sound, keep_segment = _kept(stack, given, heard, None if file == STDIN else file)
        recognizer, session = _open(given, changes, live=source.live)
        face = stack.enter_context(closing(_face(given)))
        if given["verbose"]:
            face.note(f"{recognizer!r}\nwords are {session.plan.bound}")
        listening = Listening(
            session=session,
            face=face,
            heard=heard,
            keep_sound=keep_sound,
            keep_segment=keep_segment,
            warn=not given["quiet"],
        )
        intake = stack.enter_context(Intake(source))
        if isinstance(source, Microphone) and not given["quiet"]:
            face.note(f"listening to {source.name}; Ctrl-C ends")
        failure = listening.follow(intake)
        if given["verbose"]:
            face.note(_account(source, heard))
    if intake.stop:
        kept = ", ".join(_targets(given))
        where = f"; what was heard is in {kept}" if kept else ""
        raise Stop(intake.stop.code, f"{intake.stop} at {time(heard.seconds)}{where}")
    if failure:
        raise failure
    return 0


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """What was chosen about the session: checked before a model is loaded."""
    if given["transcript"] and given["transcript"][1] in OF_WORDS:
        given["word_timestamps"] = True
    kinds = (StreamOptions, TranscribeOptions)
    changes = [
        {field.name: given[field.name] for field in fields(kind) if field.name in given} for kind in kinds
    ]
    for kind, chosen in zip(kinds, changes, strict=True):
        kind(**chosen)
    return changes[0] | changes[1]


def _source(file: str | None, given: dict[str, Any]) -> Source:
    """What is listened to; whatever can be told to be wrong with it is told here."""
    wants_microphone = given["microphone"] is not None
    if file is None and not wants_microphone and (given["pcm"] or not (sys.stdin and sys.stdin.isatty())):
        file = STDIN
    if file is None:
        return Microphone(given["microphone"])
    if wants_microphone:
        raise click.UsageError("--microphone and FILE exclude each other")
    if given["pcm"] and file != STDIN:
        raise click.UsageError(f"--pcm is for standard input: harken listen - --pcm < {file}")
    source: Source = Container(file)
    if given["pcm"]:
        source = Pcm(given["pcm_format"], given["pcm_rate"], given["pcm_channels"])
    return Paced(source) if given["pace"] == "real" else source


def _targets(given: dict[str, Any]) -> list[str]:
    """Files that are written."""
    transcript = str(given["transcript"][0]) if given["transcript"] else None
    return [name for name in (given["record"], transcript) if name]


def _check_targets(file: str | None, given: dict[str, Any]) -> None:
    names = [*([file] if file else []), *_targets(given)]
    for one, other in combinations(names, 2):
        if os.path.realpath(one) == os.path.realpath(other):
            raise click.UsageError(f"{other} would be written over")


def _kept(
    stack: ExitStack, given: dict[str, Any], heard: Heard, file: str | None
) -> tuple[Callable[[Floats], None], Callable[[Segment], None]]:
    """Open the files that were asked for; where sound and segments go."""
    keep_sound: Callable[[Floats], None] = _nowhere
    keep_segment: Callable[[Segment], None] = _nowhere
    if given["record"]:
        keep_sound = stack.enter_context(recorded(Path(given["record"])))
    if given["transcript"]:
        path, form = given["transcript"]
        sound = given["record"] or file
        whole = partial(_whole, given, heard)
        keep_segment = stack.enter_context(transcribed(path, form, Path(sound) if sound else None, whole))
    return keep_sound, keep_segment


def _nowhere(what: object) -> None:
    """What is not kept."""


def _whole(given: dict[str, Any], heard: Heard, segments: tuple[Segment, ...]) -> Transcript:
    languages = [segment.language for segment in segments if segment.language]
    return Transcript(
        segments=segments,
        language=languages[-1] if languages else given["language"] or "en",
        duration_s=heard.seconds,
        model=given["model"],
        task=given["task"],
    )


def _open(given: dict[str, Any], changes: dict[str, Any], *, live: bool) -> tuple[Recognizer, LiveSession]:
    """Load the model and begin; what need not keep up with anything is heard as if computing took no time."""
    if given["quiet"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Screen(not given["quiet"]) as screen:
        try:
            screen.waiting("loading the model ...")
            recognizer = load_model(given)
            screen.waiting("measuring this machine ...")
            return recognizer, recognizer.stream(**changes, clock=perf_counter if live else float)
        finally:
            screen.waiting("")


def _face(given: dict[str, Any]) -> Face:
    """Where events appear: on a terminal in place."""

    def line(segment: Segment) -> str:
        text = segment.text.strip()
        return spoken(segment.start_s, segment.end_s, text) if given["times"] else text

    if given["as_json"]:
        return Lines(json_line)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return Captions(line)
    return Lines(lambda event: f"{line(event.segment)}\n" if isinstance(event, Committed) else "")


def _account(source: Source, heard: Heard) -> str:
    share = heard.busy_s / heard.seconds if heard.samples else 0.0
    lost = f", {source.lost_s:.2f} s of it lost" if source.lost_s else ""
    return (
        f"{source.name}: {time(heard.seconds)} heard{lost}, computed for {heard.busy_s:.2f} s, "
        f"{share:.3f} of real time"
    )
