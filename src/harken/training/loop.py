"""The training loop: AdamW steps with periodic evaluation, which resume exactly where they were interrupted.

All randomness is stateless: the order of the windows follows from seed and epoch, dropout and masks from seed and step.
So weights, moments and the step number are all the state to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.errors import CheckpointError, OptionError
from harken.training.examples import ExampleStore
from harken.training.objective import Acceptance, Objective
from harken.training.options import TrainOptions
from harken.training.run_directory import EvalPoint, RunDirectory, snapshot
from harken.training.windows import TrainingWindow

BETAS = (0.9, 0.98)
MIN_LEARNING_RATE_RATIO = 0.05
"""Final learning rate, relative to the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCallbacks:
    """The callbacks of a training, from its preparation to its last step.

    Parameters
    ----------
    on_progress : callable
        Called during preparation with the name of a stage, the number of items done, and their total.
    on_warning : callable
        Called with a message about every recording that is left out.
    on_step : callable
        Called after every step with the number of steps done, their total, and the mean loss of the step.
    on_evaluation : callable
        Called with every measurement.
    on_best : callable
        Called when the weights reach a new best on the held-out windows.
    should_stop : callable
        Called before every step; True saves the state and ends the training.
    """

    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    on_warning: Callable[[str], None] = lambda text: None
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None
    on_evaluation: Callable[[EvalPoint], None] = lambda point: None
    on_best: Callable[[EvalPoint], None] = lambda point: None
    should_stop: Callable[[], bool] = lambda: False


def train(
    objective: Objective,
    windows: Sequence[TrainingWindow],
    held_out: Sequence[TrainingWindow],
    store: ExampleStore,
    run_directory: RunDirectory,
    options: TrainOptions,
    seed: int,
    callbacks: TrainingCallbacks,
) -> bool:
    """Train until all epochs are done.

    Parameters
    ----------
    objective : Objective
        Its `trainable` weights are changed in place; afterwards they are the last ones, not the best.
    windows, held_out : sequence of TrainingWindow
        The store has examples of all of them with at least one sequence.
    store : ExampleStore
    run_directory : RunDirectory
        Training resumes from the state that it holds.
    options : TrainOptions
    seed : int
    callbacks : TrainingCallbacks

    Returns
    -------
    bool
        True if all epochs are done; False if it was stopped.

    Raises
    ------
    CheckpointError
        If the loss is not finite in the beginning.
    OptionError
        If it becomes so; the best weights so far have been reported.
    """
    n_steps = count_steps(options, len(windows))
    optimiser = _make_optimiser(objective, options)
    steps_done, losses = _restore_state(objective, optimiser, run_directory.load_state())
    points = [point for point in run_directory.load_learning_curve() if point.step <= steps_done]

    def evaluate() -> None:
        loss = sum(losses) / len(losses) if losses else None
        point = EvalPoint(step=steps_done, loss=loss, held_out=_evaluate(objective, held_out, store))
        _check_finite(point.held_out.mean_loss, steps_done, options)
        points.append(point)
        losses.clear()
        callbacks.on_evaluation(point)
        if point is max(points, key=lambda candidate: candidate.held_out.ranking_key):
            callbacks.on_best(point)
        run_directory.save_learning_curve(points)

    def save() -> None:
        state = {"step": steps_done, "losses": losses, "weights": snapshot(objective.trainable)}
        run_directory.save_state(state | {"optimiser": optimiser.state_dict()})

    if not points:
        evaluate()
        save()
    for batch in _batches(windows, options.batch_size, seed, steps_done, n_steps):
        if callbacks.should_stop():
            save()
            return False
        for param_group in optimiser.param_groups:
            param_group["lr"] = param_group["learning_rate_scale"] * learning_rate_at(
                steps_done, n_steps, options
            )
        torch.manual_seed(seed * 1_000_003 + steps_done)
        losses.append(
            _train_step(
                objective,
                optimiser,
                (store.get(window) for window in batch),
                options.max_grad_norm,
                steps_done / n_steps,
            )
        )
        steps_done += 1
        _check_finite(losses[-1], steps_done, options)
        callbacks.on_step(steps_done, n_steps, losses[-1])
        if steps_done % options.eval_steps == 0 or steps_done == n_steps:
            evaluate()
            save()
    return True


