"""Trainings of tiny models in a folder, which can be stopped after any step, and random examples for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harken.training.examples import Example, ExampleStore, TrainingSequence  # noqa: E402
from harken.training.run import TrainingCallbacks, train  # noqa: E402
from harken.training.run_directory import RunDirectory  # noqa: E402
from harken.training.windows import SpeechSpan, TrainingWindow  # noqa: E402
from tiny_models import DIMS  # noqa: E402

Weights = dict[str, torch.Tensor]


class SmallTraining:
    """A training; a subclass fills `windows` and `held_out`, with their examples in `store`, and has an `objective`."""

    windows: list[TrainingWindow]
    held_out: list[TrainingWindow]
    objective: Callable[[], Any]

    def __init__(self, folder: Path, options: Any) -> None:
        self.run_directory, self.options = RunDirectory(folder / "training"), options
        self.store = self.run_directory.examples
        self.run_directory.create_or_resume({"task": "test"})
        self.best: list[int] = []

    def run(self, *, stop_after: int | None = None, **changes: Any) -> tuple[bool, Weights]:
        """Train an objective; return whether it was completed, and what was trained."""
        objective, steps_done = self.objective(), 0

        def on_step(done: int, total: int, loss: float) -> None:
            nonlocal steps_done
            steps_done = done

        task: Any = SimpleNamespace(
            run_directory=self.run_directory, options=self.options, data=SimpleNamespace(seed=5)
        )
        callbacks = TrainingCallbacks(on_step=on_step, should_stop=lambda: steps_done == stop_after)
        places = self.windows, self.held_out, self.store.get
        completed = train(task, objective, *places, lambda: self.best.append(steps_done), callbacks, **changes)
        return completed, snapshot(objective.trainable)


def snapshot(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Return copies of the weights, which later steps do not change."""
    return {name: values.detach().clone() for name, values in weights.items()}


def all_equal(one: Weights, other: Weights) -> bool:
    """Return whether two trainings have the same weights, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def make_examples(store: ExampleStore, count: int, *, held_out: bool = False) -> list[TrainingWindow]:
    """Fill a store with random examples that a tiny decoder can memorise, and return their windows."""
    rng = np.random.default_rng([0, held_out])
    windows = []
    for i in range(count):
        span = SpeechSpan(path=f"{i}.wav", start_s=0.0, end_s=1.0)
        window = TrainingWindow(spans=(span,), group="tiny", language="en", held_out=held_out)
        store.put(window, make_example(rng, rows=1 + i % 2))
        windows.append(window)
    return windows


def make_example(rng: np.random.Generator, rows: int = 1, text: Sequence[int] = (7, 9, 7, 9, 3)) -> Example:
    """Draw encoder output, and some rows of the same text behind prompts of different lengths."""
    audio_features = rng.standard_normal((DIMS.n_audio_ctx, DIMS.n_audio_state)).astype(np.float16)
    sequences = tuple(
        TrainingSequence(
            tokens=np.array([1] * start + [*text]),
            text_start=start,
            teacher_states=rng.standard_normal((len(text), DIMS.n_text_state)).astype(np.float16),
        )
        for start in range(2, 2 + rows)
    )
    return Example(audio_features=audio_features, sequences=sequences)
