"""The journal of a recording: the outcome of each of its windows, so that a transcription that was cut short goes on.

The recording is read and its speech found anew, but windows of the journal are not decoded again. All that decoding
changes is in their outcomes, so the text is what it would have been without the interruption.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from errno import ENOSPC
from pathlib import Path
from typing import Any, BinaryIO

from harken.audio import AudioSource
from harken.errors import HarkenError, OptionError, OutputError
from harken.files import lock, wrap_os_errors
from harken.formats import as_json, segment_from_json
from harken.results import UnwrittenSpeech
from harken.transcribe.window_chain import LanguageState, WindowOutcome

_BEGINNING = b'{"harken": '
"""Of the first line of a journal; a file with another one is somebody's, and is left as it is."""


class Journal:
    """A file with a line of JSON for each decoded window, behind a line with the key.

    It is opened when the first window is asked for, and locked until it is closed.

    Parameters
    ----------
    path : Path
    key : mapping
        Everything that decides the text, as JSON values, harken's version first; a journal with another key is begun
        anew.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self._path = path
        self._key = json.loads(json.dumps(key))
        self._file: BinaryIO | None = None
        self._outcomes: dict[tuple[int, int], WindowOutcome] = {}

    def take(self, chain: int, offset: int) -> WindowOutcome | None:
        """Return the outcome of a window, once; None if it has not been decoded.

        Raises
        ------
        OutputError
            If the file cannot be opened or is no journal, or another process transcribes the same recording.
        """
        self._open()
        return self._outcomes.pop((chain, offset), None)

    def append(self, outcome: WindowOutcome) -> None:
        """Append the outcome of a window that has been decoded.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self._write_line(_to_json(outcome))

    def close(self) -> None:
        """Close the file, which stays."""
        if self._file:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            with wrap_os_errors(self._path):
                self._file = self._path.open("a+b", buffering=0)
                if problem := _problem_of(self._file):
                    self.close()
                    raise OutputError(f"{self._path}: {problem}")
                self._read(self._file)
        return self._file

    def _read(self, file: BinaryIO) -> None:
        """Read the outcomes; a line that a killed process left unfinished is cut off, as is all behind it."""
        file.seek(0)
        valid_bytes = 0
        for number, line in enumerate(file):
            try:
                document = json.loads(line) if line.endswith(b"\n") else None
                if number == 0:
                    if document != self._key:
                        break
                else:
                    outcome = _from_json(document)
                    self._outcomes[outcome.chain, outcome.offset] = outcome
            except (HarkenError, ValueError, TypeError, KeyError, RecursionError):
                break
            valid_bytes += len(line)
        file.truncate(valid_bytes)
        if not valid_bytes:
            self._write_line(self._key)

    def _write_line(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document, allow_nan=False).encode() + b"\n"
        file = self._open()
        with wrap_os_errors(self._path):
            written = file.write(line)
            if written != len(line):
                file.truncate(file.tell() - written)
                raise OSError(ENOSPC, "No space left on device")


def _problem_of(file: BinaryIO) -> str | None:
    """Return why a file cannot be the journal; None if it can."""
    if not lock(file, where_unsupported=True):
        return "another process transcribes this recording"
    file.seek(0)
    if not _BEGINNING.startswith(file.read(len(_BEGINNING))):
        return "is no journal; allowed are a journal and a new file"
    return None


def _to_json(outcome: WindowOutcome) -> dict[str, Any]:
    return {
        "chain": outcome.chain,
        "offset": outcome.offset,
        "segments": [as_json(segment) for segment, _ in outcome.segments],
        "drop_reasons": [reason for _, reason in outcome.segments],
        "next_offset": outcome.next_offset,
        "previous_tokens": outcome.previous_tokens,
        "last_speech_s": outcome.last_speech_s,
        "draft_tokens": outcome.draft_tokens,
        "unwritten": [asdict(speech) for speech in outcome.unwritten],
        "language": asdict(outcome.language),
    }


def _from_json(document: Any) -> WindowOutcome:
    segments = map(segment_from_json, document["segments"])
    return WindowOutcome(
        chain=document["chain"],
        offset=document["offset"],
        language=LanguageState(**document["language"]),
        segments=tuple(zip(segments, document["drop_reasons"], strict=True)),
        next_offset=document["next_offset"],
        previous_tokens=tuple(document["previous_tokens"]),
        last_speech_s=document["last_speech_s"],
        draft_tokens=tuple(document["draft_tokens"]),
        unwritten=tuple(UnwrittenSpeech(**speech) for speech in document["unwritten"]),
    )


def recording_identity(audio: AudioSource) -> list[int]:
    """Return size and time of a recording, which differ if it has been changed.

    Raises
    ------
    OptionError
        If it is not given by its path, so that it cannot be read again.
    """
    if not isinstance(audio, str | os.PathLike) or audio == "-":
        raise OptionError("journals", audio, "journals of recordings that are given by their paths")
    try:
        status = os.stat(audio)
    except OSError:
        return []  # opening it will say why it cannot be read
    return [status.st_size, status.st_mtime_ns]
