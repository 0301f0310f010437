"""Which recordings are meant, and where the results of each belong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path

import click

from harken.audio import audio_duration
from harken.errors import OutputError
from harken.formats import RecordingLink

STDIN = "-"


def expand_patterns(names: Iterable[str]) -> list[str]:
    """Files that are meant by names and patterns, each once, in order.

    A name that exists is taken as it stands, whatever signs it has. A pattern that nothing matches stays, so
    that whoever opens it says what is missing. Shells of Windows leave patterns to the program.
    """
    found: dict[str, str] = {}
    for name in names:
        literal = name == STDIN or os.path.lexists(name)
        for match in [name] if literal else sorted(glob(name, recursive=True)) or [name]:
            found.setdefault(match if match == STDIN else os.path.abspath(match), match)
    return list(found.values())


def output_paths(
    sources: Sequence[str], formats: Sequence[str], directory: Path | None
) -> dict[str, dict[str, Path]]:
    """Where the results of each recording are to be written, by form.

    The name is that of the recording with the ending of the form, ``stdin`` for standard input. The folder is
    `directory`, else that of the recording.

    Raises
    ------
    click.UsageError
        If two results would have one name, or a result that of a recording.
    """
    recordings = {_canonical_path(Path(source)) for source in sources if source != STDIN}
    source_by_target: dict[str, str] = {}
    paths: dict[str, dict[str, Path]] = {}
    for source in sources:
        path = Path("stdin" if source == STDIN else source)
        folder = path.parent if directory is None else directory
        paths[source] = {name: folder / f"{path.stem}.{name}" for name in formats}
        for target in paths[source].values():
            identity = _canonical_path(target)
            if identity in recordings:
                raise click.UsageError(f"the transcript of {source} would overwrite the recording {target}")
            if (other_source := source_by_target.setdefault(identity, source)) != source:
                raise click.UsageError(f"{other_source} and {source} would both be written to {target}")
    return paths


def recording_duration_s(source: str) -> float | None:
    """Seconds of a recording by its header; None for a pipe, which can be read only once.

    Raises
    ------
    AudioError
        If it is no recording: asked before a model is loaded, that is told at once.
    """
    return None if _is_pipe(source) else audio_duration(source)


def recording_reference(source: str, folder: Path) -> RecordingLink | None:
    """What a transcript in that folder refers to; None for a pipe, which cannot be played again."""
    return None if _is_pipe(source) else RecordingLink(path=Path(source), transcript_folder=folder)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if need be.

    Raises
    ------
    OutputError
        If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made a folder: {error.strerror or error}") from error


def _is_pipe(source: str) -> bool:
    return source == STDIN or Path(source).is_fifo()


def _canonical_path(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))
