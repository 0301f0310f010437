"""The course of a training, from recordings to weights: windows, their examples, and steps of AdamW.

A training resumes exactly where it was interrupted. All randomness is stateless: the order of the windows follows from
seed and epoch, dropout and masks from seed and step. So weights, moments and the step number are all the state to save.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from harken.errors import CheckpointError, ManifestError, OptionError, OutputError, importing

with importing("torch", "training"):
    import torch

from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints import Checkpoint
from harken.manifests import Entry
from harken.text import Tokenizer
from harken.training.examples import Example, Labeller, label_windows
from harken.training.objective import Acceptance, Objective
from harken.training.options import DataOptions, TrainOptions
from harken.training.run_directory import EvalPoint, RunDirectory
from harken.training.windows import SpeechFinder, TrainingWindow, choose_held_out, make_windows, scan_recordings

BETAS = (0.9, 0.98)
MIN_LEARNING_RATE_RATIO = 0.05
"""Final learning rate, relative to the highest."""

TrainOptionsT = TypeVar("TrainOptionsT", bound=TrainOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask(Generic[TrainOptionsT]):
    """The data, options and output folder of a training."""

    checkpoint: Checkpoint  # the main model
    # Loads the main model on the CPU engine; called only if recordings have to be transcribed, aligned, or their
    # language detected.
    load_recognizer: Callable[[], Recognizer]
    tokenizer: Tokenizer  # of the main model
    entries: Sequence[Entry]  # recordings to learn from
    # Recordings to measure with; if there are none, some of `entries` are held out.
    held_out_entries: Sequence[Entry]
    out: Path  # of the result; its folder ``training`` holds the state
    data: DataOptions
    options: TrainOptionsT

    @property
    def run_directory(self) -> RunDirectory:
        """Folder of the state of the training."""
        return RunDirectory(self.out / "training")

    @property
    def source_folder(self) -> Path | None:
        """Folder of the files that go with the model; None for a format that is a single file."""
        is_file = self.checkpoint.format in ("openai", "ggml", "gguf")
        return None if is_file else self.checkpoint.path.parent

    def create_or_resume(self, **extra: Any) -> None:
        """Create the folder, or check that it holds this training and its result (see `RunDirectory`)."""
        self.run_directory.create_or_resume(
            {
                "model": self.checkpoint.weights.digest,
                "recordings": self._recordings_digest(),
                **asdict(self.data),
                **asdict(self.options),
                **extra,
            }
        )
        if self.run_directory.has_state and not any(self.out.glob("*.safetensors")):
            raise OutputError(f"{self.out}: its training has lost its result; allowed is another folder")

    def _recordings_digest(self) -> str:
        """Return the number of recordings, and a digest of their names and texts."""
        lists = [
            [(entry.name, entry.text) for entry in entries] for entries in (self.entries, self.held_out_entries)
        ]
        return f"{sum(map(len, lists))}, {hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCallbacks:
    """The callbacks of a training, from its preparation to its last step."""

    # Called during preparation with the name of a stage, the number of items done, and their total.
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    # Called with a message about every recording that is left out.
    on_warning: Callable[[str], None] = lambda text: None
    # Called after every step with the number of steps done, their total, and the mean loss of the step.
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None
    on_evaluation: Callable[[EvalPoint], None] = lambda point: None  # called with every measurement
    # Called before every step; True saves the state and ends the training.
    should_stop: Callable[[], bool] = lambda: False


def set_num_threads(threads: int | None) -> None:
    """Set the number of threads of PyTorch in the whole process; None leaves the choice to PyTorch."""
    if threads is not None:
        torch.set_num_threads(threads)


def prepare_examples(
    task: TrainingTask[Any],
    speech_finder: SpeechFinder,
    make_labeller: Callable[[], Labeller],
    callbacks: TrainingCallbacks,
    edit: Callable[[list[TrainingWindow]], list[TrainingWindow]] = list,
) -> tuple[list[TrainingWindow], list[TrainingWindow]]:
    """Split recordings into windows, edit and label them once; return those to learn from and the held-out ones.

    If either has no speech, there is a `ManifestError`, and the folder of the training is removed, so that it does not
    stand in the way.
    """
    directory = task.run_directory
    try:
        windows = directory.load_windows()
        if not windows:
            windows = edit(_make_windows(task, speech_finder, callbacks))
            _split(task, windows)  # fails before the windows are labelled
            directory.save_windows(windows)
        progress = partial(callbacks.on_progress, "windows")
        label_windows(windows, directory.examples, make_labeller, task.tokenizer.eot, progress)
        return _split(task, [window for window in windows if directory.examples.first_text(window)])
    except ManifestError:
        directory.discard()
        raise


def _make_windows(
    task: TrainingTask[Any], speech_finder: SpeechFinder, callbacks: TrainingCallbacks
) -> list[TrainingWindow]:
    held_out = task.held_out_entries or choose_held_out(task.entries, task.data.held_out_fraction)
    known = {*task.tokenizer.language_tokens} if task.tokenizer.multilingual else {"en"}
    entries = []
    for entry in (*task.entries, *task.held_out_entries):
        if entry.language in {None, *known}:
            entries.append(entry)
        else:
            callbacks.on_warning(f"{entry.path}: left out: the model knows no {entry.language}")
    progress = partial(callbacks.on_progress, "recordings")
    recordings = [*scan_recordings(entries, held_out, speech_finder, callbacks.on_warning, progress)]
    return [*make_windows(recordings, task.data)]


def _split(
    task: TrainingTask[Any], windows: Sequence[TrainingWindow]
) -> tuple[list[TrainingWindow], list[TrainingWindow]]:
    """Return the windows to learn from, and the held-out ones; a `ManifestError` says which of them are missing."""
    splits = (
        [window for window in windows if not window.held_out],
        [window for window in windows if window.held_out],
    )
    fraction = f"a held-out fraction of {task.data.held_out_fraction:g}"
    division = "held-out data that are given" if task.held_out_entries else fraction
    for purpose, split in zip(("learn from", "measure with"), splits, strict=True):
        if not split:
            raise ManifestError(
                f"there is no speech to {purpose}, in {len(task.entries)} recordings with {division}"
            )
    return splits


def train(
    task: TrainingTask[Any],
    objective: Objective,
    windows: Sequence[TrainingWindow],
    held_out: Sequence[TrainingWindow],
    load_example: Callable[[TrainingWindow], Example],
    export_best: Callable[[], None],
    callbacks: TrainingCallbacks,
    learning_rate_scale: Callable[[str], float] = lambda name: 1.0,
) -> bool:
    """Train from the state that the folder of the task holds; return False if it is stopped before all epochs are done.

    The `trainable` weights of the objective are changed in place; afterwards they are the last ones, not the best.
    Whenever they reach a new best on the held-out windows, `export_best` is called. `learning_rate_scale` returns the
    factor of a weight, by its name, on the learning rate.

    Raises
    ------
    CheckpointError
        If the loss is not finite in the beginning.
    OptionError
        If it becomes so; the best weights so far have been exported.
    """
    options, directory, seed = task.options, task.run_directory, task.data.seed
    n_steps = count_steps(options, len(windows))
    optimiser = _make_optimiser(objective, options, learning_rate_scale)
    state = directory.load_state()
    steps_done, losses = (state["step"], state["losses"]) if state else (0, [])
    if state:
        with torch.no_grad():
            for name, values in objective.trainable.items():
                values.copy_(state["weights"][name])
        optimiser.load_state_dict(state["optimiser"])
    points = [point for point in directory.load_learning_curve() if point.step <= steps_done]

    def evaluate() -> None:
        loss = sum(losses) / len(losses) if losses else None
        measured = sum(map(objective.evaluate, map(load_example, held_out)), Acceptance())
        point = EvalPoint(step=steps_done, loss=loss, held_out=measured)
        _check_finite(point.held_out.mean_loss, steps_done, options)
        points.append(point)
        losses.clear()
        callbacks.on_evaluation(point)
        if point is max(points, key=lambda candidate: candidate.held_out.ranking_key):
            export_best()
        directory.save_learning_curve(points)

    def save() -> None:
        weights = {name: values.detach() for name, values in objective.trainable.items()}
        state = {"step": steps_done, "losses": losses, "weights": weights}
        directory.save_state(state | {"optimiser": optimiser.state_dict()})

    if not points:
        evaluate()
        save()
    for batch in _batches(windows, options, seed, steps_done):
        if callbacks.should_stop():
            save()
            return False
        learning_rate = learning_rate_at(steps_done, n_steps, options)
        for param_group in optimiser.param_groups:
            param_group["lr"] = param_group["learning_rate_scale"] * learning_rate
        torch.manual_seed(seed * 1_000_003 + steps_done)
        loss = _train_step(
            objective, optimiser, map(load_example, batch), options.max_grad_norm, steps_done / n_steps
        )
        losses.append(loss)
        steps_done += 1
        _check_finite(loss, steps_done, options)
        callbacks.on_step(steps_done, n_steps, loss)
        if steps_done % options.eval_steps == 0 or steps_done == n_steps:
            evaluate()
            save()
    return True


def _check_finite(loss: float, step: int, options: TrainOptions) -> None:
    if math.isfinite(loss):
        return
    if not step:
        raise CheckpointError(
            f"the loss of the model is {loss} before the first step: see 'harken models check'"
        )
    raise OptionError(
        "learning_rate",
        options.learning_rate,
        f"a lower one, in another folder, as the loss is {loss} at step {step}",
    )


def count_steps(options: TrainOptions, n_windows: int) -> int:
    """Return the number of steps of all epochs."""
    return options.epochs * math.ceil(n_windows / options.batch_size)


def learning_rate_at(step: int, n_steps: int, options: TrainOptions) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine down."""
    warmup_steps = max(1, round(options.warmup_ratio * n_steps))
    if step < warmup_steps:
        return options.learning_rate * (step + 1) / warmup_steps
    cosine = (1 + math.cos(math.pi * (step - warmup_steps) / max(1, n_steps - warmup_steps))) / 2
    return options.learning_rate * (MIN_LEARNING_RATE_RATIO + (1 - MIN_LEARNING_RATE_RATIO) * cosine)


