"""The inputs of a batch: a manifest, a folder, a pattern, an audiofolder, or tar shards, local or by URL.

Only what is needed to plan is read: lines, listings and the headers of archives, never a recording.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from harken.batch.archives import read_archive
from harken.batch.locations import (
    exists,
    find_files,
    is_url,
    is_web,
    join,
    name_of,
    one_line,
    parent_of,
    suffix_of,
    without_file_scheme,
)
from harken.batch.manifests import Found, checked_recording, read_manifest
from harken.batch.patterns import expand, relative_name, root_of
from harken.batch.plan import PLAN_FILE, SHARD_FOLDER
from harken.batch.recordings import BatchRecording
from harken.batch.side_names import with_side_names
from harken.errors import HarkenError, PlanError

ALLOWED = "allowed is a manifest of JSON lines, a folder, a pattern, a recording, or .tar archives"
METADATA = ("metadata.jsonl", "metadata.csv")
"""Manifests of Hugging Face's audiofolder, which may be in every folder."""
MANIFEST = "manifest.jsonl"
MANIFEST_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")
ARCHIVE = ".tar"
COMPRESSED = (".gz", ".tgz", ".bz2", ".zst", ".xz", ".lz4", ".zip", ".7z", ".rar")
RECORDING_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "3gp aac ac3 aif aiff amr ape au avi caf flac flv gsm m4a m4b mka mkv mov mp2 mp3 mp4 mpeg mpg mxf",
        "oga ogg ogv opus ra rm spx tta ts voc w64 wav webm wma wmv wv",
    )
    for name in names.split()
)
"""Suffixes by which recordings are found in folders and archives."""

Note = Callable[[str], None]


def read_recordings(source: str, note: Note = lambda text: None) -> list[BatchRecording]:
    """Return the recordings of an input, each once.

    Parameters
    ----------
    source : str
        Path or URL of a manifest (JSON lines with ``audio_filepath``, or ``audio``, and where known ``id``, ``offset``,
        ``duration`` and ``language``; or CSV), of a folder, of a recording or of a ``.tar`` archive; or a pattern of
        such files (``talks/**/*.mp3``, ``shards/{000..119}.tar``). Of a folder, ``manifest.jsonl`` is read if it has
        one, and the ``metadata.jsonl`` or ``metadata.csv`` of each folder in it.
    note : callable, optional
        Called with a line about repeated lines.

    Returns
    -------
    list of BatchRecording

    Raises
    ------
    PlanError
        If it cannot be read, a line is no object or names no recording, a value is not allowed, two lines share an
        ``id`` and differ, or there is no recording. The message names file and line.
    """
    source = without_file_scheme(source)
    unique: dict[str, Found] = {}
    n_repeated = 0
    for where, recording in _read(source):
        where_before, before = unique.setdefault(recording.id, (where, recording))
        if before is recording:
            continue
        if before.digest != recording.digest:
            raise PlanError(f"{where}: id {recording.id!r} is also that of {where_before}, which differs")
        n_repeated += 1
    if n_repeated:
        note(f"{source}: {n_repeated} repeated lines are done once")
    if not unique:
        raise PlanError(f"{source}: holds no recordings; {ALLOWED}")
    return with_side_names([recording for _, recording in unique.values()])


def _read(source: str) -> Iterator[Found]:
    with_errors_of = source
    try:
        paths = expand(source)
        if paths is None:
            yield from _read_one(source, name_of(source))
            return
        if not paths:
            raise PlanError(f"{source}: no file is of this pattern")
        root = root_of(source)
        for path in _wanted(source, paths):
            with_errors_of = path
            yield from _read_one(path, relative_name(path, root), is_match=True)
    except HarkenError:
        raise
    except Exception as error:  # whatever a file system raises
        if not (isinstance(error, OSError) or is_url(source)):
            raise
        at = getattr(error, "filename", None)
        place = at if isinstance(at, str) and not is_url(with_errors_of) else with_errors_of
        raise PlanError(f"{place}: {one_line(error)}; {ALLOWED}") from error


