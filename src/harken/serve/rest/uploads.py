"""Uploaded recordings, in unnamed temporary files."""

from __future__ import annotations

import io
from typing import BinaryIO, cast

from harken.audio.container import open_audio

USUAL_BYTES_PER_S = 4_000
"""Bytes of a second of compressed speech, to guess the length of a recording whose header does not tell it."""


class Upload(io.RawIOBase):
    """An uploaded recording, under a name that tells nothing of the client or the server.

    Parameters
    ----------
    file : BinaryIO
        Closed with it.
    n_bytes : int
    """

    name = "file"

    def __init__(self, file: BinaryIO, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._file = file

    @property
    def source(self) -> BinaryIO:
        """The same, as a source of audio."""
        return cast(BinaryIO, self)

    @property
    def usual_duration_s(self) -> float:
        """Seconds that a recording of this size usually has."""
        return self.n_bytes / USUAL_BYTES_PER_S

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def probe_duration_s(upload: Upload) -> float | None:
    """Return how long a recording is by its header, or None if that does not tell.

    Raises
    ------
    AudioError
        If it is no recording.
    """
    upload.seek(0)
    with open_audio(upload.source) as decoder:
        duration_s = decoder.duration_s
    upload.seek(0)
    return None if duration_s is None else max(0.0, duration_s)
