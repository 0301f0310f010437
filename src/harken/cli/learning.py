"""What ``harken distill`` and ``harken finetune`` have in common: options, a bar, and an end in order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from harken.api import Recognizer, load
from harken.cli.exits import Stop
from harken.cli.inputs import make_folder
from harken.cli.options import flag, listed, options_of
from harken.cli.root import SIGNALS
from harken.cli.screen import say
from harken.training.options import DataOptions, TrainOptions, chosen

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from harken.checkpoints import Checkpoint
    from harken.training.journal import Point
    from harken.training.run import Audience, Task

How = TypeVar("How", bound=TrainOptions)

files = partial(flag, section="Files")


def _path(value: str) -> str:
    return value


_path.__name__ = "path"


def learning_options(kind: type[TrainOptions]) -> Callable[[Any], Any]:
    """Add what both commands are asked for, and how to train."""
    decorators = (
        listed(
            "--data", item=_path, section="Files", required=True, help="Manifests and folders to learn from."
        ),
        listed(
            "--held-out-data",
            item=_path,
            section="Files",
            help="Manifests and folders to measure with, instead of a share of the data.",
        ),
        files(
            "--out",
            metavar="DIR",
            required=True,
            type=click.Path(path_type=Path),
            help="Folder for the result.",
        ),
        files("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar."),
        files("--threads", type=click.IntRange(1, 1024), help="Threads to compute with."),
        files("--revision", help="Branch, tag or commit of a Hugging Face repository."),
        files("--download/--no-download", default=True, help="Whether a model may be fetched."),
        options_of(DataOptions),
        options_of(kind),
    )
    return lambda command: reduce(lambda command, decorate: decorate(command), reversed(decorators), command)


def make_task(model: str, given: dict[str, Any], kind: type[How], *, needs_text: bool) -> Task[How]:
    """Find everything that was named, and say what is wrong before any work is done."""
    from harken.text import Tokenizer
    from harken.training.recordings import read_entries
    from harken.training.run import Task, use_threads

    use_threads(given["threads"])
    data, options = chosen(DataOptions, given), chosen(kind, given)
    note = partial(click.echo, err=True)
    entries = read_entries(given["data"], note, needs_text=needs_text)
    measured = read_entries(given["held_out_data"], note, needs_text=needs_text)
    checkpoint = find_model(model, given)
    make_folder(given["out"].parent)
    return Task(
        checkpoint=checkpoint,
        tokenizer=Tokenizer.open(checkpoint.vocabulary, checkpoint.dims.n_vocab),
        entries=entries,
        measured=measured,
        out=given["out"],
        data=data,
        options=options,
    )


def find_model(model: str, given: dict[str, Any]) -> Checkpoint:
    """Find a model by name or path."""
    from harken.checkpoints import open_checkpoint, resolve

    return open_checkpoint(resolve(model, revision=given["revision"], download=given["download"]))


def loader(model: str, given: dict[str, Any]) -> Callable[[], Recognizer]:
    """Load the model that transcribes, once somebody asks."""
    return partial(
        load, model, threads=given["threads"], revision=given["revision"], download=given["download"]
    )


def carry_out(task: Task[Any], given: dict[str, Any], do: Callable[[Audience], bool]) -> None:
    """Do a task before an audience; Ctrl-C ends it behind what is in work, with everything saved.

    Raises
    ------
    Stop
        If it was interrupted.
    """
    from harken.training.loop import Watch
    from harken.training.run import Audience

    with _Steps(given["progress"]) as steps, _heeding() as signals:

        def progress(stage: str, done: int, of: int) -> None:
            if signals:
                raise _stop(signals)
            steps.show(stage, done, of)

        watch = Watch(step=steps.step, point=steps.point, stopping=lambda: bool(signals))
        if not do(Audience(progress=progress, note=steps.note, watch=watch)):
            raise _stop(signals)
    say(_curve(task.journal.curve()))


@contextmanager
def _heeding() -> Iterator[list[int]]:
    """Note signals instead of ending at once; the second one ends at once all the same."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) > 1:
            raise _stop(heard)

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in heeded}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(signals: Sequence[int]) -> Stop:
    name = SIGNALS[signal.Signals(signals[0])]
    return Stop(128 + signals[0], f"{name}; what was done is saved, and the same command goes on from there")


def _curve(points: Sequence[Point]) -> str:
    """Every measurement as a line of a table, the best one marked."""
    best = max(points, key=lambda point: point.held_out.merit)
    rows = [
        f"{point.step:>7}  {point.held_out.rate:>10.1%}  {point.held_out.tokens_per_forward:>17.2f}  "
        f"{point.held_out.mean_loss:>8.3f}{'  best' if point is best else ''}\n"
        for point in points
    ]
    return "".join([f"{'step':>7}  {'acceptance':>10}  {'tokens a forward':>17}  {'loss':>8}\n", *rows])


class _Steps:
    """A bar for whatever is counted, and a line for every measurement, on standard error."""

    def __init__(self, bar: bool) -> None:
        self._wanted = bar and sys.stderr.isatty()
        self._bar: Progress | None = None
        self._stage: tuple[str, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, done: int, of: int, loss: float) -> None:
        self.show(f"step, loss {loss:.3f}", done, of, stage="step")

    def point(self, point: Point) -> None:
        held_out = point.held_out
        self.note(
            f"step {point.step}: {held_out.rate:.1%} of {held_out.positions} held-out tokens foretold, "
            f"{held_out.tokens_per_forward:.2f} tokens a forward"
        )

    def note(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def show(self, label: str, done: int, of: int, stage: str | None = None) -> None:
        if not self._wanted:
            return
        from harken.cli.bar import counting

        if self._bar is None:
            self._bar = counting()
            self._bar.start()
        stage = stage or label
        if self._stage is None or self._stage[0] != stage:
            if self._stage:
                self._bar.remove_task(self._stage[1])
            self._stage = stage, self._bar.add_task(label, total=of)
        self._bar.update(self._stage[1], description=label, completed=done, total=of, refresh=True)
