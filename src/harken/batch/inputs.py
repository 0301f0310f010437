"""The recordings of a batch, of a manifest, a folder, a pattern, an audiofolder, or tar shards, local or by URL.

Only what is needed to plan is read: lines, listings and the headers of archives, never a recording.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from harken.batch.locations import (
    absolute,
    exists,
    expand,
    find_files,
    is_url,
    is_web,
    join,
    name_of,
    one_line,
    open_binary,
    parent_of,
    read_bytes,
    relative_name,
    root_of,
    suffix_of,
    without_file_scheme,
)
from harken.batch.store import PLAN_FILE, ROWS
from harken.errors import HarkenError, ManifestError, OptionError, PlanError, on_one_line
from harken.files import decode, folded_name
from harken.manifests import MANIFEST, RECORDING_SUFFIXES, Json, get_field, get_seconds, parse_object, read_rows
from harken.text import from_language_tag

DURATION_KEYS = ("duration", "seconds")
"""Keys for a length in seconds, of NeMo and of harken's own manifests."""
PATH_KEYS = ("audio_filepath", "audio", "file_name")
"""Keys for the path of a recording: of NeMo, of harken's own manifests, of Hugging Face's audiofolder."""
_NOT_EVERYWHERE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\\ud800-\udfff]')
"""Characters that some system does not allow in names."""
_MOST_BYTES = 160  # of a part of a path, which is longer by a suffix or two; systems allow 255


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The place of a file in an archive."""

    start: int
    size: int


@dataclass(kw_only=True)
class BatchRecording:
    """A recording, or a piece of one."""

    location: str  # absolute path or URL of the file; of the archive, if it lies in one
    name: str  # path in the input, with slashes
    keys: Mapping[str, Any]  # the line of the manifest, which its row carries
    id: str = ""  # given by the manifest; by default its digest
    offset_s: float | None = None  # start of a piece
    duration_s: float | None = None  # if the manifest gives it
    language: str | None = None  # if the manifest gives it
    bytes: ByteRange | None = None  # in an archive
    size: int | None = None  # in bytes, where a listing told
    side_name: str = ""  # path of its files beside the rows, without suffix, once all recordings are known
    estimate_s: float = 0.0  # length for the plan; that of the manifest, if it gives one

    def __post_init__(self) -> None:
        self.location = absolute(self.location)
        self.id = self.id or self.digest
        self.estimate_s = self.estimate_s or self.duration_s or 0.0

    @cached_property
    def digest(self) -> str:
        """Digest of what the manifest says of it, in hex: two lines that say the same are one recording.

        The length of a whole recording helps only to plan, and does not count.
        """
        if self.is_piece:
            return digest_of([self.name, self.keys])
        return digest_of([self.name, {key: self.keys[key] for key in self.keys if key not in DURATION_KEYS}])

    @property
    def is_piece(self) -> bool:
        """True if only a part of the recording is meant."""
        return self.offset_s is not None

    @property
    def reading_order(self) -> tuple[str, int, float]:
        """Key that sorts the pieces of each recording, so that it is read once; it is the same for whole recordings."""
        if self.offset_s is None:
            return "", 0, 0.0
        return self.location, self.bytes.start if self.bytes else 0, self.offset_s

    @property
    def shown_name(self) -> str:
        """Its location for messages, on one line whatever characters it has."""
        text = f"{self.location}: {self.name}" if self.bytes else self.location
        return on_one_line(text)


def digest_of(value: Any) -> str:
    """Return a digest of JSON values, 16 hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


ALLOWED = "allowed is a manifest of JSON lines, a folder, a pattern, a recording, or .tar archives"
METADATA = ("metadata.jsonl", "metadata.csv")
"""Manifests of Hugging Face's audiofolder, which may be in every folder."""
MANIFEST_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")
ARCHIVE = ".tar"
COMPRESSED = (".gz", ".tgz", ".bz2", ".zst", ".xz", ".lz4", ".zip", ".7z", ".rar")
_MOST_KEY_BYTES = 1 << 20

