"""The html format: a page that plays the recording, highlights the words, and needs neither server nor network.

The page contains the json format as data, from which its script builds the text. The complete transcript can therefore
be read back from the page, and no text of the transcript is ever markup.
"""

from __future__ import annotations

import mimetypes
import os
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

from harken.errors import AudioError
from harken.formats.base import Layout, TranscriptFormat, printable
from harken.formats.json_format import JsonFormat
from harken.results import Segment, Transcript

_DATA = Path(__file__).parent / "data"
_BLOCK_BYTES = 3 * 2**18  # a multiple of 3, so that the base64 of the blocks can be joined

_PLAYER = """<audio id="audio" controls preload="metadata" src="$url"></audio>
<p id="failure" role="alert" hidden>The recording cannot be played: it is not beside this page any more, or of a
kind that this browser does not know.</p>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingLink:
    """The location of a recording relative to its transcript, for formats that play it.

    Parameters
    ----------
    path : Path
        The recording.
    transcript_folder : Path
        Folder of the transcript.
    """

    path: Path
    transcript_folder: Path

    @property
    def url(self) -> str:
        """URL of the recording, relative to the transcript if both are on one drive."""
        try:
            relative = os.path.relpath(self.path, self.transcript_folder)
        except ValueError:  # another drive on Windows
            return self.path.absolute().as_uri()
        return quote(os.fsencode(relative.replace(os.sep, "/")), safe="/")  # a name need not be UTF-8

    def data_url_chunks(self) -> Iterator[str]:
        """Yield the recording as a ``data:`` URL; an `AudioError` if it cannot be read, or changes meanwhile."""
        # The fallback type does not matter: players detect the format themselves.
        yield f"data:{mimetypes.guess_type(self.path.name)[0] or 'audio/mpeg'};base64,"
        try:
            with self.path.open("rb") as file:
                before = os.fstat(file.fileno())
                unread = before.st_size
                while block := file.read(min(unread, _BLOCK_BYTES)):
                    unread -= len(block)
                    yield b64encode(block).decode()
                after = os.fstat(file.fileno())
        except OSError as error:
            raise AudioError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if unread or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise AudioError(f"{self.path}: changed while it was put into the page")


class HtmlFormat(TranscriptFormat):
    """The format of the page, which plays the recording, if there is one."""

    def __init__(self, layout: Layout, recording: RecordingLink | None) -> None:
        self._json = JsonFormat()
        self._embed_audio = layout.embed_audio
        self._recording = recording
        self._page_start, _, rest = _read_asset("page.html").partition("$player")
        self._page_middle, _, self._page_end = rest.partition("$data")

    def header(self) -> str:
        """Return the page up to its data, as a whole; see `header_chunks`."""
        return "".join(self.header_chunks())

    def header_chunks(self) -> Iterator[str]:
        """Yield the page up to its data, with the recording if `Layout.embed_audio` is set (see `data_url_chunks`)."""
        style, script = _read_asset("page.css"), _read_asset("page.js")
        title = escape(printable(self._recording.path.name) if self._recording else "Transcript")
        yield Template(self._page_start).substitute(
            title=title, style=style, style_hash=csp_hash(style), script_hash=csp_hash(script)
        )
        yield from self._player()
        yield self._page_middle + _escape_json(self._json.header())

    def segment(self, segment: Segment) -> str:
        """Return the data of one segment."""
        return _escape_json(self._json.segment(segment))

    def footer(self, transcript: Transcript) -> str:
        """Return all other data, and the script that shows it."""
        frame = Template(self._page_end).substitute(script=_read_asset("page.js"))
        return _escape_json(self._json.footer(transcript)) + frame

    def _player(self) -> Iterator[str]:
        if self._recording is None:
            return
        before, _, after = _PLAYER.partition("$url")
        yield before
        if self._embed_audio:
            yield from self._recording.data_url_chunks()  # of letters, digits and +/;:=, so nothing is to be escaped
        else:
            yield escape(self._recording.url)
        yield after


def _read_asset(name: str) -> str:
    return (_DATA / name).read_text(encoding="utf-8")


def csp_hash(source: str) -> str:
    """Return the hash with which the content security policy allows a script or style."""
    return f"sha256-{b64encode(sha256(source.encode()).digest()).decode()}"


def _escape_json(json: str) -> str:
    """Escape every ``<``, all of which are in strings, so that no text ends the script element."""
    return json.replace("<", "\\u003c")
