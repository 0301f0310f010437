"""The recordings of a batch: what is known of each before it is opened, and the names of the files beside its row."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from harken.errors import printable
from harken.files import folded_name

DURATION_KEYS = ("duration", "seconds")
"""Keys for a length in seconds, of NeMo and of harken's own manifests."""
PATH_KEYS = ("audio_filepath", "audio", "file_name")
"""Keys for the path of a recording: of NeMo, of harken's own manifests, of Hugging Face's audiofolder."""
Json = dict[str, Any]
_NOT_EVERYWHERE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\\ud800-\udfff]')
"""Characters that some system does not allow in names."""
_MOST_BYTES = 160  # of a part of a path, which is longer by a suffix or two; systems allow 255


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The place of a file in an archive.

    Parameters
    ----------
    start, size : int
        Bytes.
    """

    start: int
    size: int


@dataclass(frozen=True, kw_only=True)
class BatchRecording:
    """A recording, or a piece of one.

    Parameters
    ----------
    location : str
        Path or URL of the file; of the archive, if it lies in one.
    name : str
        Its path in the input, with slashes.
    keys : mapping
        The line of the manifest, which its row carries.
    id : str
        Given by the manifest; by default its digest.
    offset_s : float or None
        Start of the piece in seconds; None if it begins with the recording.
    duration_s : float or None
        Length in seconds, if the manifest gives it.
    language : str or None
        Language named by the manifest.
    bytes : ByteRange or None
        Its place in an archive.
    side_name : str
        Path of its files beside the rows, without suffix.
    size : int or None
        Bytes, where a listing told.
    estimate_s : float
        Estimated length in seconds, for the plan; that of the manifest, if it gives one.
    """

    location: str
    name: str
    keys: Mapping[str, Any]
    id: str = ""
    offset_s: float | None = None
    duration_s: float | None = None
    language: str | None = None
    bytes: ByteRange | None = None
    side_name: str = field(default="", compare=False)
    size: int | None = field(default=None, compare=False)
    estimate_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.digest)
        if not self.estimate_s:
            object.__setattr__(self, "estimate_s", self.duration_s or 0.0)

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

    def with_known(self, **known: Any) -> BatchRecording:
        """Return it with more that is known of it, such as ``estimate_s``, and the same digest."""
        other = copy(self)  # with the digest, which is dear for many
        vars(other).update(known)
        return other

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
        return printable(text)


def digest_of(value: Any) -> str:
    """Return a digest of JSON values, 16 hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def with_side_names(recordings: Sequence[BatchRecording]) -> list[BatchRecording]:
    """Return recordings with names for their side files, of which no two are the same on any system."""
    names = [_side_name(recording) for recording in recordings]
    counts = Counter(map(_as_some_disks_do, names))
    return [
        recording.with_known(
            side_name=name if counts[_as_some_disks_do(name)] == 1 else f"{name}~{recording.digest[:8]}",
        )
        for recording, name in zip(recordings, names, strict=True)
    ]


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
