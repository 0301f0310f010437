"""The loop: steps of AdamW, measured now and then, that go on where they were interrupted as if they had not been.

Nothing random has a history. The order of the pieces follows from the seed and the epoch, dropout and masks from the
seed and the step; so weights, moments and the number of the step are all there is to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.training.acceptance import Acceptance
from harken.training.journal import Journal, Point, snapshot
from harken.training.library import Library
from harken.training.objective import Objective
from harken.training.options import TrainOptions
from harken.training.pieces import Piece

BETAS = (0.9, 0.98)
LAST_RATE = 0.05
"""Learning rate at the end, in shares of the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who looks on.

    Parameters
    ----------
    step : callable
        Told after every step how many are done, of how many, and its mean loss.
    point : callable
        Told of every measurement.
    best : callable
        Called when the weights are better than ever on what is held out.
    stopping : callable
        Asked before every step; the state is saved once it answers True.
    """

    step: Callable[[int, int, float], None] = lambda done, of, loss: None
    point: Callable[[Point], None] = lambda point: None
    best: Callable[[Point], None] = lambda point: None
    stopping: Callable[[], bool] = lambda: False


def train(
    objective: Objective,
    pieces: Sequence[Piece],
    held_out: Sequence[Piece],
    library: Library,
    journal: Journal,
    options: TrainOptions,
    seed: int,
    watch: Watch,
) -> bool:
    """Train until all epochs are done.

    Parameters
    ----------
    objective : Objective
        Its `learning` weights are changed in place; afterwards they are the last ones, not the best.
    pieces, held_out : sequence of Piece
        All of which the library has examples with at least one row.
    library : Library
    journal : Journal
        Training goes on from the state that it holds.
    options : TrainOptions
    seed : int
    watch : Watch

    Returns
    -------
    bool
        Whether it came to its end; False if it was stopped.
    """
    steps = steps_of(options, len(pieces))
    optimiser = _optimiser(objective, options)
    done, losses = _restore(objective, optimiser, journal.load())
    points = [point for point in journal.curve() if point.step <= done]

    def measure() -> None:
        loss = sum(losses) / len(losses) if losses else None
        point = Point(step=done, loss=loss, held_out=_measure(objective, held_out, library))
        points.append(point)
        losses.clear()
        watch.point(point)
        if point is max(points, key=lambda its: its.held_out.merit):
            watch.best(point)
        journal.note(points)

    def save() -> None:
        state = {"step": done, "losses": losses, "weights": snapshot(objective.learning)}
        journal.save(state | {"optimiser": optimiser.state_dict()})

    if not points:
        measure()
        save()
    for batch in _batches(pieces, options.batch, seed, done, steps):
        if watch.stopping():
            save()
            return False
        for group in optimiser.param_groups:
            group["lr"] = group["share"] * rate_at(done, steps, options)
        torch.manual_seed(seed * 1_000_003 + done)
        losses.append(_step(objective, optimiser, (library.get(piece) for piece in batch), options.clip))
        done += 1
        watch.step(done, steps, losses[-1])
        if done % options.measure == 0 or done == steps:
            measure()
            save()
    return True


def steps_of(options: TrainOptions, pieces: int) -> int:
    """How many steps all epochs have."""
    return options.epochs * math.ceil(pieces / options.batch)


def rate_at(step: int, steps: int, options: TrainOptions) -> float:
    """Learning rate of a step: a rise in a line, then half a cosine down."""
    rising = max(1, round(options.warmup * steps))
    if step < rising:
        return options.rate * (step + 1) / rising
    left = (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising))) / 2
    return options.rate * (LAST_RATE + (1 - LAST_RATE) * left)


def _batches(pieces: Sequence[Piece], size: int, seed: int, done: int, steps: int) -> Iterator[list[Piece]]:
    """Pieces of each step from `done` on, in an order of their own each epoch."""
    per_epoch = math.ceil(len(pieces) / size)
    for step in range(done, steps):
        epoch, at = divmod(step, per_epoch)
        order = np.random.default_rng([seed, epoch]).permutation(len(pieces))
        yield [pieces[i] for i in order[at * size : (at + 1) * size]]


def _step(objective: Objective, optimiser: Any, examples: Iterator[Any], clip: float) -> float:
    """Learn from some examples; each token counts alike, whatever example it is of."""
    total, positions = 0.0, 0
    for example in examples:
        loss, n = objective.loss(example)
        loss.backward()
        total, positions = total + float(loss.detach()), positions + n
    weights = list(objective.learning.values())
    for values in weights:
        if values.grad is not None:
            values.grad /= positions
    torch.nn.utils.clip_grad_norm_(weights, clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return total / positions


def _measure(objective: Objective, pieces: Sequence[Piece], library: Library) -> Acceptance:
    return sum((objective.measure(library.get(piece)) for piece in pieces), Acceptance())


def _optimiser(objective: Objective, options: TrainOptions) -> Any:
    """AdamW; only matrices decay, and no positions, most of which a step does not see."""

    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, values in objective.learning.items():
        decays = values.ndim > 1 and "positional" not in name
        kind = objective.share(name), options.weight_decay if decays else 0.0
        groups.setdefault(kind, []).append(values)
    settings = [
        {"params": values, "share": share, "weight_decay": decay} for (share, decay), values in groups.items()
    ]
    return torch.optim.AdamW(settings, lr=options.rate, betas=BETAS)


def _restore(objective: Objective, optimiser: Any, state: dict[str, Any] | None) -> tuple[int, list[float]]:
    """Go back to a state: how many steps it has done, and the losses since it was measured last."""
    if state is None:
        return 0, []
    with torch.no_grad():
        for name, values in objective.learning.items():
            values.copy_(state["weights"][name])
    optimiser.load_state_dict(state["optimiser"])
    return state["step"], state["losses"]
