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
from harken.cli.inputs import STDIN, expand_patterns, make_folder, output_paths, recording_reference
from harken.cli.job import FileTranscriber
from harken.cli.options import (
    Command,
    decoding_options,
    layout_from,
    layout_options,
    list_option,
    load_model,
    model_options,
    single_option,
    transcribe_options_from,
)
from harken.cli.screen import Screen, TimestampedLines
from harken.formats import FORMATS, Layout, TranscriptFormat, Writer
from harken.transcribe import TranscribeOptions

WORD_FORMATS = {"words.tsv", "html"}
"""Forms that show words without being asked to."""


def format_name(text: str) -> str:
    """Name of a form, or of all of them."""
    if text not in (*FORMATS, "all"):
        raise click.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}, all")
    return text


output_option = partial(single_option, section="Output")


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@list_option(
    *("-f", "--format", "forms"),
    section="Output",
    parse_item=format_name,
    metavar="FORM,...",
    help=f"Forms to write: {', '.join(FORMATS)}, or all of them.",
)
@output_option(
    *("-o", "--output-dir", "folder"),
    metavar="DIR",
    help="Folder of the files, made if need be; - is standard output. By default that of the recording.",
)
@output_option("-q", "--quiet", is_flag=True, help="Only errors, and the transcript where no file is written.")
@output_option(
    *("-v", "--verbose"),
    is_flag=True,
    help="Say what computes, how fast, which language, and what was rejected or left out and why.",
)
@output_option("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@layout_options
@model_options
@decoding_options
def command(files: Sequence[str], forms: Sequence[str], folder: str | None, **params: Any) -> int:
    """Transcribe recordings.

    FILE is a recording of any kind, a video with sound, a pattern such as 'talks/*.mp3', or - for standard
    input.

    Without --format and --output-dir the transcript appears on the screen as it is made. With --format it is
    written to files beside the recordings: talk.mp3 becomes talk.srt. With --output-dir alone the form is txt.

    A file that fails is reported and the others are done. Ctrl-C writes what has been done of the current one.
    """
    sources = expand_patterns(files)
    forms = tuple(FORMATS) if "all" in forms else tuple(dict.fromkeys(forms))
    layout = layout_from(params)
    options = _with_word_timestamps(transcribe_options_from(params), layout, forms)
    to_stdout = folder == STDIN
    if to_stdout and (len(sources), len(forms)) != (1, 1):
        raise click.UsageError("--output-dir - takes one FILE and one --format")
    if to_stdout:
        targets_by_source: dict[str, dict[str, Path]] = {sources[0]: {}}
    else:
        targets_by_source = output_paths(
            sources, forms or ("txt",) * bool(folder), Path(folder) if folder else None
        )
    if folder and not to_stdout:
        make_folder(Path(folder))

    def stdout_writer(source: str) -> TranscriptFormat | None:
        """How the transcript appears on standard output, if at all."""
        if to_stdout:
            return Writer(forms[0], layout, recording_reference(source, Path()))
        if targets_by_source[source] and (params["quiet"] or not sys.stdout.isatty()):
            return None
        return TimestampedLines(source if len(sources) > 1 else None)

    show_bar = params["progress"] and not params["quiet"]
    if not show_bar:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Screen(show_bar) as screen:
        transcriber = FileTranscriber(
            screen, partial(load_model, params), options, layout, stdout_writer, verbose=params["verbose"]
        )
        return transcriber.run(targets_by_source)


def _with_word_timestamps(
    options: TranscribeOptions, layout: Layout, format_names: Sequence[str]
) -> TranscribeOptions:
    """Find out when each word was spoken where that is to be shown, unless the person said no."""
    if options.word_timestamps or not (layout.needs_words or WORD_FORMATS & {*format_names}):
        return options
    if click.get_current_context().get_parameter_source("word_timestamps") is ParameterSource.DEFAULT:
        return replace(options, word_timestamps=True)
    if layout.needs_words:
        raise click.UsageError("--no-word-timestamps leaves nothing to lay out lines or to show words by")
    return options
