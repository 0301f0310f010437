"""A worker of a batch: it loads the model once, and transcribes one shard after another."""

from __future__ import annotations

import getpass
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, cast

from harken.api import Recognizer, load, load_diarizer
from harken.backend_factory import gpu_in_turn
from harken.batch.inputs import BatchRecording
from harken.batch.plan import Recipe, Shard, weights_digest
from harken.batch.read_ahead import FetchedFile, ReadAhead
from harken.batch.rows import (
    ShardReport,
    error_row,
    publish_shard,
    publish_side_files,
    read_rows,
    shift_times,
    transcript_row,
)
from harken.batch.store import Store
from harken.errors import AudioError, Cancelled, CheckpointError, OptionError
from harken.manifests import Json
from harken.speakers.diarizer import Diarizer
from harken.speakers.voices import read_voices
from harken.transcribe import Callbacks
from harken.transcription import Transcription
from harken.types import WINDOW_S

LOAD_LOCK_S = 600.0
"""Most time that a worker waits for another one to load the model."""
GRACE_S = 120.0
"""Time that a recording may take beside its share for each second of audio."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Everything that a worker needs, wherever it runs."""

    recipe: Recipe
    folder: str  # output folder, by path or URL
    threads: int | None  # of its engine
    time_limit: float  # most seconds of work for a second of audio
    number: int = 0  # among the workers of its machine: with the device "cuda" each takes the next GPU


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a shard: the audio that has been read, and the recordings that are done."""

    audio_s: float = 0.0
    rows: int = 0


Report = Callable[[Progress], None]


class Worker:
    """A loaded model that transcribes shards.

    Errors are those of `harken.load`; a `CheckpointError` also says that the model is another one than in the plan.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._store = Store(settings.folder)
        self._recognizer = _load_once_a_node(settings)
        self._diarizer = _load_diarizer(settings)

    def transcribe(self, shard: Shard, report: Report = lambda progress: None) -> ShardReport:
        """Transcribe a shard and publish its rows; report the progress after every window.

        It raises whatever is not the fault of one recording, or cannot be told to be: the driver may try again.
        """
        began_s = time.monotonic()
        done = {recording.digest: row for recording, row in self._rows(shard.recordings, report)}
        rows = [done[recording.digest] for recording in shard.recordings]
        if shard.retry:
            new = {row["id"]: row for row in rows}
            rows = [new.get(row["id"], row) for row in read_rows(self._store, shard.retry)]
        work_s = time.monotonic() - began_s
        return publish_shard(
            self._store, self._settings.recipe, shard.name, rows, work_s, replaces=bool(shard.retry)
        )

    def _rows(
        self, recordings: Sequence[BatchRecording], report: Report
    ) -> Iterator[tuple[BatchRecording, Json]]:
        """Transcribe recordings; those of one language, for which the options are the same, together."""
        read_s: dict[str, float] = {}
        n_rows = 0

        def tell() -> None:
            report(Progress(sum(read_s.values()), n_rows))

        def on_progress(recording_id: str, done_s: float, finished: bool) -> None:
            read_s[recording_id] = done_s
            tell()

        in_order = sorted(recordings, key=lambda each: (each.language or "", each.reading_order))
        with closing(ReadAhead(in_order)) as ahead:
            pairs = zip(in_order, ahead.files, strict=True)
            for _, same_language in groupby(pairs, key=lambda pair: pair[0].language):
                group, files_of_group = zip(*same_language, strict=True)
                for recording, row in self._rows_of_group(group, files_of_group, on_progress):
                    n_rows += 1
                    tell()
                    yield recording, row

    def _rows_of_group(
        self,
        recordings: Sequence[BatchRecording],
        files: Sequence[FetchedFile],
        on_progress: Callable[[str, float, bool], None],
    ) -> Iterator[tuple[BatchRecording, Json]]:
        recipe = self._settings.recipe
        limits = [_TimeLimit(self._settings.time_limit * recipe.batch_size) for _ in recordings]
        language = recordings[0].language or recipe.options.language
        try:
            transcriptions = deque(
                self._recognizer.transcribe_many(
                    cast(Sequence[BinaryIO], files),
                    replace(recipe.options, language=language, batch_size=recipe.batch_size),
                    callbacks={
                        index: Callbacks(
                            on_progress=partial(on_progress, recording.id), is_cancelled=limit.is_over
                        )
                        for index, (recording, limit) in enumerate(zip(recordings, limits, strict=True))
                    },
                    diarizer=self._diarizer,
                )
            )
        except OptionError as error:  # a language that the model does not know
            for recording in recordings:
                yield recording, error_row(recording, "OptionError", f"{recording.shown_name}: {error}")
            return
        for recording, file, limit in zip(recordings, files, limits, strict=True):
            limit.transcription = transcription = transcriptions.popleft()
            yield recording, self._row(recording, transcription, limit)
            file.close()

    def _row(self, recording: BatchRecording, transcription: Transcription, limit: _TimeLimit) -> Json:
        """Transcribe a recording; an error of its own is its row."""
        recipe = self._settings.recipe
        if recipe.options.channels == "apart" and recording.offset_s is not None:
            reason = "channels='apart': allowed is mixed for pieces of recordings"
            return error_row(recording, "OptionError", f"{recording.location}: {reason}")
        try:
            transcript = shift_times(transcription.result(), recording.offset_s or 0.0)
            side_files = publish_side_files(self._store, recipe, recording, transcript)
        except AudioError as error:
            return error_row(recording, type(error).__name__, str(error))
        except Cancelled:
            return error_row(recording, "TimeLimit", f"{recording.location}: {limit.reason}")
        return transcript_row(recording, transcript, recipe.name, side_files)