def _batches(
    windows: Sequence[TrainingWindow], options: TrainOptions, seed: int, first_step: int
) -> Iterator[list[TrainingWindow]]:
    """Yield the windows of each step from `first_step` on, in a new order each epoch."""
    n_steps = count_steps(options, len(windows))
    for step in range(first_step, n_steps):
        epoch, batch_index = divmod(step, n_steps // options.epochs)
        order = np.random.default_rng([seed, epoch]).permutation(len(windows))
        yield [windows[i] for i in order[batch_index * options.batch_size :][: options.batch_size]]


def _train_step(
    objective: Objective, optimiser: Any, examples: Iterable[Example], max_grad_norm: float, progress: float
) -> float:
    """Train on some examples and return the mean loss; each token counts alike, whatever its example."""
    total_loss, positions = 0.0, 0
    for example in examples:
        loss, n = objective.loss(example, progress)
        loss.backward()
        total_loss, positions = total_loss + float(loss.detach()), positions + n
    weights = list(objective.trainable.values())
    for values in weights:
        if values.grad is not None:
            values.grad /= positions
    torch.nn.utils.clip_grad_norm_(weights, max_grad_norm)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return total_loss / positions


def _make_optimiser(
    objective: Objective, options: TrainOptions, learning_rate_scale: Callable[[str], float]
) -> Any:
    """Return AdamW; weight decay excludes vectors, and positions, most of which a step does not use."""
    grouped_weights: dict[tuple[float, float], list[Tensor]] = {}
    for name, values in objective.trainable.items():
        decays = values.ndim > 1 and "positional" not in name
        group_key = learning_rate_scale(name), options.weight_decay if decays else 0.0
        grouped_weights.setdefault(group_key, []).append(values)
    param_groups = [
        {"params": values, "learning_rate_scale": scale, "weight_decay": decay}
        for (scale, decay), values in grouped_weights.items()
    ]
    return torch.optim.AdamW(param_groups, lr=options.learning_rate, betas=BETAS)
