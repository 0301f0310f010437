"""Transcripts as files: whole or absent, with what is kept of those cut short; and ``harken check`` of subtitles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from errno import EACCES, EIO, EMFILE, ENFILE, ENOMEM, EPERM, ETIMEDOUT
from pathlib import Path
from typing import Any

import click

from harken.cli.exits import SOME_FAILED
from harken.cli.inputs import recording_reference
from harken.cli.options import Command, FilePath, dataclass_options
from harken.cli.terminal import format_time, pluralize, write_stderr, write_stdout
from harken.errors import AudioError, AudioNotFound, HarkenError, ManifestError, OutputError
from harken.files import open_atomic, write_atomic
from harken.formats import Layout, render
from harken.formats.cue_check import check_cues, read_cues
from harken.option_types import options_from
from harken.results import Transcript
from harken.transcribe.journal import recording_identity
from harken.version import __version__

_PASSING_ERRORS = {EACCES, EPERM, EIO, EMFILE, ENFILE, ENOMEM, ETIMEDOUT}
PARTIAL_SUFFIX = ".partial"  # not .part, which is a file that grows now
JOURNAL_SUFFIX = ".resume.jsonl"
REFUSAL_SUFFIX = ".refused.json"


@dataclass(frozen=True, kw_only=True)
class TranscriptFiles:
    """The transcripts of recordings.

    Parameters
    ----------
    paths : mapping
        Path of each transcript, by recording and format.
    layout : Layout
    keep_journals : bool
        Keep a journal of each recording while it is transcribed, with which it can be resumed; and keep the reason why
        one is no recording, so that it is not tried again before it has changed.

    Attributes
    ----------
    written : set of Path
        Those that have been written.
    """

    paths: Mapping[str, Mapping[str, Path]]
    layout: Layout
    keep_journals: bool = False
    written: set[Path] = field(init=False, default_factory=set)

    @contextmanager
    def open(self, source: str) -> Iterator[Callable[[Transcript], None]]:
        """Open the transcripts of a recording; the callable writes them, and each gets its name once it is whole.

        What an earlier run left of transcripts that were cut short is removed at the end.

        Raises
        ------
        HarkenError
            If one of them cannot be written; the others are.
        """
        with self._open(source, self.paths[source]) as write:
            yield write
        partial_paths = map(partial_path, self.paths[source].values())
        for path in (*partial_paths, *self._beside(source, JOURNAL_SUFFIX, REFUSAL_SUFFIX)):
            with suppress(OSError):
                path.unlink()

    def write_partial(self, source: str, transcript: Transcript) -> list[Path]:
        """Write a transcript that is not whole, under other names, and return where what was done is.

        That it cannot be written is not reported: something else has failed already.
        """
        paths = self.paths[source]
        partial_paths = {
            format_name: partial_path(path) for format_name, path in paths.items() if path not in self.written
        }
        if transcript.segments:
            with suppress(Exception), self._open(source, partial_paths) as write:
                write(transcript)
        return [path for path in (*paths.values(), *partial_paths.values()) if path in self.written]

    def journal(self, source: str) -> Path | None:
        """Return the path of the journal of a recording, beside its first transcript; None for a pipe."""
        return self._kept(source, JOURNAL_SUFFIX)

    def refuse(self, source: str, error: Exception) -> None:
        """Keep the reason why a recording cannot be transcribed, if that is its own fault."""
        path = self._kept(source, REFUSAL_SUFFIX)
        if path and is_own_fault(error) and self.refusal(source) is None:
            refusal = {"recording": self._identity(source), "reason": str(error)}
            with suppress(OutputError):
                write_atomic(path, [json.dumps(refusal) + "\n"])

    def refusal(self, source: str) -> str | None:
        """Return the reason why a recording could not be transcribed, unless it has changed since."""
        path = self._kept(source, REFUSAL_SUFFIX)
        try:
            refusal = json.loads(path.read_bytes()) if path else {}
            return str(refusal["reason"]) if refusal["recording"] == self._identity(source) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @staticmethod
    def _identity(source: str) -> list[int | str]:
        """Return what has changed if a recording has, or the program that could not read it."""
        return [*recording_identity(source), __version__]

    def _kept(self, source: str, suffix: str) -> Path | None:
        """Return the path of what is kept of a recording between runs; None for a pipe."""
        is_kept = self.keep_journals and os.path.isfile(source)
        return next(self._beside(source, suffix), None) if is_kept else None

    def _beside(self, source: str, *suffixes: str) -> Iterator[Path]:
        """Yield the paths of files beside the first transcript of a recording, if it is transcribed to files."""
        for path in [*self.paths[source].values()][:1]:
            yield from (path.with_name(f"{Path(source).stem}{suffix}") for suffix in suffixes)

    @contextmanager
    def _open(self, source: str, paths: Mapping[str, Path]) -> Iterator[Callable[[Transcript], None]]:
        with ExitStack() as stack:
            files = {path: stack.enter_context(ExitStack()) for path in paths.values()}
            writers = {path: files[path].enter_context(open_atomic(path, durable=True)) for path in files}

            def write(transcript: Transcript) -> None:
                failures: list[HarkenError] = []
                for format_name, path in paths.items():
                    reference = recording_reference(source, path.parent)
                    try:
                        with files[path]:
                            for chunk in render(transcript, format_name, self.layout, reference):
                                writers[path](chunk)
                        self.written.add(path)
                    except HarkenError as error:  # as of a full disk, on which the others may have room
                        failures.append(error)
                if failures:
                    first, *others = failures
                    for other in others:
                        first.add_note(str(other))
                    raise first

            yield write


def is_own_fault(error: Exception) -> bool:
    """Return whether a recording itself is at fault, and not the disk or the right to read it."""
    passing = isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING_ERRORS
    return isinstance(error, AudioError) and not isinstance(error, AudioNotFound) and not passing


def all_exist(paths: Mapping[str, Path]) -> bool:
    """Return whether a recording has all of its transcripts, and at least one."""
    return bool(paths) and all(path.is_file() for path in paths.values())


def partial_path(path: Path) -> Path:
    """Return the path of a transcript while it is not whole."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


@click.command("check", cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FilePath())
@dataclass_options(Layout, exclude=("highlight_words", "karaoke", "embed_audio", "speakers"))
def check_command(files: Sequence[str], **params: Any) -> int:
    """Check subtitles against the rules of a style.

    FILE has subtitles of any program, in the format srt or vtt. Every rule that a cue breaks is a line, and the exit
    code is then 1. A cue may also not be a word that is torn out of its sentence, nor have a line of one word.
    """
    layout = options_from(Layout, params)
    failed = False
    for file in files:
        try:
            cues = read_cues(file)
        except ManifestError as error:
            if len(files) == 1:
                raise
            write_stderr(f"harken: {error}")
            failed = True
            continue
        broken = [*check_cues(cues, layout)]
        for each in broken:
            write_stdout(f"{file}: cue {each.number} at {format_time(cues[each.number - 1].start_s)}: {each}\n")
        n_breaking = len({each.number for each in broken})
        write_stdout(f"{file}: {n_breaking} of {pluralize(len(cues), 'cue')} with a broken rule\n")
        failed |= bool(broken)
    return SOME_FAILED if failed else 0
