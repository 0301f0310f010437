"""The folder of a training: its configuration, windows, state and learning curve."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from harken.errors import OutputError
from harken.files import make_folder, remove_abandoned, write_atomic
from harken.training.examples import ExampleStore
from harken.training.network import fastest_matmul_dtype
from harken.training.objective import Acceptance
from harken.training.windows import TrainingWindow

CONFIG_FILE, WINDOWS_FILE = "training.json", "windows.jsonl"
STATE_FILE, LEARNING_CURVE_FILE = "state.pt", "acceptance.jsonl"
DTYPE_FILE, DTYPES = "dtype.txt", {"float32": torch.float32, "bfloat16": torch.bfloat16}
LineT = TypeVar("LineT")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPoint:
    """One measurement on the held-out windows."""

    step: int  # steps done
    loss: float | None  # mean training loss per position since the last measurement
    held_out: Acceptance

    def to_json(self) -> str:
        """Return a line of JSON, with the rates that follow from the counts."""
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
        """Parse a line of JSON."""
        values = json.loads(line)
        return cls(step=values["step"], loss=values["loss"], held_out=Acceptance(**values["held_out"]))


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder that holds everything needed to resume a training."""

    folder: Path

    @property
    def examples(self) -> ExampleStore:
        """Examples of the main model."""
        return ExampleStore(self.folder / "examples")

    @property
    def small_model_examples(self) -> ExampleStore:
        """Examples of a smaller model."""
        return ExampleStore(self.folder / "small_model")

    def create_or_resume(self, config: Mapping[str, Any]) -> None:
        """Create the folder, or raise an `OutputError` if it holds something else than the same training.

        The configuration is everything that determines the result: model, recordings, options.
        """
        config_path, out = self.folder / CONFIG_FILE, self.folder.parent
        config = json.loads(json.dumps(dict(config)))  # as the file gives it back: tuples are lists
        folders = self.examples.folder, self.small_model_examples.folder
        for folder in (out, self.folder, *folders):
            remove_abandoned(folder)
        if os.path.isfile(config_path):  # unlike Path.is_file, not an error for a name that is too long
            with _naming(config_path):
                stored_config = dict(json.loads(config_path.read_text(encoding="utf-8")))
            for name in sorted(stored_config.keys() | config.keys()):
                if stored_config.get(name) != config.get(name):
                    raise OutputError(
                        f"{out}: holds a training with {name}={stored_config.get(name)!r}, not {config.get(name)!r}; "
                        "allowed is the same command, or another folder"
                    )
        elif os.path.exists(out) and not _is_empty_folder(out):
            raise OutputError(f"{out}: is there, and is no training; allowed is a new or an empty folder")
        for folder in folders:  # somebody may have removed the examples, which are large
            make_folder(folder)
        write_atomic(config_path, [json.dumps(config, indent=1) + "\n"])

    def discard(self) -> None:
        """Remove a training that has not begun to learn, with its folder if that is empty then."""
        if self.has_state:
            return
        for store in (self.examples, self.small_model_examples):
            shutil.rmtree(store.folder, ignore_errors=True)
        for file in (CONFIG_FILE, WINDOWS_FILE, DTYPE_FILE):
            (self.folder / file).unlink(missing_ok=True)
        with suppress(OSError):  # one holds something else
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def matmul_dtype(self) -> torch.dtype:
        """Return the type in which matrices are multiplied: what was the fastest when the training began.

        It was measured: measured again on a machine that is busy, it could be another one.
        """
        path = self.folder / DTYPE_FILE
        if not path.is_file():
            write_atomic(path, [str(fastest_matmul_dtype()).removeprefix("torch.")])
        with _naming(path):
            return DTYPES[path.read_text(encoding="utf-8")]

    def load_windows(self) -> list[TrainingWindow]:
        """Return the stored windows; none at the beginning."""
        return self._load_lines(WINDOWS_FILE, TrainingWindow.from_json)

    def save_windows(self, windows: Sequence[TrainingWindow]) -> None:
        """Store the windows."""
        write_atomic(self.folder / WINDOWS_FILE, (f"{window.json_line}\n" for window in windows))

    @property
    def has_state(self) -> bool:
        """True if a state has been saved."""
        return (self.folder / STATE_FILE).is_file()

    def load_state(self) -> dict[str, Any] | None:
        """Return the state saved last; None at the beginning."""
        path = self.folder / STATE_FILE
        with _naming(path):
            state: dict[str, Any] | None = torch.load(path, weights_only=True) if self.has_state else None
        return state

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Save a state; the file is replaced atomically."""
        content = io.BytesIO()
        torch.save(dict(state), content)
        write_atomic(self.folder / STATE_FILE, [content.getvalue()])

    def load_learning_curve(self) -> list[EvalPoint]:
        """Return all measurements, in order."""
        return self._load_lines(LEARNING_CURVE_FILE, EvalPoint.from_json)

    def save_learning_curve(self, points: list[EvalPoint]) -> None:
        """Write all measurements again, without those after a state that was resumed."""
        write_atomic(self.folder / LEARNING_CURVE_FILE, (f"{point.to_json()}\n" for point in points))

    def _load_lines(self, name: str, parse: Callable[[str], LineT]) -> list[LineT]:
        path = self.folder / name
        with _naming(path):
            return [*map(parse, path.read_text(encoding="utf-8").splitlines())] if path.is_file() else []


def _is_empty_folder(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except OSError:
        return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn any error in reading a file of a training to an `OutputError` that names the file.

    All these files are written whole, so something else has changed it.
    """
    try:
        yield
    except Exception as error:  # what a damaged file leads to in torch.load has no common class
        reason = " ".join(f"{error}".split()) or type(error).__name__
        raise OutputError(
            f"{path}: cannot be read: {reason}; allowed is another folder, or this file as it was"
        ) from error
