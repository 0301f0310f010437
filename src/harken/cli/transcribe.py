"""``harken transcribe``: transcribes recordings, to the screen or to files, and those that come into a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from glob import escape
from pathlib import Path
from stat import S_ISREG
from time import sleep
from typing import Any, NoReturn

import click

from harken.cli.files_job import FilesJob
from harken.cli.inputs import STDIN, expand_patterns, read_draft, recording_reference
from harken.cli.model_options import model_options, speaker_options
from harken.cli.options import (
    TURNS,
    Command,
    FilePath,
    decoding_options,
    is_given,
    layout_options,
    list_option,
    progress_option,
    single_option,
    with_option,
)
from harken.cli.terminal import Screen, TimestampedLines, Unshown, is_terminal
from harken.errors import AudioError
from harken.files import make_folder
from harken.formats import FORMATS, WORD_FORMATS, Layout, TranscriptFormat, make_writer
from harken.manifests import RECORDING_SUFFIXES
from harken.option_types import options_from
from harken.transcribe import TranscribeOptions

POLL_S = 2.0
"""Time between two looks; a file that did not change meanwhile is complete."""
MOST_LOOKS = 300
"""Longest wait, ten minutes, before a recording that failed is tried again."""

FileState = tuple[int, int]
"""Size in bytes, and time of the last change in nanoseconds."""


def _parse_format_name(text: str) -> str:
    """Return the name of a format, or ``all``."""
    name = text.lower()
    if name not in (*FORMATS, "all"):
        raise click.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}, all")
    return name


output_option = partial(single_option, section="Output")


@click.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FilePath())
@list_option(
    *("-f", "--format", "format_names"),
    section="Output",
    parse_item=_parse_format_name,
    metavar="FORMAT,...",
    help=f"Formats to write: {', '.join(FORMATS)}, or all of them.",
)
@output_option(
    *("-o", "--output-dir"),
    type=FilePath(),
    metavar="DIR",
    help="Folder of the files, created if missing; - is standard output. By default that of the recording.",
)
@output_option("--skip-existing", is_flag=True, help="Skip recordings whose files all exist; each is whole.")
@output_option(
    "--resume",
    is_flag=True,
    help="Skip recordings whose files all exist, and go on with one that was cut short, to the same text; its "
    "finished windows are kept in a .resume.jsonl file until it is whole. What was no recording is not tried again, as "
    "a .refused.json file says, unless it has changed.",
)
@output_option(
    "--watch",
    is_flag=True,
    help="FILE is a folder or a pattern: transcribe the recordings there, and those that come, each once it is "
    "complete, until Ctrl-C; those that have transcripts are left alone. What was cut short or refused is treated as "
    "with --resume.",
)
@output_option(
    "-q", "--quiet", is_flag=True, help="Print only errors, and the transcript if no file is written."
)
@output_option(
    *("-v", "--verbose"),
    is_flag=True,
    no_effect=with_option("quiet"),
    help="Report the engine, the speed, the language, what was rejected or dropped and why, and speech without words.",
)
@single_option(
    "--draft",
    section="Speculation",
    type=FilePath(),
    metavar="FILE",
    help="Text that the recording is expected to have, which makes decoding faster and changes nothing: a script, an "
    "old transcript, subtitles (srt, vtt, json or text).",
)
@progress_option(section="Output")
@layout_options
@speaker_options
@model_options
@decoding_options
def command(files: Sequence[str], format_names: Sequence[str], output_dir: str | None, **params: Any) -> int:
    """Transcribe recordings.

    FILE is a recording of any kind, a video with sound, a pattern such as 'talks/*.mp3', or - for standard
    input.

    Without --format and --output-dir the transcript appears on the screen as it is made. With --format it is
    written to files beside the recordings: talk.mp3 becomes talk.srt. With --output-dir alone the format is txt.

    A file that fails is reported, and the others are transcribed. A written transcript is always whole: Ctrl-C writes
    that of the current recording so far to talk.srt.partial.

    With --watch the command goes on: 'harken transcribe --watch inbox -f srt' transcribes what is put into a folder.
    """
    sources = [] if params["watch"] else expand_patterns(files)
    for name in sources:
        # Whisper's switches take a value; without it "False" would switch on.
        if name in ("True", "False") and not os.path.exists(name):
            raise click.UsageError(
                f"{name}: no such file; a switch takes no value, but has two names, such as --vad and --no-vad; "
                "'harken whisper' takes the command lines of whisper"
            )
    if params["draft"] and len(sources) != 1:
        raise click.UsageError("--draft takes one FILE, whose text it has")
    options = options_from(TranscribeOptions, params)
    named = params["speakers"] or options.channels == "apart"
    format_names = _format_names(format_names or ("txt",) * bool(output_dir or params["watch"]), speakers=named)
    layout = replace(options_from(Layout, params), speakers=named)
    options = _with_word_timestamps(options, layout, format_names, speakers=params["speakers"])
    to_stdout = output_dir == STDIN
    if to_stdout and (params["watch"] or (len(sources), len(format_names)) != (1, 1)):
        raise click.UsageError("--output-dir - takes one FILE and at most one --format, and no --watch")
    written_formats = () if to_stdout else format_names
    skip_existing = params["skip_existing"] or params["resume"]
    if skip_existing and not written_formats:
        raise click.UsageError("--skip-existing and --resume are for files: give --format or --output-dir")
    if params["resume"] and options.channels == "apart":
        raise click.UsageError(
            "--resume and --channels apart exclude each other; --skip-existing goes with both"
        )
    if params["draft"] and options.channels == "apart":
        raise click.UsageError("--draft and --channels apart exclude each other")

    def stdout_writer(source: str) -> TranscriptFormat:
        """Return the writer of a transcript on standard output."""
        if to_stdout:
            return make_writer(format_names[0], layout, recording_reference(source, Path()))
        if written_formats and (params["quiet"] or not is_terminal(sys.stdout)):
            return Unshown()
        return TimestampedLines(source if params["watch"] or len(sources) > 1 else None)

    with Screen(params["progress"] and not params["quiet"]) as screen:
        job = FilesJob(
            screen=screen,
            params=params,
            options=options,
            layout=layout,
            format_names=written_formats,
            folder=Path(output_dir) if output_dir and not to_stdout else None,
            stdout_writer=stdout_writer,
            skip_existing=skip_existing and not params["watch"],  # a recording that has changed is no such
            keep_journals=params["resume"] or (params["watch"] and options.channels == "mixed"),
            verbose=params["verbose"],
            quiet=params["quiet"],
            draft=read_draft(params["draft"]) if params["draft"] else None,
        )
        if params["watch"]:
            watch(job, files)
        return job.run(sources, is_single=len(sources) == 1)


def _format_names(names: Sequence[str], *, speakers: bool) -> tuple[str, ...]:
    """Return each format once; ``all`` are those that have something to say."""
    if "all" in names:
        return tuple(name for name in FORMATS if speakers or name != TURNS)
    if TURNS in names and not speakers:
        raise click.UsageError(
            f"--format {TURNS} has turns of speakers: give --speakers or --channels apart, too"
        )
    return tuple(dict.fromkeys(names))


def _with_word_timestamps(
    options: TranscribeOptions, layout: Layout, format_names: Sequence[str], *, speakers: bool
) -> TranscribeOptions:
    """Turn on word timestamps if the output shows words, unless the user turned them off."""
    if options.word_timestamps or not (speakers or layout.needs_words or WORD_FORMATS & {*format_names}):
        return options
    if not is_given("word_timestamps"):
        return replace(options, word_timestamps=True)
    if speakers:
        raise click.UsageError("--no-word-timestamps excludes --speakers, which says who said each word")
    if layout.needs_words:
        raise click.UsageError("--no-word-timestamps excludes options that lay out lines or show words")
    if "words.tsv" in format_names:
        raise click.UsageError("--no-word-timestamps leaves words.tsv empty")
    return options


def watch(job: FilesJob, names: Sequence[str]) -> NoReturn:
    """Transcribe the recordings of folders, and those that come, until the process is to end.

    Folders are read again and again, which works on network drives too. Nothing is kept between runs but what the
    transcription itself leaves: whole transcripts, journals of those cut short, and refusals.

    A recording that had its transcripts, or a refusal, when it was first seen is left alone. One that is none is
    reported, and tried again only if it changes. One that fails, for want of space or since another process transcribes
    it, is tried again after longer and longer waits.
    """
    for name in names:
        if not (os.path.isdir(name) or any(character in name for character in "*?[")):
            raise click.UsageError(f"--watch takes folders and patterns, and {name} is neither")
        if os.path.isdir(name) and not os.access(name, os.R_OK | os.X_OK):  # it would look empty for ever
            raise AudioError(f"{name}: cannot be read: Permission denied")
    if job.folder:
        make_folder(job.folder)
    job.recognizer.resolve_options(job.options)  # what is wrong is known before the first recording comes
    if not job.quiet:
        job.screen.write_stderr(f"harken: watching {', '.join(names)}")
    looks, claimed, seen = Looks(names), dict[str, str](), set[str]()
    while True:
        todo = []
        for source in looks.complete():
            try:
                (files,) = job.files([source], claimed).values()
            except click.UsageError as error:
                job.screen.write_stderr(f"harken: {error.message}")
                continue
            if source in seen or not (files.exist or files.refusal is not None):
                todo.append(source)
            seen.add(source)
        if todo:
            job.run(todo, is_single=False)
            looks.count_failures(todo, job.failed)
        sleep(POLL_S)


class Looks:
    """Looks at folders and patterns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._latest: dict[str, FileState] = {}
        self._returned: dict[str, FileState] = {}
        self._n_looks = 0
        self._due: dict[
            str, tuple[int, int]
        ] = {}  # look at which a failed one is returned again, and looks between

    def count_failures(self, tried: Iterable[str], failed: Iterable[str]) -> None:
        """Have recordings that failed returned again, each time after twice as many looks, and others no more."""
        waits = {source: min(2 * self._due.get(source, (0, 1))[1], MOST_LOOKS) for source in failed}
        for source in tried:
            self._due.pop(source, None)
        self._due |= {source: (self._n_looks + wait, wait) for source, wait in waits.items()}

    def complete(self) -> list[str]:
        """Return the recordings that have not changed since the look before, each once until it changes or is due."""
        states = dict(_recordings(self._names))
        self._n_looks += 1
        for source, (look, _) in self._due.items():
            if look == self._n_looks:
                self._returned.pop(source, None)
        complete = {
            source: state
            for source, state in states.items()
            if state == self._latest.get(source) and state != self._returned.get(source)
        }
        self._latest = states
        self._returned |= complete
        return [*complete]


def _recordings(names: Sequence[str]) -> Iterator[tuple[str, FileState]]:
    """Yield the recordings that names stand for, with their states; an empty file is one that is being made."""
    patterns = [os.path.join(escape(name), "*") if os.path.isdir(name) else name for name in names]
    for source in expand_patterns(patterns):
        with suppress(OSError):  # it is gone, or the network drive is
            status = os.stat(source)
            if Path(source).suffix.lower() in RECORDING_SUFFIXES and S_ISREG(status.st_mode) and status.st_size:
                yield source, (status.st_size, status.st_mtime_ns)