class _TimeLimit:
    """The time that a recording may take: so many seconds for each second of audio that has been read."""

    def __init__(self, seconds_a_second: float) -> None:
        self.transcription: Transcription | None = None
        self._seconds_a_second = seconds_a_second
        self._began_s: float | None = None

    def is_over(self) -> bool:
        """Return whether the time is over; it begins with the first call."""
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        return now_s - self._began_s > self._allowed_s

    @property
    def reason(self) -> str:
        """The limit in words."""
        return f"took over {self._allowed_s:.0f} s; allowed are {self._seconds_a_second:g} s a second of audio"

    @property
    def _allowed_s(self) -> float:
        read_s = self.transcription.read_s if self.transcription else 0.0
        return allowed_time_s(read_s, self._seconds_a_second)


def allowed_time_s(audio_s: float, seconds_a_second: float) -> float:
    """Return the time that audio of some length may take."""
    return GRACE_S + seconds_a_second * max(audio_s, WINDOW_S)


def _load_once_a_node(settings: WorkerSettings) -> Recognizer:
    """Load the model while no other worker of this machine does, so that one downloads it and builds its graphs."""
    with _only_loader():
        load_arguments = {**settings.recipe.load, "threads": settings.threads}
        if load_arguments.get("device") == "cuda":
            load_arguments["device"] = gpu_in_turn(settings.number)
        digest = weights_digest(load_arguments)
        if digest != settings.recipe.weights:
            raise CheckpointError(
                f"{load_arguments['model']}: has other weights here ({digest[:16]}) than in the plan "
                f"({settings.recipe.weights[:16]})"
            )
        recognizer = load(**load_arguments)
    recognizer.resolve_options(settings.recipe.options)  # refused here, and not once for every recording
    return recognizer


def _load_diarizer(settings: WorkerSettings) -> Diarizer | None:
    """Load what tells speakers apart, where the recipe wants it."""
    if settings.recipe.speakers is None:
        return None
    arguments = {**settings.recipe.speakers}
    voices = arguments.pop("voices", None)
    with _only_loader():
        diarizer = load_diarizer(**arguments, threads=settings.threads)
    return diarizer.with_voices(read_voices(voices)) if voices else diarizer


@contextmanager
def _only_loader() -> Iterator[None]:
    """Wait until no other worker of this user loads a model; it only saves work, so not for ever."""
    from filelock import FileLock, Timeout

    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()
    lock = FileLock(Path(tempfile.gettempdir(), f"harken-load-{user}.lock"), timeout=LOAD_LOCK_S)
    with suppress(Timeout, OSError, NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
