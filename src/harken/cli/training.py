"""``harken adapt``, ``harken distill`` and ``harken finetune``: their options, progress and interruption."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harken.api import Recognizer, load
from harken.cli.exits import Stop, signal_stop
from harken.cli.inputs import refuse_writing_into
from harken.cli.model_options import download_option, model_files, revision_option
from harken.cli.options import (
    Command,
    FilePath,
    NumberRange,
    add_options,
    dataclass_options,
    list_option,
    progress_option,
    single_option,
    with_option,
)
from harken.cli.signals import handling_signals, waiting
from harken.cli.terminal import Screen, write_stderr, write_stdout
from harken.files import make_folder
from harken.option_types import options_from
from harken.training.options import (
    MAX_DECODER_LAYERS,
    AdaptDataOptions,
    AdaptOptions,
    DataOptions,
    DistillOptions,
    FineTuneOptions,
    TrainOptions,
)

if TYPE_CHECKING:
    from harken.checkpoints import Checkpoint
    from harken.manifests import Entry
    from harken.training.run import TrainingCallbacks, TrainingTask
    from harken.training.run_directory import EvalPoint

TrainOptionsT = TypeVar("TrainOptionsT", bound=TrainOptions)

files_option = partial(single_option, section="Files")
data_option = partial(list_option, parse_item=str, metavar="PATH,...", empty=False, section="Files")


def training_options(
    options_class: type[TrainOptions], data_class: type[DataOptions] = DataOptions
) -> Callable[[Any], Any]:
    """Add the options that the commands share, and those of training."""
    decorators = (
        data_option("--data", required=True, help="Manifests and folders to train on."),
        data_option(
            "--held-out-data", help="Manifests and folders to evaluate on, instead of a share of the data."
        ),
        files_option(
            "--out", metavar="DIR", required=True, type=FilePath(path_type=Path), help="Folder for the result."
        ),
        progress_option(section="Files"),
        files_option("--threads", type=click.IntRange(1, 1024), help="CPU threads."),
        files_option(
            "--time-limit",
            type=NumberRange(0.01, 1e6),
            metavar="MINUTES",
            help="Stop after so long, with everything saved; the same command goes on.",
        ),
        revision_option(section="Files"),
        download_option(section="Files"),
        dataclass_options(data_class),
        dataclass_options(options_class),
    )
    return add_options(decorators)


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
    from harken.training.run import TrainingTask, set_num_threads

    set_num_threads(params["threads"])
    data, options = options_from(data_class, params), options_from(options_class, params)
    entries = read_entries(params["data"], write_stderr, needs_text=needs_text)
    held_out_entries = read_entries(params["held_out_data"], write_stderr, needs_text=needs_text)
    checkpoint = find_model(model, params)
    _check_out(params, [model, str(checkpoint.path)], [*entries, *held_out_entries])
    make_folder(params["out"].parent)
    return TrainingTask(
        checkpoint=checkpoint,
        load_recognizer=model_loader(model, params),
        tokenizer=checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab),
        entries=entries,
        held_out_entries=held_out_entries,
        out=params["out"],
        data=data,
        options=options,
    )


def _check_out(params: Mapping[str, Any], models: Sequence[str], entries: Sequence[Entry]) -> None:
    """Refuse a folder for the result that holds what is read, or that lies in a model."""
    from harken.manifests import manifest_path

    models = [*filter(None, [*models, params.get("init_from")])]
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
    from harken.training.run import TrainingCallbacks

    signals: list[int] = []
    limit_s = 60 * (params["time_limit"] or float("inf"))
    began_s = perf_counter()

    def on_signal(number: int) -> None:
        signals.append(number)
        if len(signals) > 1:  # the second signal does not wait for the current step
            raise _interrupted_stop(signals)

    with Screen(params["progress"], counts=True) as screen, handling_signals(on_signal, waiting()):

        def should_stop() -> bool:
            return bool(signals) or perf_counter() - began_s > limit_s

        def on_progress(stage: str, done: int, total: int) -> None:
            if should_stop():
                raise _StopBeforeSteps
            screen.update(stage, stage, done, total)

        def on_evaluation(point: EvalPoint) -> None:
            held_out = point.held_out
            screen.write_stderr(
                f"step {point.step}: {held_out.acceptance_rate:.1%} of {held_out.positions} held-out tokens predicted, "
                f"{held_out.tokens_per_forward:.2f} tokens per forward pass"
            )

        callbacks = TrainingCallbacks(
            on_progress=on_progress,
            on_warning=screen.write_stderr,
            on_step=lambda done, total, loss: screen.update("step", f"step, loss {loss:.3f}", done, total),
            on_evaluation=on_evaluation,
            should_stop=should_stop,
        )
        finished = False
        with suppress(_StopBeforeSteps):
            finished = train(callbacks)
        if not finished:
            if signals:
                raise _interrupted_stop(signals)
            screen.write_stderr("stopped at --time-limit; the same command goes on from there")
    write_stdout(_format_curve(task.run_directory.load_learning_curve()))


class _StopBeforeSteps(Exception):
    """The work is to stop before the first step."""


def _interrupted_stop(signals: Sequence[int]) -> Stop:
    return signal_stop(signals[0], "; what was done is saved, and the same command goes on from there")


def _format_curve(points: Sequence[EvalPoint]) -> str:
    """Format the evaluations as a table, with the best one marked."""
    best = max(points, key=lambda point: point.held_out.ranking_key, default=None)
    rows = [
        f"{point.step:>7}  {point.held_out.acceptance_rate:>10.1%}  {point.held_out.tokens_per_forward:>17.2f}  "
        f"{point.held_out.mean_loss:>8.3f}{'  best' if point is best else ''}\n"
        for point in points
    ]
    return "".join([f"{'step':>7}  {'acceptance':>10}  {'tokens per pass':>17}  {'loss':>8}\n", *rows])


@click.command(cls=Command)
@click.argument("model", type=FilePath())
@files_option(
    "--layers",
    type=click.IntRange(1, MAX_DECODER_LAYERS),
    default=2,
    no_effect=with_option("init_from"),
    help="Number of decoder layers of the assistant.",
)
@files_option(
    "--init-from",
    type=FilePath(),
    metavar="MODEL",
    help="Initialize from the decoder of this smaller model, with all its layers.",
)
@training_options(DistillOptions)
def distill_command(model: str, layers: int, init_from: str | None, **params: Any) -> None:
    """Train an assistant for MODEL, to be used with --assistant.

    It shares the encoder of the model; its decoder has few layers and learns to predict the model's transcripts of
    recordings, whose text need not be known. It is initialized from some of the model's own layers; with little speech,
    the decoder of a smaller model (--init-from) is better. It takes pip install '.[torch]'.

    After Ctrl-C the same command continues where it was interrupted; the best assistant so far is in the folder.
    """
    task = make_task(model, params, DistillOptions, needs_text=False)
    from harken.training.distill import InitialModel, distill

    initial_decoder = (
        InitialModel(
            name=str(Path(init_from).resolve()) if os.path.exists(init_from) else init_from,
            checkpoint=find_model(init_from, params),
            load_recognizer=model_loader(init_from, params),
        )
        if init_from
        else None
    )
    run_task(task, params, lambda callbacks: distill(task, layers, callbacks, initial_decoder))


@click.command(cls=Command)
@click.argument("model", type=FilePath())
@files_option(
    "--freeze-encoder/--no-freeze-encoder",
    default=False,
    help="Train only the decoder, which is several times faster.",
)
@training_options(FineTuneOptions)
def finetune_command(model: str, freeze_encoder: bool, **params: Any) -> None:
    """Train MODEL on recordings with known text.

    The manifests hold the texts (see 'harken eval'); recordings longer than 30 s are cut between words, by forced
    alignment. The result is a whole model, in a folder that harken and transformers load. It takes
    pip install '.[torch]'.

    After Ctrl-C the same command continues where it was interrupted; the best model so far is in the folder.
    """
    task = make_task(model, params, FineTuneOptions, needs_text=True)
    from harken.training.finetune import finetune

    run_task(task, params, lambda callbacks: finetune(task, freeze_encoder, callbacks))


@click.command(cls=Command)
@click.argument("model", type=FilePath())
@training_options(AdaptOptions, AdaptDataOptions)
def adapt_command(model: str, **params: Any) -> None:
    """Train an adapter for MODEL, to be used with --adapter.

    An adapter changes the encoder so that it gives with the short windows of a live stream what it gives with whole
    ones. The model is its own teacher: what is said in the recordings need not be known. It takes
    pip install '.[torch]'.

    After Ctrl-C the same command continues where it was interrupted; the best adapter so far is in the folder.
    """
    task = make_task(model, params, AdaptOptions, AdaptDataOptions, needs_text=False)
    from harken.training.adapt import adapt

    run_task(task, params, partial(adapt, task))
