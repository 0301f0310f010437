"""``harken transcribe``: recordings in, transcripts on the screen or in files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harken.cli.exits import EPILOGUE
from harken.cli.inputs import STDIN, destinations, expand, make_folder, recording
from harken.cli.job import Job
from harken.cli.options import (
    Command,
    chosen_layout,
    chosen_options,
    decoding_options,
    flag,
    layout_options,
    listed,
    load_model,
    model_options,
)
from harken.cli.screen import Lines, Screen
from harken.formats import FORMATS, Form, Layout, Writer
from harken.transcribe import TranscribeOptions

OF_WORDS = {"words.tsv", "html"}
"""Forms that show words without being asked to."""


def form_name(text: str) -> str:
    """Name of a form, or of all of them."""
    if text not in (*FORMATS, "all"):
        raise click.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}, all")
    return text


output = partial(flag, section="Output")


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@listed(
    *("-f", "--format", "forms"),
    section="Output",
    item=form_name,
    metavar="FORM,...",
    help=f"Forms to write: {', '.join(FORMATS)}, or all of them.",
)
@output(
    *("-o", "--output-dir", "folder"),
    metavar="DIR",
    help="Folder of the files, made if need be; - is standard output. By default that of the recording.",
)
@output("-q", "--quiet", is_flag=True, help="Only errors, and the transcript where no file is written.")
@output(
    *("-v", "--verbose"),
    is_flag=True,
    help="Say what computes, how fast, which language, and what was rejected or left out and why.",
)
@output("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@layout_options
@model_options
@decoding_options
def command(files: Sequence[str], forms: Sequence[str], folder: str | None, **given: Any) -> int:
    """Transcribe recordings.

    FILE is a recording of any kind, a video with sound, a pattern such as 'talks/*.mp3', or - for standard
    input.

    Without --format and --output-dir the transcript appears on the screen as it is made. With --format it is
    written to files beside the recordings: talk.mp3 becomes talk.srt. With --output-dir alone the form is txt.

    A file that fails is reported and the others are done. Ctrl-C writes what has been done of the current one.
    """
    sources = expand(files)
    forms = tuple(FORMATS) if "all" in forms else tuple(dict.fromkeys(forms))
    layout = chosen_layout(given)
    options = _with_words(chosen_options(given), layout, forms)
    to_stdout = folder == STDIN
    if to_stdout and (len(sources), len(forms)) != (1, 1):
        raise click.UsageError("--output-dir - takes one FILE and one --format")
    if to_stdout:
        targets: dict[str, dict[str, Path]] = {sources[0]: {}}
    else:
        targets = destinations(sources, forms or ("txt",) * bool(folder), Path(folder) if folder else None)
    if folder and not to_stdout:
        make_folder(Path(folder))

    def form(source: str) -> Form | None:
        """How the transcript appears on standard output, if at all."""
        if to_stdout:
            return Writer(forms[0], layout, recording(source, Path()))
        if targets[source] and (given["quiet"] or not sys.stdout.isatty()):
            return None
        return Lines(source if len(sources) > 1 else None)

    bar = given["progress"] and not given["quiet"]
    if not bar:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Screen(bar) as screen:
        job = Job(screen, partial(load_model, given), options, layout, form, verbose=given["verbose"])
        return job.run(targets)


def _with_words(options: TranscribeOptions, layout: Layout, forms: Sequence[str]) -> TranscribeOptions:
    """Find out when each word was spoken where that is to be shown, unless the person said no."""
    if options.word_timestamps or not (layout.needs_words or OF_WORDS & {*forms}):
        return options
    if click.get_current_context().get_parameter_source("word_timestamps") is ParameterSource.DEFAULT:
        return replace(options, word_timestamps=True)
    if layout.needs_words:
        raise click.UsageError("--no-word-timestamps leaves nothing to lay out lines or to show words by")
    return options
