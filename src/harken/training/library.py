"""What is learnt from pieces, on disk: what has been prepared is not prepared again."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harken.atomic import write_atomic
from harken.training.examples import Example, Row
from harken.training.pieces import Piece


@dataclass(frozen=True, slots=True)
class Library:
    """Examples in a folder, each in a file of its own.

    Parameters
    ----------
    folder : Path
        Of one model.
    """

    folder: Path

    def path(self, piece: Piece) -> Path:
        """Where the example of a piece lies, or will."""
        return self.folder / f"{piece.key}.npz"

    def has(self, piece: Piece) -> bool:
        """Whether a piece has been prepared."""
        return self.path(piece).is_file()

    def put(self, piece: Piece, example: Example) -> None:
        """Write an example; its file is whole or absent."""
        arrays: dict[str, Any] = {
            "heard": example.heard,
            "first": np.array([row.first for row in example.rows], np.int64),
        }
        for i, row in enumerate(example.rows):
            arrays |= {f"tokens.{i}": row.tokens, f"states.{i}": row.states}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_atomic(self.path(piece), [content.getvalue()])

    def get(self, piece: Piece) -> Example:
        """Read an example."""
        with np.load(self.path(piece)) as file:
            rows = tuple(
                Row(tokens=file[f"tokens.{i}"], first=int(first), states=file[f"states.{i}"])
                for i, first in enumerate(file["first"])
            )
            return Example(heard=file["heard"], rows=rows)

    def said(self, piece: Piece) -> list[int]:
        """Tokens of the first text of an example, without the prompt."""
        with np.load(self.path(piece)) as file:
            said: list[int] = file["tokens.0"][file["first"][0] :].tolist() if len(file["first"]) else []
            return said


@dataclass(frozen=True, slots=True)
class Likened(Library):
    """Examples of which the texts were read by another decoder too, whose states a student should have.

    Parameters
    ----------
    folder : Path
    others : Library
        What the other decoder makes of the same pieces and texts.
    """

    others: Library

    def get(self, piece: Piece) -> Example:
        """Read an example, and from the others what it should be like."""
        example = Library.get(self, piece)
        theirs = self.others.get(piece).rows
        rows = (replace(row, like=other.states) for row, other in zip(example.rows, theirs, strict=True))
        return replace(example, rows=tuple(rows))
