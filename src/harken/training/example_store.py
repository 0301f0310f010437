"""What is learnt from pieces, on disk: what has been prepared is not prepared again."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harken.atomic import write_atomic
from harken.training.examples import Example, TrainingSequence
from harken.training.windows import TrainingWindow


@dataclass(frozen=True, slots=True)
class ExampleStore:
    """Examples in a folder, each in a file of its own.

    Parameters
    ----------
    folder : Path
        Of one model.
    """

    folder: Path

    def path(self, window: TrainingWindow) -> Path:
        """Where the example of a piece lies, or will."""
        return self.folder / f"{window.key}.npz"

    def has(self, window: TrainingWindow) -> bool:
        """Whether a piece has been prepared."""
        return self.path(window).is_file()

    def put(self, window: TrainingWindow, example: Example) -> None:
        """Write an example; its file is whole or absent."""
        arrays: dict[str, Any] = {
            "audio_features": example.audio_features,
            "text_start": np.array([row.text_start for row in example.sequences], np.int64),
        }
        for i, sequence in enumerate(example.sequences):
            arrays |= {f"tokens.{i}": sequence.tokens, f"states.{i}": sequence.teacher_states}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_atomic(self.path(window), [content.getvalue()])

    def get(self, window: TrainingWindow) -> Example:
        """Read an example."""
        with np.load(self.path(window)) as file:
            rows = tuple(
                TrainingSequence(
                    tokens=file[f"tokens.{i}"], text_start=int(first), teacher_states=file[f"states.{i}"]
                )
                for i, first in enumerate(file["text_start"])
            )
            return Example(audio_features=file["audio_features"], sequences=rows)

    def first_text(self, window: TrainingWindow) -> list[int]:
        """Tokens of the first text of an example, without the prompt."""
        with np.load(self.path(window)) as file:
            said: list[int] = (
                file["tokens.0"][file["text_start"][0] :].tolist() if len(file["text_start"]) else []
            )
            return said


@dataclass(frozen=True, slots=True)
class StateMatchedStore(ExampleStore):
    """Examples of which the texts were read by another decoder too, whose states a student should have.

    Parameters
    ----------
    folder : Path
    others : Library
        What the other decoder makes of the same pieces and texts.
    """

    target_store: ExampleStore

    def get(self, window: TrainingWindow) -> Example:
        """Read an example, and from the others what it should be like."""
        example = ExampleStore.get(self, window)
        target_sequences = self.target_store.get(window).sequences
        sequences = (
            replace(sequence, target_states=target.teacher_states)
            for sequence, target in zip(example.sequences, target_sequences, strict=True)
        )
        return replace(example, sequences=tuple(sequences))
