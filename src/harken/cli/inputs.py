"""The files that a command reads, the paths of those that it writes, and the refusal to write what is read."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

import click

from harken.audio import audio_duration
from harken.audio.container import is_pipe
from harken.files import folded_name
from harken.formats import RecordingLink
from harken.formats.cue_check import parse_cues

STDIN = "-"
FILES_READ = "harken.files_read"
"""Key of click's context for the files that options have been read from."""
PathLike = str | Path


def expand_patterns(names: Iterable[str]) -> list[str]:
    """Expand names and patterns to files, each once, in order, also if it is found through a linked folder.

    A name that exists is taken literally, even if it contains pattern characters. A pattern without a match is kept,
    so that opening it reports the missing file. Shells on Windows leave patterns to the program.
    """
    name_by_path: dict[str, str] = {}
    for name in names:
        literal = name == STDIN or os.path.lexists(name)
        for match in [name] if literal else sorted(glob(name, recursive=True)) or [name]:
            folder, last = os.path.split(os.path.abspath(match))
            path = match if match == STDIN else os.path.join(os.path.realpath(folder), last)
            name_by_path.setdefault(path, match)
    return list(name_by_path.values())


def output_paths(
    sources: Sequence[str],
    formats: Sequence[str],
    directory: Path | None,
    claimed: dict[str, str] | None = None,
) -> dict[str, dict[str, Path]]:
    """Return the paths of the transcripts of each recording, by format.

    The name is that of the recording (``stdin`` for standard input) with the format as its extension. The folder is
    `directory` if given, else that of the recording. `claimed` holds the recordings of earlier calls by path, and gets
    those of this one.

    Raises
    ------
    click.UsageError
        If two transcripts would have the same path.
    """
    source_by_target = {} if claimed is None else claimed
    paths: dict[str, dict[str, Path]] = {}
    for source in sources:
        path = Path("stdin" if source == STDIN else source)
        folder = path.parent if directory is None else directory
        paths[source] = {name: folder / f"{path.stem}.{name}" for name in formats}
        for target in paths[source].values():
            canonical_target = os.path.normcase(os.path.realpath(target))
            if (other_source := source_by_target.setdefault(canonical_target, source)) != source:
                raise click.UsageError(f"{other_source} and {source} would both be written to {target}")
    return paths


def read_draft(path: str) -> str:
    """Read a text: that of a transcript as json, the cues of subtitles without their times and tags, or all of it."""
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
        transcript = json.loads(content) if path.endswith(".json") else None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text in UTF-8, or no JSON"
        raise click.UsageError(f"--draft {path}: {reason}") from None
    if transcript is not None:
        if not isinstance(transcript, dict) or not isinstance(transcript.get("text"), str):
            raise click.UsageError(f"--draft {path}: has no text; allowed is a transcript that harken wrote")
        return str(transcript["text"])
    return "\n".join(cue.text for cue in parse_cues(content)) or content


def recording_duration_s(source: str) -> float | None:
    """Return the duration that a recording's header gives; None for a pipe, which can be read only once."""
    return None if is_pipe(source) else audio_duration(source)


def recording_reference(source: str, folder: Path) -> RecordingLink | None:
    """Return the link from a transcript in a folder to its recording; None for a pipe, which cannot be played again."""
    return None if is_pipe(source) else RecordingLink(path=Path(source), transcript_folder=folder)


