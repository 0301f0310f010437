"""The course of a training, from recordings to weights: the steps that distillation and fine-tuning share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from harken.errors import BackendUnavailable, ManifestError, install_hint

try:
    import torch as _torch
except ImportError as error:
    raise BackendUnavailable(f"PyTorch cannot be imported ({error}): {install_hint('torch')}") from error

from harken.checkpoints import Checkpoint
from harken.manifests import Entry
from harken.text import Tokenizer
from harken.training.examples import ExampleStore
from harken.training.labelling import Labeller, label_windows
from harken.training.loop import TrainingCallbacks, train
from harken.training.objective import Objective
from harken.training.options import DataOptions, TrainOptions
from harken.training.run_directory import RunDirectory
from harken.training.windows import SpeechFinder, TrainingWindow, choose_held_out, make_windows, scan_recordings

TrainOptionsT = TypeVar("TrainOptionsT", bound=TrainOptions)
WindowEdit = Callable[[list[TrainingWindow]], list[TrainingWindow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask(Generic[TrainOptionsT]):
    """The data, options and output folder of a training.

    Attributes
    ----------
    checkpoint : Checkpoint
        The main model.
    tokenizer : Tokenizer
        Tokenizer of the main model.
    entries : sequence of Entry
        Recordings to learn from.
    held_out_entries : sequence of Entry
        Recordings to measure with; if there are none, some of `entries` are held out.
    out : Path
        Folder of the result; its folder ``training`` holds the state.
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
        """Folder of the state of the training."""
        return RunDirectory(self.out / "training")

    @property
    def source_folder(self) -> Path | None:
        """Folder of the files that go with the model, in the format of an export."""
        path = self.checkpoint.path
        return (path if path.is_dir() else path.parent) if self.checkpoint.format == "huggingface" else None

    def create_or_resume(self, **extra: Any) -> None:
        """Create the folder, or check that it holds this training (see `RunDirectory.create_or_resume`)."""
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
        """Return the number of recordings, and a digest of their names and texts."""
        lists = [
            [(entry.name, entry.text) for entry in entries] for entries in (self.entries, self.held_out_entries)
        ]
        return f"{sum(map(len, lists))}, {hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:16]}"


def prepare_examples(
    task: TrainingTask[Any],
    speech_finder: SpeechFinder,
    make_labeller: Callable[[], Labeller],
    callbacks: TrainingCallbacks,
    edit: WindowEdit = list,
) -> tuple[list[TrainingWindow], list[TrainingWindow]]:
    """Split recordings into windows, edit and label them once; return those to learn from and the held-out ones.

    Raises
    ------
    ManifestError
        If either has no speech; the folder of the training is removed, so that it does not stand in the way.
    """

    def progress(done: int, total: int) -> None:
        callbacks.on_progress("windows", done, total)

    store = ExampleStore(task.run_directory.examples_folder)
    try:
        windows = task.run_directory.load_windows()
        if not windows:
            windows = edit(_make_windows(task, speech_finder, callbacks))
            _split(task, windows)  # fails before the windows are labelled
            task.run_directory.save_windows(windows)
        label_windows(windows, store, make_labeller, task.tokenizer.eot, progress)
        return _split(task, [window for window in windows if store.first_text(window)])
    except ManifestError:
        task.run_directory.discard()
        raise


def _split(
    task: TrainingTask[Any], windows: Sequence[TrainingWindow]
) -> tuple[list[TrainingWindow], list[TrainingWindow]]:
    """Return the windows to learn from, and the held-out ones.

    Raises
    ------
    ManifestError
        If there are none.
    """
    splits = (
        [window for window in windows if not window.held_out],
        [window for window in windows if window.held_out],
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
    """Train, and export the weights at every new best; return True if the training was completed."""
    callbacks = replace(callbacks, on_best=lambda point: export_best())
    return train(
        objective, windows, held_out, store, task.run_directory, task.options, task.data.seed, callbacks
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
    """Set the number of threads of PyTorch in the whole process; None leaves the choice to PyTorch."""
    if threads is not None:
        _torch.set_num_threads(threads)