Found = tuple[str, BatchRecording]
"""The place of a recording in the input, for messages, and the recording."""
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
        Called with a line about repeated lines, and of links in archives, which are left out.

    Raises
    ------
    PlanError
        If it cannot be read, a line is no object or names no recording, a value is not allowed, two lines share an
        ``id`` and differ, or there is no recording. The message names file and line.
    """
    source = without_file_scheme(source)
    unique: dict[str, Found] = {}
    n_repeated = 0
    for where, recording in _read(source, note):
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
    recordings = [recording for _, recording in unique.values()]
    _set_side_names(recordings)
    return recordings


def _read(source: str, note: Note) -> Iterator[Found]:
    with_errors_of = source
    try:
        paths = expand(source)
        if paths is None:
            yield from _read_one(source, name_of(source), note)
            return
        if not paths:
            raise PlanError(f"{source}: no file is of this pattern")
        root = root_of(source)
        for path in _wanted(source, paths):
            with_errors_of = path
            yield from _read_one(path, relative_name(path, root), note, is_match=True)
    except ManifestError as error:
        raise PlanError(str(error)) from error
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
    return name_of(folder) == ROWS.folder and exists(join(parent_of(folder), PLAN_FILE))


def _read_one(source: str, name: str, note: Note, *, is_match: bool = False) -> Iterator[Found]:
    """Yield the recordings of an input that is no pattern, or of a file of one, which may have any suffix.

    It is named by its path from the root of the pattern.
    """
    suffix = suffix_of(source)
    if os.path.isdir(source):
        yield from _read_folder(source, note)
    elif suffix in MANIFEST_SUFFIXES:
        yield from _read_manifest(source, name.rpartition("/")[0])
    elif suffix == ARCHIVE:
        yield from _read_tar(source, name, note)
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
        yield from _read_folder(source, note)
    elif not os.path.exists(source):
        raise PlanError(f"{source}: no such file; {ALLOWED}")
    else:
        raise PlanError(f"{source}: is neither a manifest nor a recording by its suffix; {ALLOWED}")


def _read_folder(folder: str, note: Note) -> Iterator[Found]:
    files = dict(find_files(folder))
    manifests = _manifests(files)
    for parent, manifest in manifests.items():
        yield from _read_manifest(join(folder, manifest), parent.rstrip("/"))
    listed = tuple(manifests)
    for name, size in files.items():
        if name.startswith(listed):
            continue
        suffix = suffix_of(name)
        location = join(folder, name)
        if suffix in RECORDING_SUFFIXES:
            keys = {"audio_filepath": name}
            yield location, BatchRecording(location=location, name=name, keys=keys, size=size)
        elif suffix == ARCHIVE:
            yield from _read_tar(location, name, note)


def _manifests(files: Collection[str]) -> dict[str, str]:
    """Return the manifest of a folder, or else those of the folders in it, by their folders with a slash behind."""
    for name in (*METADATA, MANIFEST):
        if name in files:
            return {"": name}
    found: dict[str, str] = {}
    for name in METADATA:
        for path in files:
            folder, slash, last = path.rpartition("/")
            if last == name:
                found.setdefault(folder + slash, path)
    return dict(sorted(found.items()))


def _read_manifest(manifest: str, folder_name: str) -> Iterator[Found]:
    """Yield the recordings of a manifest; if there are several, they are named by its folder in the input."""
    folder = parent_of(manifest)
    for where, keys in read_rows(read_bytes(manifest), manifest, finite=True):
        path = next((keys[key] for key in PATH_KEYS if keys.get(key) and isinstance(keys[key], str)), None)
        if path is None:
            raise PlanError(f"{where}: names no recording; allowed is an object with {PATH_KEYS[0]}")
        if "\0" in path:
            raise PlanError(f"{where}: {path!r}: allowed is a path without null characters")
        name = path.replace(os.sep, "/")
        if folder_name and not (is_url(name) or os.path.isabs(name)):
            name = f"{folder_name}/{name}"
        yield where, checked_recording(keys, join(folder, path), name, where)


def checked_recording(keys: Json, location: str, name: str, where: str, **place: Any) -> BatchRecording:
    """Make the recording of a line, whose values are checked."""
    recording_id = get_field(keys, "id", where, (str, int), "a text or an integer", None)
    language: str | None = get_field(keys, "language", where, str, "a text", None)
    try:
        from_language_tag(language)
    except OptionError as error:
        raise ManifestError(f"{where}: {error}") from error
    duration_key = next((key for key in DURATION_KEYS if keys.get(key) is not None), DURATION_KEYS[0])
    offset_s, duration_s = (get_seconds(keys, key, where) for key in ("offset", duration_key))
    return BatchRecording(
        location=location,
        name=name,
        keys=keys,
        id="" if recording_id is None else str(recording_id),
        offset_s=None if offset_s is None else float(offset_s),
        duration_s=None if duration_s is None else float(duration_s),
        language=language or None,
        **place,
    )


def _read_tar(location: str, archive: str, note: Note) -> Iterator[Found]:
    """Yield the recordings of a tar archive, named by its path in the input and theirs in it.

    In the layout of webdataset, files whose names are equal up to the first dot are one sample: a recording, a
    ``.json`` with its keys, and a ``.txt`` with its text. Only headers, and those keys, are read. An offset beside a
    recording tells where it was cut out, and not what to cut out of it.
    """
    keys: dict[str, Json] = {}
    recordings: list[tuple[str, str, ByteRange]] = []
    links: list[str] = []
    try:
        with open_binary(location) as file, tarfile.open(fileobj=file, mode="r:") as archive_file:
            for member in archive_file:
                path = PurePosixPath(member.name)
                if (member.issym() or member.islnk()) and path.suffix.lower() in RECORDING_SUFFIXES:
                    links.append(on_one_line(member.name))
                if not member.isfile() or path.name.startswith("."):
                    continue
                key = f"{path.parent}/{path.name.partition('.')[0]}"
                suffix = path.suffix.lower()
                if suffix in RECORDING_SUFFIXES:
                    recordings.append((key, member.name, ByteRange(member.offset_data, member.size)))
                elif suffix in (".json", ".txt") and member.size <= _MOST_KEY_BYTES:
                    content = archive_file.extractfile(member)
                    beside = _keys_of(content.read() if content else b"", suffix, f"{location}: {member.name}")
                    keys.setdefault(key, {}).update(beside)
    except tarfile.TarError as error:
        raise PlanError(f"{location}: is not a whole tar archive without compression: {error}") from error
    if links:
        note(
            f"{location}: links to recordings are left out: {len(links)}, such as {links[0]}; "
            "'tar -h --hard-dereference' packs the recordings themselves"
        )
    for key, member_name, place in recordings:
        name = f"{archive}/{PurePosixPath(member_name)}"
        where = f"{location}: {member_name}"
        all_keys = {PATH_KEYS[0]: name, **keys.get(key, {})}
        recording = checked_recording(all_keys, location, name, where, bytes=place, size=place.size)
        yield where, replace(recording, offset_s=None)


def _keys_of(content: bytes, suffix: str, where: str) -> Json:
    if suffix == ".txt":
        return {"text": content.decode(errors="replace").strip()}
    return parse_object(decode(content, where), where, finite=True)


def _set_side_names(recordings: Sequence[BatchRecording]) -> None:
    """Name the side files of recordings, so that no two are the same on any system."""
    names = [_side_name(recording) for recording in recordings]
    counts = Counter(map(_as_some_disks_do, names))
    for recording, name in zip(recordings, names, strict=True):
        is_taken = counts[_as_some_disks_do(name)] > 1
        recording.side_name = f"{name}~{recording.digest[:8]}" if is_taken else name


def _as_some_disks_do(name: str) -> str:
    """Return a name as disks compare it that ignore case, how accents are encoded, and dots and spaces at the end."""
    return "/".join(part.rstrip(". ") for part in folded_name(name).split("/"))


def _side_name(recording: BatchRecording) -> str:
    parts = PurePosixPath(recording.name.partition("://")[2] or recording.name).parts
    inside = [
        _shortened(_NOT_EVERYWHERE.sub("_", part)) for part in parts if part not in ("/", "//", "..", ".")
    ]
    piece = ""
    if recording.offset_s is not None:
        end = "" if recording.duration_s is None else _seconds(recording.offset_s + recording.duration_s)
        piece = f"@{_seconds(recording.offset_s)}-{end}"
    return ("/".join(inside) or "recording") + piece


def _shortened(part: str) -> str:
    content = part.encode()
    return part if len(content) <= _MOST_BYTES else content[:_MOST_BYTES].decode(errors="ignore") + "~"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
