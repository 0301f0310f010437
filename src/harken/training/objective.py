"""What is made small: how far an assistant is from the main model, or a model from the texts of a manifest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.contract import Ints
from harken.training.acceptance import Acceptance, count
from harken.training.examples import Example, Row
from harken.training.network import listen, read
from harken.training.options import DistillOptions, FineTuneOptions
from harken.training.student import EMBEDDING
from harken.types import Dims

KL_WEIGHT = 0.8
"""Beside 1 for the cross-entropy (Gandhi et al. 2023, arXiv:2311.00430, section 4)."""
LONGEST_MASK = 25
"""Positions of the encoder's output, half a second."""


class Objective(Protocol):
    """What is learnt, with the weights that learn it."""

    @property
    def learning(self) -> dict[str, Tensor]:
        """Weights that change."""
        ...

    def share(self, name: str) -> float:
        """Learning rate of a weight, in shares of that of a step."""
        ...

    def loss(self, example: Example) -> tuple[Tensor, int]:
        """Loss, summed over the positions of an example, and how many these are; random where it is to be."""
        ...

    def measure(self, example: Example) -> Acceptance:
        """How much of its first text is foretold."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """An assistant learns what the main model says, and how sure it was of everything else.

    The loss is cross-entropy with the pseudo-labels, divergence from the model's distribution, and the squared distance
    of final states from those that it should be like, in units of their variance: a model that is sure tells little by
    its distribution, and much by its states (Sanh et al. 2019, arXiv:1910.01108, section 3, align states too).

    Parameters
    ----------
    dims : Dims
        Of the assistant.
    weights : dict of str to Tensor
        All of its weights.
    learning : dict of str to Tensor
        Those of them that change.
    frequent : ndarray of int64
        Ascending ids that the loss looks at, which saves most of its time; it is measured with all there are.
    embedding : Tensor of shape (n_vocab, n_text_state of the main model)
        Of the main model's tokens.
    share : callable
        Learning rate of a weight by its name, in shares of that of a step.
    dtype : torch.dtype
        What matrices are multiplied in.
    options : DistillOptions
    """

    dims: Dims
    weights: dict[str, Tensor]
    learning: dict[str, Tensor]
    frequent: Ints
    embedding: Tensor
    dtype: torch.dtype
    options: DistillOptions
    share: Callable[[str], float] = lambda name: 1.0
    _vocabulary: Tensor = field(init=False, repr=False)
    _teachers: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids = torch.from_numpy(self.frequent)
        object.__setattr__(self, "_vocabulary", self.weights[EMBEDDING][ids].to(self.dtype))
        object.__setattr__(self, "_teachers", self.embedding[ids].to(self.dtype))

    def loss(self, example: Example) -> tuple[Tensor, int]:
        heard = masked(torch.tensor(example.heard).float(), self.options.masked)
        batch = Batch.of(example.rows)
        with _matrices_in(self.dtype):
            said = batch.pick(read(self.weights, self.dims, batch.tokens, heard, self.options.dropout))
            student = F.linear(said, self._vocabulary)
            teacher = F.linear(batch.states.to(self.dtype), self._teachers)
        logprobs = F.log_softmax(student.float(), -1)
        wanted = F.log_softmax(teacher.float(), -1)
        divergence = F.kl_div(logprobs, wanted, reduction="sum", log_target=True)
        right = F.nll_loss(logprobs, self._columns(batch.labels), reduction="sum", ignore_index=-1)
        loss = right + KL_WEIGHT * divergence
        distance = (said.float() - batch.like).square().mean(1).sum() / batch.like.var()
        return loss + self.options.likeness * distance, len(batch.labels)

    def measure(self, example: Example) -> Acceptance:
        batch = Batch.of(example.rows[:1])
        with torch.inference_mode(), _matrices_in(self.dtype):
            said = read(self.weights, self.dims, batch.tokens, torch.tensor(example.heard).float())
            logits = F.linear(batch.pick(said), self.weights[EMBEDDING].to(self.dtype))
        return foretold(logits, batch.labels)

    def _columns(self, ids: Tensor) -> Tensor:
        """Where ids stand among the frequent ones; -1 where they do not."""
        at = np.searchsorted(self.frequent, ids.numpy()).clip(max=len(self.frequent) - 1)
        return torch.from_numpy(np.where(self.frequent[at] == ids.numpy(), at, -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """A model learns what a manifest says.

    Parameters
    ----------
    dims : Dims
    weights, learning : dict of str to Tensor
        As for `Distillation`. Where none of the encoder's learn, examples hold its output.
    dtype : torch.dtype
    options : FineTuneOptions
    """

    dims: Dims
    weights: dict[str, Tensor]
    learning: dict[str, Tensor]
    dtype: torch.dtype
    options: FineTuneOptions

    def share(self, name: str) -> float:
        return 1.0

    def loss(self, example: Example) -> tuple[Tensor, int]:
        batch = Batch.of(example.rows)
        logits = self._logits(example, batch, self.options.dropout, self.options.masked)
        return F.cross_entropy(logits.float(), batch.labels, reduction="sum"), len(batch.labels)

    def measure(self, example: Example) -> Acceptance:
        batch = Batch.of(example.rows[:1])
        with torch.inference_mode():
            return foretold(self._logits(example, batch, 0.0, 0.0), batch.labels)

    def _logits(self, example: Example, batch: Batch, dropout: float, share: float) -> Tensor:
        heard = torch.tensor(example.heard).float()
        with _matrices_in(self.dtype):
            if any(name.startswith("encoder.") for name in self.learning):
                heard = listen(self.weights, self.dims, heard)
            said = read(self.weights, self.dims, batch.tokens, masked(heard, share), dropout)
            return F.linear(batch.pick(said), self.weights[EMBEDDING])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one example, padded to one length.

    Attributes
    ----------
    tokens : Tensor of shape (rows, n), int64
    at : Tensor of shape (positions,), int64
        Where in the flattened rows something is to be foretold.
    labels : Tensor of shape (positions,), int64
        What.
    states : Tensor of shape (positions, n_text_state of the main model), float16
    like : Tensor of shape (positions, n_text_state), float32
        States that the student should have there.
    """

    tokens: Tensor
    at: Tensor
    labels: Tensor
    states: Tensor
    like: Tensor

    @classmethod
    def of(cls, rows: tuple[Row, ...]) -> Batch:
        longest = max(len(row.tokens) for row in rows) - 1
        padded = [np.pad(row.tokens[:-1], (0, longest + 1 - len(row.tokens))) for row in rows]
        at = [np.arange(row.first - 1, len(row.tokens) - 1) + i * longest for i, row in enumerate(rows)]
        return cls(
            torch.from_numpy(np.stack(padded)),
            torch.from_numpy(np.concatenate(at)),
            torch.from_numpy(np.concatenate([row.tokens[row.first :] for row in rows])),
            torch.from_numpy(np.concatenate([row.states for row in rows])),
            torch.from_numpy(
                np.concatenate([row.states if row.like is None else row.like for row in rows])
            ).float(),
        )

    def pick(self, said: Tensor) -> Tensor:
        """States at the positions that count, out of shape (rows, n, n_text_state)."""
        return said.flatten(0, 1)[self.at]


def masked(heard: Tensor, share: float) -> Tensor:
    """Hide spans of what was heard, as SpecAugment does with time (Park et al. 2019, arXiv:1904.08779).

    Parameters
    ----------
    heard : Tensor of shape (positions, state)
    share : float
        How much of it is hidden, at most.
    """
    positions = len(heard)
    spans = round(share * positions * 2 / LONGEST_MASK)
    lengths = torch.randint(1, LONGEST_MASK + 1, (spans,)).tolist()
    starts = torch.randint(0, positions, (spans,)).tolist()
    hidden = torch.zeros(positions, 1, dtype=torch.bool)
    for start, length in zip(starts, lengths, strict=True):
        hidden[start : start + length] = True
    return heard.masked_fill(hidden, 0.0)


def foretold(logits: Tensor, labels: Tensor) -> Acceptance:
    """Count what logits of shape (positions, n_vocab) foretell of labels."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    return count((logits.argmax(-1) == labels).numpy(), float(loss))


def _matrices_in(dtype: torch.dtype) -> AbstractContextManager[None]:
    context: AbstractContextManager[None] = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    return context
