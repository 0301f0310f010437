"""A recogniser for batches, also in worker processes and in actors: the content of a file says what becomes of it.

A file holds its text, behind a word for what happens to the worker that reads it:

- ``kill``: it is killed.
- ``hang``: it does nothing for ten minutes.
- ``memory``: there is too little memory.
- ``crash``: an exception that no recording explains.
- ``wait``: it waits until there is a file `GO` beside it.

The first four happen each time, or with ``once`` behind the word only the first time.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from harken.batch import run, worker
from harken.batch.read_ahead import FetchedFile
from harken.batch.worker import WorkerSettings
from harken.errors import AudioError
from harken.results import Transcript
from harken.transcribe import Callbacks, TranscribeOptions
from transcripts import segment

LOG = "transcribed.log"
"""File beside the recordings with a line for each that was read, in the order in which they were."""
GO = "go"
HANG_S = 600.0


def write_archive(folder: Path, contents: Mapping[str, str | None]) -> Path:
    """Write recordings of a minute each, as their lines say, and return their manifest; None leaves one out."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_text(content, encoding="utf-8")
    lines = [{"audio_filepath": name, "duration": 60, "number": number} for number, name in enumerate(contents)]
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return manifest


def read_rows(out: Path) -> dict[str, Any]:
    """Return the rows of an output folder by their recordings, each of which has one."""
    lines = [
        line
        for file in (out / "shards").glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    rows = {row["audio_filepath"]: row for row in map(json.loads, lines)}
    assert len(rows) == len(lines)
    return rows


def transcribed(folder: Path) -> list[str]:
    """Return the names of the recordings of a folder that were read, as often as they were."""
    log = folder / LOG
    return log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []


class ArchiveRecognizer:
    """Reads recordings as the module says."""

    model = "archive"

    def resolve_options(self, options: TranscribeOptions) -> TranscribeOptions:
        return options

    def transcribe_many(
        self,
        audios: Sequence[FetchedFile],
        options: TranscribeOptions,
        *,
        callbacks: Mapping[int, Callbacks],
        diarizer: tuple[str, ...] | None = None,
    ) -> list[ArchiveTranscription]:
        speakers = diarizer or ()
        return [ArchiveTranscription(audio, callbacks[index], speakers) for index, audio in enumerate(audios)]


class ArchiveTranscription:
    """The transcription of a file that says what becomes of it."""

    read_s = 1.0

    def __init__(self, audio: FetchedFile, callbacks: Callbacks, speakers: tuple[str, ...]) -> None:
        self._audio, self._callbacks, self._speakers = audio, callbacks, speakers

    def result(self) -> Transcript:
        content = self._audio.read().decode()
        path = Path(self._audio.name)
        with (path.parent / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{path.name}\n")
        if not content:
            raise AudioError(f"{path}: is empty")
        first, *others = content.split()
        if others[:1] == ["once"]:
            mark = path.with_suffix(".mark")
            first = "" if mark.exists() else first
            mark.touch()
        if first == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif first == "hang":
            time.sleep(HANG_S)
        elif first == "memory":
            raise MemoryError
        elif first == "crash":
            raise RuntimeError("a fault of the engine")
        elif first == "wait":
            end_s = time.monotonic() + HANG_S
            while not (path.parent / GO).exists():
                assert time.monotonic() < end_s
                time.sleep(0.01)
        self._callbacks.on_progress(self.read_s, True)
        segments = (segment(0.0, 1.0, content, speakers=self._speakers),)
        return Transcript(segments=segments, language="en", duration_s=1.0, model=ArchiveRecognizer.model)


def load(**arguments: object) -> ArchiveRecognizer:
    """Load it in place of a model."""
    return ArchiveRecognizer()


@dataclass(frozen=True, kw_only=True)
class ArchiveWorkerSettings(WorkerSettings):
    """Settings that put the recogniser into the process that receives them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, ({field.name: getattr(self, field.name) for field in fields(self)},)


@dataclass(frozen=True, kw_only=True)
class InterruptedWorkerSettings(ArchiveWorkerSettings):
    """Settings with which a Ctrl-C comes to the process that receives them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_interrupted, super().__reduce__()[1]


def _receive_interrupted(values: dict[str, Any]) -> WorkerSettings:
    os.kill(os.getpid(), signal.SIGINT)
    return _receive(values)


def _receive(values: dict[str, Any]) -> WorkerSettings:
    worker.load = load
    return WorkerSettings(**values)


def use_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all workers of batches load it."""
    monkeypatch.setattr(worker, "load", load)
    monkeypatch.setattr(run, "WorkerSettings", ArchiveWorkerSettings)
