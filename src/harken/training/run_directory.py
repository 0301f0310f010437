"""A training on disk: what it is, how far it has come, and how well it did on the way."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harken.atomic import write_atomic
from harken.errors import OutputError
from harken.training.acceptance import Acceptance
from harken.training.windows import TrainingWindow

CONFIG_FILE, WINDOWS_FILE, STATE_FILE, LEARNING_CURVE_FILE = (
    "training.json",
    "windows.jsonl",
    "state.pt",
    "acceptance.jsonl",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPoint:
    """One measurement.

    Attributes
    ----------
    step : int
        Steps done.
    loss : float or None
        Mean training loss a position since the last measurement.
    held_out : Acceptance
    """

    step: int
    loss: float | None
    held_out: Acceptance

    def to_json(self) -> str:
        """As a line of JSON, with what follows from the counts."""
        held_out = self.held_out
        summary = {
            "step": self.step,
            "loss": self.loss and round(self.loss, 4),
            "held_out_loss": round(held_out.mean_loss, 4),
            "acceptance": round(held_out.acceptance_rate, 4),
            "tokens_per_forward": round(held_out.tokens_per_forward, 3),
        }
        return json.dumps(summary | {"held_out": asdict(held_out)})

    @classmethod
    def from_json(cls, line: str) -> EvalPoint:
        """Read a line back."""
        values = json.loads(line)
        return cls(step=values["step"], loss=values["loss"], held_out=Acceptance(**values["held_out"]))


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder in which a training keeps what it needs to go on.

    Parameters
    ----------
    folder : Path
    """

    folder: Path

    @property
    def examples_folder(self) -> Path:
        """Where its examples lie."""
        return self.folder / "examples"

    @property
    def small_model_folder(self) -> Path:
        """Where lies what a smaller model makes of them."""
        return self.folder / "small_model"

    def create_or_resume(self, config: Mapping[str, Any]) -> None:
        """Make the folder, or make sure that it holds this very training.

        Parameters
        ----------
        kind : mapping
            What decides about the result: model, recordings, options.

        Raises
        ------
        OutputError
            If something else is there.
        """
        config_path, out = self.folder / CONFIG_FILE, self.folder.parent
        if config_path.is_file():
            stored_config = json.loads(config_path.read_text(encoding="utf-8"))
            for name in sorted(stored_config.keys() | config.keys()):
                if stored_config.get(name) != config.get(name):
                    raise OutputError(
                        f"{out}: holds a training with {name}={stored_config.get(name)!r}, not {config.get(name)!r}; "
                        "allowed is the same command, or another folder"
                    )
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OutputError(f"{out}: is there, and is no training; allowed is a new or an empty folder")
        else:
            for folder in (self.examples_folder, self.small_model_folder):
                _make_folder(folder)
            write_atomic(config_path, [json.dumps(dict(config), indent=1) + "\n"])

    def load_windows(self) -> list[TrainingWindow]:
        """Pieces that were decided on; none at the beginning."""
        path = self.folder / WINDOWS_FILE
        return (
            [*map(TrainingWindow.from_json, path.read_text(encoding="utf-8").splitlines())]
            if path.is_file()
            else []
        )

    def save_windows(self, windows: Sequence[TrainingWindow]) -> None:
        """Keep which pieces were decided on."""
        write_atomic(self.folder / WINDOWS_FILE, (f"{piece.json_line}\n" for piece in windows))

    @property
    def has_state(self) -> bool:
        """Whether a state has been saved."""
        return (self.folder / STATE_FILE).is_file()

    def load_state(self) -> dict[str, Any] | None:
        """State that was saved last; None at the beginning."""
        state: dict[str, Any] | None = (
            torch.load(self.folder / STATE_FILE, weights_only=True) if self.has_state else None
        )
        return state

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Save a state: the file is whole or the one before."""
        content = io.BytesIO()
        torch.save(dict(state), content)
        write_atomic(self.folder / STATE_FILE, [content.getvalue()])

    def load_learning_curve(self) -> list[EvalPoint]:
        """All measurements, in order."""
        path = self.folder / LEARNING_CURVE_FILE
        return (
            [*map(EvalPoint.from_json, path.read_text(encoding="utf-8").splitlines())] if path.is_file() else []
        )

    def save_learning_curve(self, points: list[EvalPoint]) -> None:
        """Write all measurements anew: what a state that was gone back to does not know must go."""
        write_atomic(self.folder / LEARNING_CURVE_FILE, ["".join(f"{point.to_json()}\n" for point in points)])


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made a folder: {error.strerror or error}") from error


def snapshot(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they stand, apart from those that go on changing."""
    return {name: values.detach().clone() for name, values in weights.items()}