def _wanted(pattern: str, paths: Iterable[str]) -> Iterator[str]:
    """Yield the files of a pattern; of one that names no suffix, those that are recordings or archives by theirs."""
    any_suffix = set("*?[") & set(suffix_of(pattern) or "*")
    for path in paths:
        suffix = suffix_of(path)
        if any_suffix and suffix not in RECORDING_SUFFIXES and suffix != ARCHIVE:
            continue
        if suffix in MANIFEST_SUFFIXES and _holds_rows(path):
            continue
        yield path


def _holds_rows(path: str) -> bool:
    """Return whether a file is one of the rows of an output folder, which are no manifests for a pattern."""
    folder = parent_of(path)
    return name_of(folder) == SHARD_FOLDER and exists(join(parent_of(folder), PLAN_FILE))


def _read_one(source: str, name: str, *, is_match: bool = False) -> Iterator[Found]:
    """Yield the recordings of an input that is no pattern.

    Parameters
    ----------
    source : str
    name : str
        Its path from the root of the pattern.
    is_match : bool
        True if it is a file of a pattern, which may have any suffix.
    """
    suffix = suffix_of(source)
    if os.path.isdir(source):
        yield from _read_folder(source)
    elif suffix in MANIFEST_SUFFIXES:
        yield from read_manifest(source, name.rpartition("/")[0])
    elif suffix == ARCHIVE:
        yield from _read_tar(source, name)
    elif suffix in COMPRESSED:
        raise PlanError(
            f"{source}: is compressed; allowed are .tar archives without compression, in which a file can be found, "
            "and manifests without it"
        )
    elif suffix in RECORDING_SUFFIXES or is_match:
        yield source, BatchRecording(location=source, name=name, keys={"audio_filepath": name})
    elif is_web(source):
        raise PlanError(
            f"{source}: a web server does not list folders; allowed is the URL of a manifest, a recording or a .tar "
            "archive, by its suffix"
        )
    elif is_url(source):
        yield from _read_folder(source)
    elif not os.path.exists(source):
        raise PlanError(f"{source}: no such file; {ALLOWED}")
    else:
        raise PlanError(f"{source}: is neither a manifest nor a recording by its suffix; {ALLOWED}")


def _read_folder(folder: str) -> Iterator[Found]:
    files = dict(find_files(folder))
    manifests = {parent: parent + name for parent, name in _manifests(files)}
    for parent, manifest in manifests.items():
        yield from read_manifest(join(folder, manifest), parent.rstrip("/"))
    for name, size in files.items():
        if any(name.startswith(parent) for parent in manifests):
            continue
        suffix = suffix_of(name)
        location = join(folder, name)
        if suffix in RECORDING_SUFFIXES:
            keys = {"audio_filepath": name}
            yield location, BatchRecording(location=location, name=name, keys=keys, size=size)
        elif suffix == ARCHIVE:
            yield from _read_tar(location, name)


def _manifests(files: Iterable[str]) -> list[tuple[str, str]]:
    """Return the manifests of a folder: that of the whole folder, or else those of the folders in it.

    Returns
    -------
    list of (str, str)
        Folder, with a slash behind it, and name of each.
    """
    present = set(files)
    for name in (*METADATA, MANIFEST):
        if name in present:
            return [("", name)]
    found: dict[str, str] = {}
    for name in METADATA:
        for path in files:
            folder, slash, last = path.rpartition("/")
            if last == name:
                found.setdefault(folder + slash, name)
    return sorted(found.items())


def _read_tar(location: str, archive: str) -> Iterator[Found]:
    """Yield the recordings of an archive, named by its path in the input and theirs in it.

    An offset beside a recording tells where it was cut out, and not what to cut out of it.
    """
    for sample in read_archive(location, RECORDING_SUFFIXES):
        name = f"{archive}/{PurePosixPath(sample.name)}"
        where = f"{location}: {sample.name}"
        keys = {"audio_filepath": name, **sample.keys}
        recording = checked_recording(keys, location, name, where, bytes=sample.bytes, size=sample.bytes.size)
        yield where, replace(recording, offset_s=None)