def refuse_overwriting(targets: Iterable[PathLike], inputs: Iterable[PathLike]) -> None:
    """Refuse to write to a file that is read, or to write twice to one file.

    Parameters
    ----------
    targets : iterable of path
        The files to write, whether or not they exist; ``-`` is standard output, which is no file.
    inputs : iterable of path
        The files to read, whether or not they exist; ``-`` is standard input, which may be a file. Those that options
        have been read from belong to them.

    Raises
    ------
    click.UsageError
        If two of them are one file, also by way of links, or of a disk that ignores case. Pipes and devices, such as
        the null device, hold nothing that writing to them could destroy.
    """
    context = click.get_current_context(silent=True)
    inputs = [*inputs, *(context.meta.get(FILES_READ, ()) if context else ())]
    input_by_key = {key: path for path in map(str, inputs) for key in file_keys(path)}
    target_by_key: dict[Hashable, str] = {}
    for target in map(str, targets):
        keys = frozenset() if target == STDIN else file_keys(target)
        for key in keys & input_by_key.keys():
            raise click.UsageError(f"{_pair(target, input_by_key[key])} would be overwritten, and it is read")
        # Not by identity: each target is replaced, so hard links of earlier results do one another no harm.
        names = _name_keys(_resolved(target)) if keys else frozenset()
        for name in names & target_by_key.keys():
            raise click.UsageError(f"{_pair(target, target_by_key[name])} would be written twice")
        target_by_key |= dict.fromkeys(names, target)


def refuse_writing_into(folder: PathLike, inputs: Iterable[PathLike], read_folders: Iterable[PathLike]) -> None:
    """Refuse to write new files into a folder that holds one of `inputs`, which are read, or lies in a `read_folder`.

    The folder need not exist.
    """
    keys = file_keys(folder)
    parents = {parent: path for path in inputs for parent in _resolved(path).parents}
    for parent, path in parents.items():
        if keys & file_keys(parent):
            raise click.UsageError(f"{folder} would be written to, and holds {path}, which is read")
    resolved = _resolved(folder)
    for read_folder in read_folders:
        read_keys = file_keys(read_folder)
        if any(read_keys & file_keys(parent) for parent in (resolved, *resolved.parents)):
            raise click.UsageError(f"{folder} would be written to, and lies in {read_folder}, which is read")


def _resolved(path: PathLike) -> Path:
    return Path(os.path.realpath(path))


def file_keys(path: PathLike) -> frozenset[Hashable]:
    """Return keys of a file, of which two paths share at least one if they name the same file.

    The file need not exist. An existing one is known by its path, and by its identity on the disk, which hard links
    share; a new one by its path, and by the identity of its folder and its name, as the disk compares names. ``-`` is
    the file that standard input reads. A pipe or a device has no keys.
    """
    if str(path) == STDIN:
        status = _status(0)
        return frozenset([_identity(status)] if status and _is_file(status) else [])
    try:
        resolved = _resolved(path)
        status = _status(resolved)
        if status is None:
            return _name_keys(resolved)
        return frozenset([os.path.normcase(resolved), _identity(status)] if _is_file(status) else [])
    except ValueError:  # no path can hold this text; opening it says so
        return frozenset()


def _name_keys(path: Path) -> frozenset[Hashable]:
    """Return the keys of a name on the disk: its path, and its folder with the name as the disk compares names."""
    folder = _status(path.parent)
    name = folded_name(path.name) if folder and _ignores_case(path.parent) else path.name
    return frozenset([os.path.normcase(path), *([(_identity(folder), name)] if folder else [])])


def _status(path: Path | int) -> os.stat_result | None:
    """Return the status of a file or an open one; None if there is none."""
    with suppress(OSError):
        return os.stat(path)
    return None


def _identity(status: os.stat_result) -> Hashable:
    """Return the device and the number of a file; a value of its own on a disk without numbers."""
    return (status.st_dev, status.st_ino) if status.st_ino else object()


def _is_file(status: os.stat_result) -> bool:
    """Return whether it is not a pipe, a socket or a character device."""
    return not any(kind(status.st_mode) for kind in (stat.S_ISCHR, stat.S_ISFIFO, stat.S_ISSOCK))


def _ignores_case(folder: Path) -> bool:
    """Return whether an existing folder is found by its name in the other case too."""
    other = folder.with_name(folder.name.swapcase()) if folder.name else folder
    return other != folder and other.exists() and other.samefile(folder)


def _pair(target: str, other: str) -> str:
    """Return the name of a file, with its other name if it has two."""
    if other == STDIN:
        return f"{target}, which is standard input,"
    return target if target == other else f"{target}, which is {other},"
