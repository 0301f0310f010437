"""What the driver asks of workers, and what they tell it; where they run makes no difference to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harken.batch.rows import ShardReport
from harken.batch.worker import Progress, Task
from harken.errors import OutputError

LOST = "WorkerLost"
"""Type of the error of a recording with which workers were lost."""


@dataclass(frozen=True, slots=True)
class Published:
    """A task is done, and its rows are in the output folder."""

    task: Task
    report: ShardReport


@dataclass(frozen=True, slots=True)
class Advanced:
    """A task goes on."""

    task: Task
    progress: Progress


@dataclass(frozen=True, slots=True)
class Broken:
    """A task was not finished, for a reason that is not an error of a recording as far as can be told.

    Parameters
    ----------
    task : Task
    reason : str
        One line.
    kind : str
        Type of the error in the row of a recording that is given up.
    unwritten : bool
        True if its rows could not be written, which is not cured by smaller shards.
    """

    task: Task
    reason: str
    kind: str = LOST
    unwritten: bool = False


def broken_by(task: Task, error: Exception) -> Broken:
    """Return that a task was not finished because of an exception."""
    kind = type(error).__name__
    if isinstance(error, OutputError):
        return Broken(task, str(error), kind, unwritten=True)
    return Broken(task, " ".join(f"{kind}: {error}".split()), kind)


Event = Published | Advanced | Broken
Handle = Callable[[Event], None]


class Workers(Protocol):
    """Some workers, each of which does one task at a time."""

    @property
    def n_free(self) -> int:
        """Number of workers that could take a task now."""
        ...

    @property
    def n_alive(self) -> int:
        """Number of workers that have loaded the model."""
        ...

    def start(self, task: Task) -> None:
        """Give a task to a free worker."""
        ...

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait until something has happened, or the time is over; `handle` is called with every event.

        Raises
        ------
        HarkenError
            If no worker can load the model.
        """
        ...

    def give_up(self, task: Task) -> None:
        """End the worker of a task that takes too long, which is broken then; does nothing where that cannot be."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
