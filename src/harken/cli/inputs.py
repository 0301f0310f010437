"""The recordings that the arguments name, and the paths of their transcripts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path

import click

from harken.audio import audio_duration
from harken.errors import OutputError
from harken.formats import RecordingLink

STDIN = "-"


def expand_patterns(names: Iterable[str]) -> list[str]:
    """Expand names and patterns to files, each once, in order.

    A name that exists is taken literally, even if it contains pattern characters. A pattern without a match is kept,
    so that opening it reports the missing file. Shells on Windows leave patterns to the program.
    """
    name_by_path: dict[str, str] = {}
    for name in names:
        literal = name == STDIN or os.path.lexists(name)
        for match in [name] if literal else sorted(glob(name, recursive=True)) or [name]:
            name_by_path.setdefault(match if match == STDIN else os.path.abspath(match), match)
    return list(name_by_path.values())


def output_paths(
    sources: Sequence[str], formats: Sequence[str], directory: Path | None
) -> dict[str, dict[str, Path]]:
    """Return the paths of the transcripts of each recording, by format.

    The name is that of the recording (``stdin`` for standard input) with the format as its extension. The folder is
    `directory` if given, else that of the recording.

    Raises
    ------
    click.UsageError
        If two transcripts would have the same path, or a transcript that of a recording.
    """
    recordings = {_canonical_path(Path(source)) for source in sources if source != STDIN}
    source_by_target: dict[str, str] = {}
    paths: dict[str, dict[str, Path]] = {}
    for source in sources:
        path = Path("stdin" if source == STDIN else source)
        folder = path.parent if directory is None else directory
        paths[source] = {name: folder / f"{path.stem}.{name}" for name in formats}
        for target in paths[source].values():
            canonical_target = _canonical_path(target)
            if canonical_target in recordings:
                raise click.UsageError(f"the transcript of {source} would overwrite the recording {target}")
            if (other_source := source_by_target.setdefault(canonical_target, source)) != source:
                raise click.UsageError(f"{other_source} and {source} would both be written to {target}")
    return paths


def recording_duration_s(source: str) -> float | None:
    """Return the duration that a recording's header gives; None for a pipe, which can be read only once.

    Raises
    ------
    AudioError
        If it is not a recording.
    """
    return None if _is_pipe(source) else audio_duration(source)


def recording_reference(source: str, folder: Path) -> RecordingLink | None:
    """Return the link from a transcript in a folder to its recording; None for a pipe, which cannot be played again."""
    return None if _is_pipe(source) else RecordingLink(path=Path(source), transcript_folder=folder)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they do not exist.

    Raises
    ------
    OutputError
        If it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made a folder: {error.strerror or error}") from error


def _is_pipe(source: str) -> bool:
    if source == STDIN:
        return True
    try:
        return stat.S_ISFIFO(os.stat(source).st_mode)
    except (OSError, ValueError):  # no pipe; opening it tells what is wrong
        return False


def _canonical_path(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))
