"""The shared parts of ``harken adapt``, ``harken distill`` and ``harken finetune``: options, progress, interruption."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from harken.api import Recognizer, load
from harken.cli.exits import Stop, finishing_calls, handling_signals, signal_stop
from harken.cli.inputs import make_folder
from harken.cli.options import add_options, dataclass_options, list_option, model_files, single_option
from harken.cli.screen import write_stdout
from harken.cli.targets import refuse_writing_into
from harken.cli.terminal import is_terminal, message_text, write_stderr
from harken.cli.values import FilePath, Text
from harken.option_types import options_from
from harken.training.options import DataOptions, TrainOptions

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from harken.checkpoints import Checkpoint
    from harken.manifests import Entry
    from harken.training.loop import TrainingCallbacks
    from harken.training.run import TrainingTask
    from harken.training.run_directory import EvalPoint

TrainOptionsT = TypeVar("TrainOptionsT", bound=TrainOptions)

files_option = partial(single_option, section="Files")


def _parse_path(value: str) -> str:
    return value


_parse_path.__name__ = "path"


def training_options(
    options_class: type[TrainOptions], data_class: type[DataOptions] = DataOptions
) -> Callable[[Any], Any]:
    """Add the options that the commands share, and those of training."""
    decorators = (
        list_option(
            "--data",
            parse_item=_parse_path,
            empty=False,
            section="Files",
            required=True,
            help="Manifests and folders to train on.",
        ),
        list_option(
            "--held-out-data",
            parse_item=_parse_path,
            empty=False,
            section="Files",
            help="Manifests and folders to evaluate on, instead of a share of the data.",
        ),
        files_option(
            "--out",
            metavar="DIR",
            required=True,
            type=FilePath(path_type=Path),
            help="Folder for the result.",
        ),
        files_option("--progress/--no-progress", default=True, help="Show a progress bar on a terminal."),
        files_option("--threads", type=click.IntRange(1, 1024), help="CPU threads."),
        files_option(
            "--time-limit",
            type=click.FloatRange(0.01, 1e6),
            metavar="MINUTES",
            help="Stop after so long, with everything saved; the same command goes on.",
        ),
        files_option(
            "--revision", type=Text(empty=False), help="Branch, tag or commit of a Hugging Face repository."
        ),
        files_option(
            "--download/--no-download", default=True, help="Download a model that is not on this machine."
        ),
        dataclass_options(data_class),
        dataclass_options(options_class),
    )
    return lambda command: add_options(decorators, command)


def make_task(
    model: str,
    params: dict[str, Any],
    options_class: type[TrainOptionsT],
    data_class: type[DataOptions] = DataOptions,
    *,
    needs_text: bool,
) -> TrainingTask[TrainOptionsT]:
    """Make the training task; errors in the arguments are raised here, before the work."""
    from harken.manifests import read_entries
    from harken.text import Tokenizer
    from harken.training.run import TrainingTask, set_num_threads

    set_num_threads(params["threads"])
    data, options = options_from(data_class, params), options_from(options_class, params)
    warn = write_stderr
    entries = read_entries(params["data"], warn, needs_text=needs_text)
    held_out_entries = read_entries(params["held_out_data"], warn, needs_text=needs_text)
    checkpoint = find_model(model, params)
    _check_out(params, [model, str(checkpoint.path)], [*entries, *held_out_entries])
    make_folder(params["out"].parent)
    return TrainingTask(
        checkpoint=checkpoint,
        tokenizer=Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab),
        entries=entries,
        held_out_entries=held_out_entries,
        out=params["out"],
        data=data,
        options=options,
    )


def _check_out(params: Mapping[str, Any], models: Sequence[str], entries: Sequence[Entry]) -> None:
    """Refuse a folder for the result that holds what is read, or that lies in a model.

    Raises
    ------
    click.UsageError
        If it is one.
    """
    from harken.manifests import manifest_path

    models = [*models, *(name for name in [params.get("init_from")] if name)]
    manifests = [manifest_path(path) for path in (*params["data"], *params["held_out_data"])]
    refuse_writing_into(
        params["out"],
        [*(entry.path for entry in entries), *filter(os.path.isfile, manifests), *model_files(*models)],
        filter(os.path.isdir, models),
    )


def find_model(model: str, params: dict[str, Any]) -> Checkpoint:
    """Open the checkpoint of a model by name or path."""
    from harken.checkpoints import open_checkpoint, resolve_model

    return open_checkpoint(resolve_model(model, revision=params["revision"], download=params["download"]))


def model_loader(model: str, params: dict[str, Any]) -> Callable[[], Recognizer]:
    """Return a function that loads the model for transcription."""
    return partial(
        load, model, threads=params["threads"], revision=params["revision"], download=params["download"]
    )


def run_task(
    task: TrainingTask[Any], params: dict[str, Any], train: Callable[[TrainingCallbacks], bool]
) -> None:
    """Run a training task and show its progress; Ctrl-C ends it after the current step, with everything saved.

    Raises
    ------
    Stop
        If it was interrupted.
    """
    from harken.training.loop import TrainingCallbacks

    signals: list[int] = []
    limit_s = 60 * (params["time_limit"] or float("inf"))
    began_s = perf_counter()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:  # the second signal does not wait for the current step
            raise _interrupted_stop(signals)

    with _TrainingProgress(params["progress"]) as progress_bar, handling_signals(on_signal), finishing_calls():

        def progress(stage: str, done: int, total: int) -> None:
            if signals:
                raise _interrupted_stop(signals)
            progress_bar.update(stage, done, total)

        callbacks = TrainingCallbacks(
            on_progress=progress,
            on_warning=progress_bar.write_stderr,
            on_step=progress_bar.on_step,
            on_evaluation=progress_bar.on_evaluation,
            should_stop=lambda: bool(signals) or perf_counter() - began_s > limit_s,
        )
        if not train(callbacks):
            if signals:
                raise _interrupted_stop(signals)
            progress_bar.write_stderr("stopped at --time-limit; the same command goes on from there")
    write_stdout(_format_curve(task.run_directory.load_learning_curve()))


def _interrupted_stop(signals: Sequence[int]) -> Stop:
    return signal_stop(signals[0], "; what was done is saved, and the same command goes on from there")


def _format_curve(points: Sequence[EvalPoint]) -> str:
    """Format the evaluations as a table, with the best one marked."""
    best = max(points, key=lambda point: point.held_out.ranking_key)
    rows = [
        f"{point.step:>7}  {point.held_out.acceptance_rate:>10.1%}  {point.held_out.tokens_per_forward:>17.2f}  "
        f"{point.held_out.mean_loss:>8.3f}{'  best' if point is best else ''}\n"
        for point in points
    ]
    return "".join([f"{'step':>7}  {'acceptance':>10}  {'tokens per pass':>17}  {'loss':>8}\n", *rows])


class _TrainingProgress:
    """The progress bar of the current stage, and a line for every evaluation, on standard error."""

    def __init__(self, show_bar: bool) -> None:
        self._bar_enabled = show_bar and is_terminal(sys.stderr)
        self._bar: Progress | None = None
        self._stage: tuple[str, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def on_step(self, done: int, total: int, loss: float) -> None:
        self.update(f"step, loss {loss:.3f}", done, total, stage="step")

    def on_evaluation(self, point: EvalPoint) -> None:
        held_out = point.held_out
        self.write_stderr(
            f"step {point.step}: {held_out.acceptance_rate:.1%} of {held_out.positions} held-out tokens predicted, "
            f"{held_out.tokens_per_forward:.2f} tokens per forward pass"
        )

    def write_stderr(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(
                message_text(text), markup=False, emoji=False, highlight=False, soft_wrap=True
            )
        else:
            write_stderr(text)

    def update(self, label: str, done: int, total: int, stage: str | None = None) -> None:
        if not self._bar_enabled:
            return
        from harken.cli.screen import counting_bar

        if self._bar is None:
            self._bar = counting_bar()
            self._bar.start()
        stage = stage or label
        if self._stage is None or self._stage[0] != stage:
            if self._stage:
                self._bar.remove_task(self._stage[1])
            self._stage = stage, self._bar.add_task(label, total=total)
        self._bar.update(self._stage[1], description=label, completed=done, total=total, refresh=True)
