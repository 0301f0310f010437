"""The progress bar: how much is done, how long it will take, how many times faster than the speech it is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn
from rich.text import Text


class SpeedColumn(ProgressColumn):
    """Seconds of the recording in a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}x real time" if speed else "", style="progress.data.speed")


class Bar:
    """A bar at the foot of the terminal, one recording after another."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeLeftColumn(),
            SpeedColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._task: TaskID | None = None
        self._progress.start()

    def show(self, label: str, done_s: float, total_s: float | None, finished: bool) -> None:
        """Move the bar; a label that is finished gives way to the next."""
        if self._task is None:
            self._task = self._progress.add_task(label, total=total_s)
        self._progress.update(self._task, completed=done_s)
        if finished:
            self._progress.remove_task(self._task)
            self._task = None

    def above(self, text: str) -> None:
        """Print above the bar, as it stands."""
        self._progress.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away."""
        self._progress.stop()
