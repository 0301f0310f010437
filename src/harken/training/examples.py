"""Training examples: the encoder output of a window, token sequences with the teacher's states, and files of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats, Ints
from harken.errors import OutputError
from harken.files import write_atomic
from harken.training.windows import TrainingWindow

HalfFloats = NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One text of a window.

    Attributes
    ----------
    tokens : ndarray of shape (n,), int64
        Prompt, text and end of text.
    text_start : int
        Start of the text behind the prompt: the tokens from here on are to be predicted.
    teacher_states : ndarray of shape (n - text_start, n_text_state), float16; or (0, n_text_state)
        Final states of the main decoder where it predicts ``tokens[text_start:]``. Multiplied with the token
        embedding they give all of its logits. Empty where no decoder was run.
    target_states : ndarray of shape (n - text_start, n_text_state of the student), float16; or None
        States that the student should have there, where these are not those of the main decoder.
    """

    tokens: Ints
    text_start: int
    teacher_states: HalfFloats
    target_states: HalfFloats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One window to learn from.

    Attributes
    ----------
    audio_features : ndarray of shape (positions, n_audio_state) or (n_mels, frames), float16; or (samples,), float32
        The output of the encoder; or where the encoder is trained too its input, or the audio of which it hears parts.
    sequences : tuple of TrainingSequence
        Empty where the transcript of the main model was rejected.
    """

    audio_features: HalfFloats | Floats
    sequences: tuple[TrainingSequence, ...]


@dataclass(frozen=True, slots=True)
class ExampleStore:
    """Examples in a folder, each in a file of its own.

    Parameters
    ----------
    folder : Path
        Folder of the examples of one model.
    """

    folder: Path

    def path(self, window: TrainingWindow) -> Path:
        """Return the path of the file for a window, whether or not it exists."""
        return self.folder / f"{window.key}.npz"

    def has(self, window: TrainingWindow) -> bool:
        """Return whether the example of a window is stored."""
        return self.path(window).is_file()

    @contextmanager
    def _open(self, window: TrainingWindow) -> Iterator[Any]:
        """Open the file of an example.

        Raises
        ------
        OutputError
            If it cannot be read.
        """
        path = self.path(window)
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                yield file
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise OutputError(
                f"{path}: is damaged ({error}); delete it, and the same command makes it anew"
            ) from error

    def put(self, window: TrainingWindow, example: Example) -> None:
        """Write an example; its file is complete or absent."""
        arrays: dict[str, Any] = {
            "audio_features": example.audio_features,
            "text_start": np.array([sequence.text_start for sequence in example.sequences], np.int64),
        }
        for i, sequence in enumerate(example.sequences):
            arrays |= {f"tokens.{i}": sequence.tokens, f"states.{i}": sequence.teacher_states}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_atomic(self.path(window), [content.getvalue()])

    def get(self, window: TrainingWindow) -> Example:
        """Read an example."""
        with self._open(window) as file:
            sequences = tuple(
                TrainingSequence(
                    tokens=file[f"tokens.{i}"], text_start=int(text_start), teacher_states=file[f"states.{i}"]
                )
                for i, text_start in enumerate(file["text_start"])
            )
            return Example(audio_features=file["audio_features"], sequences=sequences)

    def first_text(self, window: TrainingWindow) -> list[int]:
        """Return the tokens of the first text of an example, without the prompt."""
        with self._open(window) as file:
            text: list[int] = (
                file["tokens.0"][file["text_start"][0] :].tolist() if len(file["text_start"]) else []
            )
            return text


@dataclass(frozen=True, slots=True)
class StateMatchedStore(ExampleStore):
    """Examples with the states of another decoder for the same texts, as targets for the student.

    Parameters
    ----------
    folder : Path
    target_store : ExampleStore
        Examples of the other decoder for the same windows and texts.
    """

    target_store: ExampleStore

    def get(self, window: TrainingWindow) -> Example:
        """Read an example, and its target states from the other store."""
        example = ExampleStore.get(self, window)
        target_sequences = self.target_store.get(window).sequences
        sequences = (
            replace(sequence, target_states=target.teacher_states)
            for sequence, target in zip(example.sequences, target_sequences, strict=True)
        )
        return replace(example, sequences=tuple(sequences))
