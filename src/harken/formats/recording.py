"""How a transcript refers to its recording."""

from __future__ import annotations

import base64
import mimetypes
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harken.errors import AudioError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingLink:
    """Where the recording of a transcript lies, for forms that play it.

    Parameters
    ----------
    path : Path
        The recording.
    folder : Path
        Where the transcript will lie.
    """

    path: Path
    transcript_folder: Path

    @property
    def url(self) -> str:
        """URL of the recording as seen from the transcript: a relative one, if both are on one drive."""
        try:
            relative = os.path.relpath(self.path, self.transcript_folder)
        except ValueError:  # another drive of Windows
            return self.path.absolute().as_uri()
        return quote(relative.replace(os.sep, "/"), safe="/")

    @property
    def data_url(self) -> str:
        """The recording as a ``data:`` URL.

        Raises
        ------
        AudioError
            If it cannot be read.
        """
        mime_type = mimetypes.guess_type(self.path.name)[0] or "audio/mpeg"  # players look into it all the same
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise AudioError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        return f"data:{mime_type};base64,{base64.b64encode(content).decode()}"