def _check_finite(loss: float, step: int, options: TrainOptions) -> None:
    if math.isfinite(loss):
        return
    if not step:
        raise CheckpointError(
            f"the loss of the model is {loss} before the first step: see 'harken models check'"
        )
    raise OptionError(
        "learning_rate",
        options.learning_rate,
        f"a lower one, in another folder, as the loss is {loss} at step {step}",
    )


def count_steps(options: TrainOptions, n_windows: int) -> int:
    """Return the number of steps of all epochs."""
    return options.epochs * _steps_per_epoch(n_windows, options.batch_size)


def _steps_per_epoch(n_windows: int, batch_size: int) -> int:
    return math.ceil(n_windows / batch_size)


def learning_rate_at(step: int, n_steps: int, options: TrainOptions) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine down."""
    warmup_steps = max(1, round(options.warmup_ratio * n_steps))
    if step < warmup_steps:
        return options.learning_rate * (step + 1) / warmup_steps
    cosine = (1 + math.cos(math.pi * (step - warmup_steps) / max(1, n_steps - warmup_steps))) / 2
    return options.learning_rate * (MIN_LEARNING_RATE_RATIO + (1 - MIN_LEARNING_RATE_RATIO) * cosine)


def _batches(
    windows: Sequence[TrainingWindow], batch_size: int, seed: int, first_step: int, n_steps: int
) -> Iterator[list[TrainingWindow]]:
    """Yield the windows of each step from `first_step` on, in a new order each epoch."""
    for step in range(first_step, n_steps):
        epoch, batch_index = divmod(step, _steps_per_epoch(len(windows), batch_size))
        order = np.random.default_rng([seed, epoch]).permutation(len(windows))
        yield [windows[i] for i in order[batch_index * batch_size : (batch_index + 1) * batch_size]]


def _train_step(
    objective: Objective, optimiser: Any, examples: Iterator[Any], max_grad_norm: float, progress: float
) -> float:
    """Train on some examples and return the mean loss; each token counts alike, whatever its example."""
    total_loss, positions = 0.0, 0
    for example in examples:
        loss, n = objective.loss(example, progress)
        loss.backward()
        total_loss, positions = total_loss + float(loss.detach()), positions + n
    weights = list(objective.trainable.values())
    for values in weights:
        if values.grad is not None:
            values.grad /= positions
    torch.nn.utils.clip_grad_norm_(weights, max_grad_norm)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return total_loss / positions


def _evaluate(objective: Objective, windows: Sequence[TrainingWindow], store: ExampleStore) -> Acceptance:
    return sum((objective.evaluate(store.get(window)) for window in windows), Acceptance())


def _make_optimiser(objective: Objective, options: TrainOptions) -> Any:
    """Return AdamW; weight decay excludes vectors, and positions, most of which a step does not use."""
    grouped_weights: dict[tuple[float, float], list[Tensor]] = {}
    for name, values in objective.trainable.items():
        decays = values.ndim > 1 and "positional" not in name
        group_key = objective.learning_rate_scale(name), options.weight_decay if decays else 0.0
        grouped_weights.setdefault(group_key, []).append(values)
    param_groups = [
        {"params": values, "learning_rate_scale": learning_rate_scale, "weight_decay": decay}
        for (learning_rate_scale, decay), values in grouped_weights.items()
    ]
    return torch.optim.AdamW(param_groups, lr=options.learning_rate, betas=BETAS)


def _restore_state(
    objective: Objective, optimiser: Any, state: dict[str, Any] | None
) -> tuple[int, list[float]]:
    """Restore a saved state; return its number of steps and the losses since the last evaluation."""
    if state is None:
        return 0, []
    with torch.no_grad():
        for name, values in objective.trainable.items():
            values.copy_(state["weights"][name])
    optimiser.load_state_dict(state["optimiser"])
    return state["step"], state["losses"]
