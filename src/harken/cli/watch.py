"""Folders that are watched: recordings are transcribed once they are complete, and again if they change.

Folders are read again and again, which works on network drives too. Nothing is kept between runs but what the
transcription itself leaves: whole transcripts, journals of those cut short, and refusals.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from stat import S_ISREG
from time import sleep
from typing import NoReturn

import click

from harken.cli.files_job import FilesJob
from harken.cli.inputs import expand_patterns
from harken.cli.transcript_files import all_exist
from harken.files import make_folder
from harken.manifests import RECORDING_SUFFIXES

POLL_S = 2.0
"""Time between two looks; a file that did not change meanwhile is complete."""

FileState = tuple[int, int]
"""Size in bytes, and time of the last change in nanoseconds."""


def watch(job: FilesJob, names: Sequence[str]) -> NoReturn:
    """Transcribe the recordings of folders, and those that come, until the process is to end.

    A recording that had its transcripts, or a refusal, when it was first seen is left alone. One that fails is
    reported, and tried again only if it changes.

    Parameters
    ----------
    job : FilesJob
    names : sequence of str
        Folders, and patterns of files.

    Raises
    ------
    click.UsageError
        If a name is neither.
    Stop
        At a signal.
    """
    for name in names:
        if not (os.path.isdir(name) or any(character in name for character in "*?[")):
            raise click.UsageError(f"--watch takes folders and patterns, and {name} is neither")
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
                files = job.files([source], claimed)
            except click.UsageError as error:
                job.screen.write_stderr(f"harken: {error.message}")
                continue
            done = all_exist(files.paths[source]) or files.refusal(source) is not None
            if source in seen or not done:
                todo.append(source)
            seen.add(source)
        if todo:
            job.run(todo, is_single=False)
        sleep(POLL_S)


class Looks:
    """Looks at folders and patterns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._latest: dict[str, FileState] = {}
        self._returned: dict[str, FileState] = {}

    def complete(self) -> list[str]:
        """Return the recordings that have not changed since the look before, each once until it changes."""
        states = dict(_recordings(self._names))
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
