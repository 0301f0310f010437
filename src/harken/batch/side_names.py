"""Names of the files beside the rows: paths like those of the recordings, and never the same for two of them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from harken.batch.recordings import BatchRecording

_NOT_EVERYWHERE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\\ud800-\udfff]')
"""Characters that some system does not allow in names."""
_MOST_BYTES = 160  # of a part of a path, which is longer by a suffix or two; systems allow 255


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
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return "/".join(part.rstrip(". ") for part in folded.split("/"))


def _side_name(recording: BatchRecording) -> str:
    parts = PurePosixPath(recording.name.partition("://")[2] or recording.name).parts
    inside = [
        _shortened(_NOT_EVERYWHERE.sub("_", part)) for part in parts if part not in ("/", "//", "..", ".")
    ]
    piece = ""
    if recording.offset_s is not None:
        end = "" if recording.duration_s is None else _time(recording.offset_s + recording.duration_s)
        piece = f"@{_time(recording.offset_s)}-{end}"
    return ("/".join(inside) or "recording") + piece


def _shortened(part: str) -> str:
    content = part.encode()
    return part if len(content) <= _MOST_BYTES else content[:_MOST_BYTES].decode(errors="ignore") + "~"


def _time(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
