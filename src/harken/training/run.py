"""From recordings to weights: what distilling and fine-tuning have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from harken.errors import BackendUnavailable, ManifestError

try:
    import torch as _torch
except ImportError as error:
    raise BackendUnavailable(f"PyTorch cannot be imported ({error}): pip install 'harken[torch]'") from error

from harken.checkpoints import Checkpoint
from harken.evaluation import Entry
from harken.text import Tokenizer
from harken.training.example_store import ExampleStore
from harken.training.labelling import Labeller, label_windows
from harken.training.loop import LoopCallbacks, train
from harken.training.objective import Objective
from harken.training.options import DataOptions, TrainOptions
from harken.training.recordings import SpeechFinder, choose_held_out, scan_recordings
from harken.training.run_directory import RunDirectory
from harken.training.windows import TrainingWindow, make_windows

TrainOptionsT = TypeVar("TrainOptionsT", bound=TrainOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask(Generic[TrainOptionsT]):
    """What to learn from, how, and where to.

    Attributes
    ----------
    checkpoint : Checkpoint
        The main model.
    tokenizer : Tokenizer
        Its own.
    entries : sequence of Entry
        Recordings to learn from.
    measured : sequence of Entry
        Recordings to measure with; where there are none, some of `entries` are.
    out : Path
        Folder of the result; in it, ``training`` holds what is needed to go on.
    data : DataOptions
    options : TrainOptions
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    entries: Sequence[Entry]
    held_out_entries: Sequence[Entry]
    out: Path
    data: DataOptions
    options: TrainOptionsT

    @property
    def run_directory(self) -> RunDirectory:
        """What is kept of it."""
        return RunDirectory(self.out / "training")

    @property
    def source_folder(self) -> Path | None:
        """Folder of the files that go with the model, in the format of an export."""
        path = self.checkpoint.path
        return (path if path.is_dir() else path.parent) if self.checkpoint.format == "huggingface" else None

    def create_or_resume(self, **extra: Any) -> None:
        """Take hold of the folder (see `Journal.begin`)."""
        self.run_directory.create_or_resume(
            {
                "model": self.checkpoint.weights.digest,
                "recordings": self._recordings_digest(),
                **asdict(self.data),
                **asdict(self.options),
                **extra,
            }
        )

    def _recordings_digest(self) -> str:
        """How many there are, and a digest of their names and texts."""
        lists = [
            [(entry.name, entry.text) for entry in entries] for entries in (self.entries, self.held_out_entries)
        ]
        return f"{sum(map(len, lists))}, {hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCallbacks:
    """Who looks on.

    Parameters
    ----------
    progress : callable
        Told of a stage by name, how many of its things are done, and of how many.
    note : callable
        Told of recordings that are left out, and why.
    watch : Watch
        Of the training itself.
    """

    on_progress: Callable[[str, int, int], None] = lambda stage, done, of: None
    on_warning: Callable[[str], None] = lambda text: None
    loop: LoopCallbacks = field(default_factory=LoopCallbacks)


def prepare_examples(
    task: TrainingTask[Any],
    speech_finder: SpeechFinder,
    make_labeller: Callable[[], Labeller],
    callbacks: TrainingCallbacks,
) -> tuple[list[TrainingWindow], list[TrainingWindow]]:
    """Cut recordings into pieces and have them answered, once; pieces to learn from, and to measure with.

    Raises
    ------
    ManifestError
        If there is nothing for one of the two.
    """
    windows = task.run_directory.load_windows()
    if not windows:
        windows = _make_windows(task, speech_finder, callbacks)
        task.run_directory.save_windows(windows)
    store = ExampleStore(task.run_directory.examples_folder)

    def progress(done: int, total: int) -> None:
        callbacks.on_progress("windows", done, total)

    label_windows(windows, store, make_labeller, task.tokenizer.eot, progress)
    labelled = [window for window in windows if store.first_text(window)]
    splits = (
        [piece for piece in labelled if not piece.held_out],
        [piece for piece in labelled if piece.held_out],
    )
    for purpose, split in zip(("learn from", "measure with"), splits, strict=True):
        if not split:
            raise ManifestError(f"there is no speech to {purpose}, in {len(task.entries)} recordings")
    return splits


def run_training(
    task: TrainingTask[Any],
    objective: Objective,
    windows: Sequence[TrainingWindow],
    held_out: Sequence[TrainingWindow],
    store: ExampleStore,
    export_best: Callable[[], None],
    callbacks: TrainingCallbacks,
) -> bool:
    """Train, and write the weights whenever they are the best so far; whether it came to its end."""
    loop_callbacks = replace(callbacks.loop, on_best=lambda point: export_best())
    return train(
        objective, windows, held_out, store, task.run_directory, task.options, task.data.seed, loop_callbacks
    )


def _make_windows(
    task: TrainingTask[Any], speech_finder: SpeechFinder, callbacks: TrainingCallbacks
) -> list[TrainingWindow]:
    held_out = {entry.name for entry in task.held_out_entries} or choose_held_out(
        task.entries, task.data.held_out_fraction
    )
    entries = [
        entry for entry in (*task.entries, *task.held_out_entries) if _language_is_known(task, entry, callbacks)
    ]

    def progress(done: int, total: int) -> None:
        callbacks.on_progress("recordings", done, total)

    return list(
        make_windows(
            [*scan_recordings(entries, held_out, speech_finder, callbacks.on_warning, progress)], task.data
        )
    )


def _language_is_known(task: TrainingTask[Any], entry: Entry, callbacks: TrainingCallbacks) -> bool:
    known = task.tokenizer.language_tokens if task.tokenizer.multilingual else ("en",)
    if entry.language is None or entry.language in known:
        return True
    callbacks.on_warning(f"{entry.path}: left out: the model knows no {entry.language}")
    return False


def set_num_threads(threads: int | None) -> None:
    """Compute with so many threads in the whole process; None leaves it to PyTorch."""
    if threads is not None:
        _torch.set_num_threads(threads)
