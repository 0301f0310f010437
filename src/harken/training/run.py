"""From recordings to weights: what distilling and fine-tuning have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from harken.errors import BackendUnavailable, ManifestError

try:
    import torch as _torch
except ImportError as error:
    raise BackendUnavailable(f"PyTorch cannot be imported ({error}): pip install 'harken[torch]'") from error

from harken.checkpoints import Checkpoint
from harken.evaluation import Entry
from harken.text import Tokenizer
from harken.training.journal import Journal
from harken.training.library import Library
from harken.training.loop import Watch, train
from harken.training.objective import Objective
from harken.training.options import DataOptions, TrainOptions
from harken.training.pieces import Piece, make_pieces
from harken.training.prepare import Ask, prepare
from harken.training.recordings import Listen, choose_held_out, survey

How = TypeVar("How", bound=TrainOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[How]):
    """What to learn from, how, and where to.

    Attributes
    ----------
    checkpoint : Checkpoint
        The main model.
    tokenizer : Tokenizer
        Its own.
    entries : sequence of Entry
        Recordings to learn from.
    measured : sequence of Entry
        Recordings to measure with; where there are none, some of `entries` are.
    out : Path
        Folder of the result; in it, ``training`` holds what is needed to go on.
    data : DataOptions
    options : TrainOptions
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    entries: Sequence[Entry]
    measured: Sequence[Entry]
    out: Path
    data: DataOptions
    options: How

    @property
    def journal(self) -> Journal:
        """What is kept of it."""
        return Journal(self.out / "training")

    @property
    def beside(self) -> Path | None:
        """Folder of the files that go with the model, in the format of an export."""
        path = self.checkpoint.path
        return (path if path.is_dir() else path.parent) if self.checkpoint.format == "huggingface" else None

    def begin(self, **more: Any) -> None:
        """Take hold of the folder (see `Journal.begin`)."""
        self.journal.begin(
            {
                "model": self.checkpoint.weights.digest,
                "recordings": self._recordings(),
                **asdict(self.data),
                **asdict(self.options),
                **more,
            }
        )

    def _recordings(self) -> str:
        """How many there are, and a digest of their names and texts."""
        lists = [[(entry.name, entry.text) for entry in entries] for entries in (self.entries, self.measured)]
        return f"{sum(map(len, lists))}, {hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who looks on.

    Parameters
    ----------
    progress : callable
        Told of a stage by name, how many of its things are done, and of how many.
    note : callable
        Told of recordings that are left out, and why.
    watch : Watch
        Of the training itself.
    """

    progress: Callable[[str, int, int], None] = lambda stage, done, of: None
    note: Callable[[str], None] = lambda text: None
    watch: Watch = field(default_factory=Watch)


def collect(
    task: Task[Any], listen: Listen, whom: Callable[[], Ask], audience: Audience
) -> tuple[list[Piece], list[Piece]]:
    """Cut recordings into pieces and have them answered, once; pieces to learn from, and to measure with.

    Raises
    ------
    ManifestError
        If there is nothing for one of the two.
    """
    pieces = task.journal.plan()
    if not pieces:
        pieces = _plan(task, listen, audience)
        task.journal.keep(pieces)
    library = Library(task.journal.pieces)

    def progress(done: int, of: int) -> None:
        audience.progress("pieces", done, of)

    prepare(pieces, library, whom, task.tokenizer.eot, progress)
    useful = [piece for piece in pieces if library.said(piece)]
    parts = [piece for piece in useful if not piece.held_out], [piece for piece in useful if piece.held_out]
    for kind, part in zip(("learn from", "measure with"), parts, strict=True):
        if not part:
            raise ManifestError(f"there is no speech to {kind}, in {len(task.entries)} recordings")
    return parts


def learn(
    task: Task[Any],
    objective: Objective,
    pieces: Sequence[Piece],
    held_out: Sequence[Piece],
    library: Library,
    write: Callable[[], None],
    audience: Audience,
) -> bool:
    """Train, and write the weights whenever they are the best so far; whether it came to its end."""
    watch = replace(audience.watch, best=lambda point: write())
    return train(objective, pieces, held_out, library, task.journal, task.options, task.data.seed, watch)


def _plan(task: Task[Any], listen: Listen, audience: Audience) -> list[Piece]:
    apart = {entry.name for entry in task.measured} or choose_held_out(task.entries, task.data.held_out)
    entries = [entry for entry in (*task.entries, *task.measured) if _understood(task, entry, audience)]

    def progress(done: int, of: int) -> None:
        audience.progress("recordings", done, of)

    return list(make_pieces([*survey(entries, apart, listen, audience.note, progress)], task.data))


def _understood(task: Task[Any], entry: Entry, audience: Audience) -> bool:
    known = task.tokenizer.language_tokens if task.tokenizer.multilingual else ("en",)
    if entry.language is None or entry.language in known:
        return True
    audience.note(f"{entry.path}: left out: the model knows no {entry.language}")
    return False


def use_threads(threads: int | None) -> None:
    """Compute with so many threads in the whole process; None leaves it to PyTorch."""
    if threads is not None:
        _torch.set_num_threads(threads)
