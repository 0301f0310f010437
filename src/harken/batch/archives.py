"""Tar archives in the layout of webdataset: files whose names are equal up to the first dot are one sample."""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from harken.batch.locations import open_binary
from harken.batch.manifests import parse_object
from harken.batch.recordings import ByteRange
from harken.errors import PlanError

_MOST_KEY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ArchiveSample:
    """A recording in an archive.

    Parameters
    ----------
    name : str
        Path in the archive.
    keys : dict
        Content of the ``.json`` beside it; that of a ``.txt`` is ``text``.
    bytes : ByteRange
    """

    name: str
    keys: dict[str, Any]
    bytes: ByteRange


def read_archive(location: str, suffixes: Collection[str]) -> Iterator[ArchiveSample]:
    """Yield the recordings of a tar archive, by path or URL; only headers, and the keys beside them, are read.

    Parameters
    ----------
    location : str
    suffixes : collection of str
        Suffixes of recordings, in small letters.

    Raises
    ------
    PlanError
        If it is no tar archive, or a ``.json`` is no object.
    OSError
        If it cannot be read.
    """
    keys: dict[str, dict[str, Any]] = {}
    recordings: list[tuple[str, str, ByteRange]] = []
    try:
        with open_binary(location) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                path = PurePosixPath(member.name)
                if path.name.startswith("."):
                    continue
                key = f"{path.parent}/{path.name.partition('.')[0]}"
                suffix = path.suffix.lower()
                if suffix in suffixes:
                    recordings.append((key, member.name, ByteRange(member.offset_data, member.size)))
                elif suffix in (".json", ".txt") and member.size <= _MOST_KEY_BYTES:
                    content = archive.extractfile(member)
                    text = content.read() if content else b""
                    keys.setdefault(key, {}).update(_keys_of(text, suffix, f"{location}: {member.name}"))
    except tarfile.TarError as error:
        raise PlanError(f"{location}: is not a whole tar archive without compression: {error}") from error
    for key, name, place in recordings:
        yield ArchiveSample(name=name, keys=keys.get(key, {}), bytes=place)


def _keys_of(content: bytes, suffix: str, where: str) -> dict[str, Any]:
    if suffix == ".txt":
        return {"text": content.decode(errors="replace").strip()}
    try:
        return parse_object(content.decode("utf-8-sig"))
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error
