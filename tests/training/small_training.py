"""Trainings of tiny models in a folder, which can be stopped after any step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from harken.training.examples import ExampleStore
from harken.training.loop import TrainingCallbacks, train
from harken.training.run_directory import RunDirectory, snapshot


class SmallTraining(ABC):
    """A training; a subclass fills `windows` and `held_out`, with their examples in `store`."""

    windows: list[Any]
    held_out: list[Any]

    def __init__(self, folder: Path, options: Any) -> None:
        self.run_directory, self.options = RunDirectory(folder / "training"), options
        self.store = ExampleStore(self.run_directory.examples_folder)
        self.run_directory.create_or_resume({"task": "test"})
        self.best: list[int] = []

    @abstractmethod
    def objective(self) -> Any:
        """Return the objective of a training that begins."""

    def run(
        self, objective: Any = None, *, stop_after: int | None = None, **callbacks: Any
    ) -> tuple[bool, dict[str, torch.Tensor]]:
        """Train an objective; return whether it was completed, and what was trained."""
        objective, steps_done = objective or self.objective(), 0

        def on_step(done: int, total: int, loss: float) -> None:
            nonlocal steps_done
            steps_done = done

        standard: dict[str, Any] = {
            "on_step": on_step,
            "on_best": lambda point: self.best.append(point.step),
            "should_stop": lambda: steps_done == stop_after,
        }
        places = self.windows, self.held_out, self.store, self.run_directory
        completed = train(objective, *places, self.options, 5, TrainingCallbacks(**standard | callbacks))
        return completed, snapshot(objective.trainable)


def all_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two trainings have the same weights, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
