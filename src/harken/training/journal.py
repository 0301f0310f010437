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
from harken.training.pieces import Piece

KIND, PLAN, STATE, CURVE = "training.json", "pieces.jsonl", "state.pt", "acceptance.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
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

    def line(self) -> str:
        """As a line of JSON, with what follows from the counts."""
        held_out = self.held_out
        figures = {
            "step": self.step,
            "loss": self.loss and round(self.loss, 4),
            "held_out_loss": round(held_out.mean_loss, 4),
            "acceptance": round(held_out.rate, 4),
            "tokens_per_forward": round(held_out.tokens_per_forward, 3),
        }
        return json.dumps(figures | {"held_out": asdict(held_out)})

    @classmethod
    def of(cls, line: str) -> Point:
        """Read a line back."""
        values = json.loads(line)
        return cls(step=values["step"], loss=values["loss"], held_out=Acceptance(**values["held_out"]))


@dataclass(frozen=True, slots=True)
class Journal:
    """The folder in which a training keeps what it needs to go on.

    Parameters
    ----------
    folder : Path
    """

    folder: Path

    @property
    def pieces(self) -> Path:
        """Where its examples lie."""
        return self.folder / "pieces"

    @property
    def companions(self) -> Path:
        """Where lies what a smaller model makes of them."""
        return self.folder / "companions"

    def begin(self, kind: Mapping[str, Any]) -> None:
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
        path, out = self.folder / KIND, self.folder.parent
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            for name in sorted(before.keys() | kind.keys()):
                if before.get(name) != kind.get(name):
                    raise OutputError(
                        f"{out}: holds a training with {name}={before.get(name)!r}, not {kind.get(name)!r}; "
                        "allowed is the same command, or another folder"
                    )
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OutputError(f"{out}: is there, and is no training; allowed is a new or an empty folder")
        else:
            for folder in (self.pieces, self.companions):
                _make(folder)
            write_atomic(path, [json.dumps(dict(kind), indent=1) + "\n"])

    def plan(self) -> list[Piece]:
        """Pieces that were decided on; none at the beginning."""
        path = self.folder / PLAN
        return [*map(Piece.of, path.read_text(encoding="utf-8").splitlines())] if path.is_file() else []

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Keep which pieces were decided on."""
        write_atomic(self.folder / PLAN, (f"{piece.line}\n" for piece in pieces))

    @property
    def begun(self) -> bool:
        """Whether a state has been saved."""
        return (self.folder / STATE).is_file()

    def load(self) -> dict[str, Any] | None:
        """State that was saved last; None at the beginning."""
        state: dict[str, Any] | None = (
            torch.load(self.folder / STATE, weights_only=True) if self.begun else None
        )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Save a state: the file is whole or the one before."""
        content = io.BytesIO()
        torch.save(dict(state), content)
        write_atomic(self.folder / STATE, [content.getvalue()])

    def curve(self) -> list[Point]:
        """All measurements, in order."""
        path = self.folder / CURVE
        return [*map(Point.of, path.read_text(encoding="utf-8").splitlines())] if path.is_file() else []

    def note(self, points: list[Point]) -> None:
        """Write all measurements anew: what a state that was gone back to does not know must go."""
        write_atomic(self.folder / CURVE, ["".join(f"{point.line()}\n" for point in points)])


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made a folder: {error.strerror or error}") from error


def snapshot(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they stand, apart from those that go on changing."""
    return {name: values.detach().clone() for name, values in weights.items()}
