"""Training objectives: distillation from the main model, fine-tuning on reference texts, and what is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harken.contract import Ints
from harken.evaluation.error_rate import Summed
from harken.text import Tokenizer
from harken.training.examples import Example, TrainingSequence
from harken.training.network import TOKEN_EMBEDDING, NamedWeights, run_decoder, with_changes
from harken.training.options import AdaptOptions, DistillOptions, TrainOptions
from harken.types import Dims

ALWAYS_SCORED_IDS = 8192
"""Lowest ids, which the loss always scores: byte pairs merged first are the most frequent."""
DRAFT_LENGTH = 4
"""Draft length for which `Acceptance.tokens_per_forward` holds."""


@dataclass(frozen=True, slots=True)
class Acceptance(Summed):
    """Predictions of an assistant for held-out texts: counts over some texts."""

    positions: int = 0  # tokens to predict
    correct: int = 0  # tokens that the assistant ranks first, given the correct tokens before them
    # Forward passes of the main model for these texts, with drafts of `DRAFT_LENGTH` tokens.
    forward_passes: int = 0
    total_loss: float = 0.0  # cross-entropy, summed over positions

    @property
    def acceptance_rate(self) -> float:
        """Share of tokens predicted correctly."""
        return self.correct / max(1, self.positions)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that each forward pass of the main model yields; 1 without a draft."""
        return self.positions / max(1, self.forward_passes)

    @property
    def ranking_key(self) -> tuple[float, float]:
        """Key by which measurements compare: the acceptance rate, then the lower loss."""
        return self.acceptance_rate, -self.mean_loss

    @property
    def mean_loss(self) -> float:
        """Cross-entropy per position."""
        return self.total_loss / max(1, self.positions)


def count_forward_passes(correct: NDArray[np.bool_]) -> int:
    """Return the number of forward passes that verify a text: each accepts up to `DRAFT_LENGTH` tokens and adds one.

    After an accepted draft the main model continues with its own text, so predicting a text from its own past gives the
    exact number.
    """
    position, passes = 0, 0
    while position < len(correct):
        mismatches = np.flatnonzero(~correct[position : position + DRAFT_LENGTH])
        position += (int(mismatches[0]) if len(mismatches) else DRAFT_LENGTH) + 1
        passes += 1
    return passes


KL_WEIGHT = 0.8
"""Weight beside 1 for the cross-entropy (Gandhi et al. 2023, arXiv:2311.00430, section 4)."""
MAX_MASK_POSITIONS = 25
"""Longest mask, in positions of the encoder's output: half a second."""


def scored_token_ids(tokenizer: Tokenizer, texts: Iterable[Iterable[int]]) -> Ints:
    """Return the ids that the loss scores, ascending: those of the texts, frequent byte pairs, all special tokens."""
    n_always_scored = min(ALWAYS_SCORED_IDS, tokenizer.eot)
    seen = {token for text in texts for token in text}
    return np.array(
        sorted({*range(n_always_scored), *range(tokenizer.eot, tokenizer.n_vocab), *seen}), np.int64
    )


@dataclass(slots=True, eq=False, kw_only=True)
class Objective(ABC):
    """Objective of a training: a loss of the states of a decoder where it predicts the texts of examples."""

    dims: Dims  # of the model that is trained
    weights: dict[str, Tensor]  # all of its weights
    # The weights that are trained, or factors of changes to them (see `with_changes`).
    trainable: dict[str, Tensor]
    dtype: torch.dtype  # of matrix products
    options: TrainOptions

    def loss(self, example: Example, progress: float = 0.0) -> tuple[Tensor, int]:
        """Return the loss summed over the positions of an example, and their number; dropout and masks are random.

        The progress is the share of the training that is done.
        """
        batch = SequenceBatch.from_sequences(example.sequences)
        with autocast(self.dtype):
            weights = with_changes(self.weights, self.trainable)
            encoder_output = mask_time(
                self.encode(weights, example, training=True), self.options.mask_time_fraction
            )
            states = run_decoder(weights, self.dims, batch.tokens, encoder_output, self.options.dropout)
            return self.loss_of(states[batch.is_target], batch, progress), len(batch.labels)

    def evaluate(self, example: Example) -> Acceptance:
        """Measure the prediction of the first text of an example, without dropout or masks."""
        batch = SequenceBatch.from_sequences(example.sequences[:1])
        with torch.inference_mode(), autocast(self.dtype):
            weights = with_changes(self.weights, self.trainable)
            encoder_output = self.encode(weights, example, training=False)
            states = run_decoder(weights, self.dims, batch.tokens, encoder_output)
            logits = F.linear(states[batch.is_target], weights[TOKEN_EMBEDDING])
            total_loss = float(F.cross_entropy(logits.float(), batch.labels, reduction="sum"))
            correct = (logits.argmax(-1) == batch.labels).numpy()
            return Acceptance(len(correct), int(correct.sum()), count_forward_passes(correct), total_loss)

    def encode(self, weights: NamedWeights, example: Example, *, training: bool) -> Tensor:
        """Return the output of the encoder for an example: here what the example holds."""
        return torch.tensor(example.audio_features).float()

    @abstractmethod
    def loss_of(self, states: Tensor, batch: SequenceBatch, progress: float) -> Tensor:
        """Return the loss of some states at the target positions, summed over these."""


@dataclass(slots=True, eq=False, kw_only=True)
class Distillation(Objective):
    """Distillation of the main model into an assistant.

    The loss is cross-entropy with the pseudo-labels, KL divergence from the main model's distribution, and the squared
    distance of final states from their targets, in units of their variance: where the main model is certain, its
    distribution carries little information and its states much (Sanh et al. 2019, arXiv:1910.01108, section 3, align
    states too). That distance counts less and less: the states of a smaller model, which are targets at the start,
    would keep the assistant from becoming better than it.
    """

    options: DistillOptions | AdaptOptions
    # Ascending ids that the loss scores, which saves most of its time; evaluation scores all ids.
    scored_ids: Ints
    teacher_embedding: Tensor  # of tokens, by the main model: shape (n_vocab, n_text_state of it)
    _scored_student_embedding: Tensor = field(init=False, repr=False)
    _scored_teacher_embedding: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids = torch.from_numpy(self.scored_ids)
        self._scored_student_embedding = self.weights[TOKEN_EMBEDDING][ids].to(self.dtype)
        self._scored_teacher_embedding = self.teacher_embedding[ids].to(self.dtype)

    def loss_of(self, states: Tensor, batch: SequenceBatch, progress: float) -> Tensor:
        student_logits = F.linear(states, self._scored_student_embedding)
        teacher_logits = F.linear(batch.teacher_states.to(self.dtype), self._scored_teacher_embedding)
        student_logprobs = F.log_softmax(student_logits.float(), -1)
        teacher_logprobs = F.log_softmax(teacher_logits.float(), -1)
        kl_divergence = F.kl_div(student_logprobs, teacher_logprobs, reduction="sum", log_target=True)
        cross_entropy = F.nll_loss(
            student_logprobs, self._scored_columns(batch.labels), reduction="sum", ignore_index=-1
        )
        loss = cross_entropy + KL_WEIGHT * kl_divergence
        distances = (states.float() - batch.target_states).square().mean(1)
        state_distance = distances.sum() / batch.target_states.var()
        return loss + self.options.state_loss_weight * (1 - progress) * state_distance

    def _scored_columns(self, ids: Tensor) -> Tensor:
        """Return the indices of ids in the scored ids; -1 for ids that are not scored."""
        columns = np.searchsorted(self.scored_ids, ids.numpy()).clip(max=len(self.scored_ids) - 1)
        return torch.from_numpy(np.where(self.scored_ids[columns] == ids.numpy(), columns, -1))


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """The sequences of one example, padded to one length."""

    tokens: Tensor  # shape (sequences, n), int64
    is_target: Tensor  # shape (sequences, n), bool: where the next token is to be predicted
    labels: Tensor  # shape (positions,), int64: tokens to predict there
    teacher_states: Tensor  # shape (positions, n_text_state of the main model), float16
    target_states: Tensor  # shape (positions, n_text_state), float32: those that the student should have there

    @classmethod
    def from_sequences(cls, sequences: Sequence[TrainingSequence]) -> SequenceBatch:
        inputs = [torch.from_numpy(sequence.tokens[:-1]) for sequence in sequences]
        targets = [
            torch.arange(len(tokens)) >= sequence.text_start - 1
            for tokens, sequence in zip(inputs, sequences, strict=True)
        ]
        target_states = [
            sequence.teacher_states if sequence.target_states is None else sequence.target_states
            for sequence in sequences
        ]
        return cls(
            pad_sequence(inputs, batch_first=True),
            pad_sequence(targets, batch_first=True),
            torch.from_numpy(
                np.concatenate([sequence.tokens[sequence.text_start :] for sequence in sequences])
            ),
            torch.from_numpy(np.concatenate([sequence.teacher_states for sequence in sequences])),
            torch.from_numpy(np.concatenate(target_states)).float(),
        )


def mask_time(encoder_output: Tensor, fraction: float) -> Tensor:
    """Mask spans of up to a fraction of the positions, as SpecAugment does (Park et al. 2019, arXiv:1904.08779)."""
    positions = len(encoder_output)
    n_spans = round(fraction * positions * 2 / MAX_MASK_POSITIONS)
    lengths = torch.randint(1, MAX_MASK_POSITIONS + 1, (n_spans,)).tolist()
    starts = torch.randint(0, positions, (n_spans,)).tolist()
    mask = torch.zeros(positions, 1, dtype=torch.bool)
    for start, length in zip(starts, lengths, strict=True):
        mask[start : start + length] = True
    return encoder_output.masked_fill(mask, 0.0)


def autocast(dtype: torch.dtype) -> AbstractContextManager[None]:
    """Return a context in which matrix products have a dtype."""
    context: AbstractContextManager[None] = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    return context
