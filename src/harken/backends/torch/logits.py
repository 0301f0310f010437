"""The logits of the GPU engine, which stay on the device; only chosen ids and their scores go to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harken.backends.torch.device import upload
from harken.contract import Floats, Ints, TokenRange

MAX_VOCAB = 1 << 20
"""Bound on the size of a vocabulary (see `harken.types.Dims`); float32 holds all ids below it exactly."""


class LogitVocabulary:
    """The token ids of the columns of logits: the whole vocabulary, or a part of it.

    Parameters
    ----------
    token_ids : ndarray of shape (columns,), int64
        Ascending ids.
    device : torch.device
    """

    def __init__(self, token_ids: Ints, device: torch.device) -> None:
        self.token_ids, self.token_ids_on_device = token_ids, upload(token_ids, device)

    def __len__(self) -> int:
        return len(self.token_ids)

    def find_columns(self, tokens: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the column of each token, and whether it has one."""
        columns = np.searchsorted(self.token_ids, tokens).clip(max=len(self) - 1)
        return columns, self.token_ids[columns] == tokens


class TorchLogits:
    """`harken.contract.Logits` over a tensor that this object owns and changes.

    A token without a column counts as one with the logit -inf.

    Parameters
    ----------
    values : Tensor of shape (P, columns), float32
    vocabulary : LogitVocabulary
        Token ids of the columns.
    """

    def __init__(self, values: Tensor, vocabulary: LogitVocabulary) -> None:
        self.values, self.vocabulary = values, vocabulary

    def __len__(self) -> int:
        return len(self.values)

    def select_positions(self, positions: Sequence[int]) -> TorchLogits:
        chosen = self._upload(np.array(positions, np.int64))
        return TorchLogits(self.values.index_select(0, chosen), self.vocabulary)

    def probability(self, token: int) -> Floats:
        column, covered = self.vocabulary.find_columns(np.array([token]))
        if not covered:
            return np.zeros(len(self), np.float32)
        probability: Floats = (self.values[:, column[0]] - self._log_normalizer()).exp().cpu().numpy()
        return probability

    def suppress_ranges(self, token_ranges: Sequence[Sequence[TokenRange]]) -> None:
        if len(token_ranges) != len(self):
            raise ValueError(f"{len(token_ranges)} lists of ranges for {len(self)} positions")
        # One kernel for the first ranges of all positions, one for the second, and so on.
        nth_ranges = list(zip_longest(*token_ranges, fillvalue=(0, 0)))
        edges = self._upload(np.array(nth_ranges, np.int64).reshape(len(nth_ranges), len(self), 2))
        ids = self.vocabulary.token_ids_on_device
        for edge in edges:
            start, stop = edge[:, :1], edge[:, 1:]
            self.values.masked_fill_((start <= ids) & (ids < stop), -torch.inf)

    def suppress_tokens(self, tokens: Ints) -> None:
        columns, covered = self.vocabulary.find_columns(tokens)
        self.values.index_fill_(1, self._upload(columns[covered]), -torch.inf)

    def bias(self, bonuses: Sequence[Mapping[int, float]]) -> None:
        if len(bonuses) != len(self):
            raise ValueError(f"{len(bonuses)} bonuses for {len(self)} positions")
        rows = np.repeat(np.arange(len(self)), [len(row_bonuses) for row_bonuses in bonuses])
        tokens = np.array([token for row_bonuses in bonuses for token in row_bonuses], np.int64)
        columns, covered = self.vocabulary.find_columns(tokens)
        if covered.any():
            bonus_values = np.array(
                [bonus for row_bonuses in bonuses for bonus in row_bonuses.values()], np.float32
            )
            where = self._upload(rows[covered]), self._upload(columns[covered])
            self.values[where] += self._upload(bonus_values[covered])

    def prefer_timestamps(self, timestamp_begin: int) -> None:
        column = np.searchsorted(self.vocabulary.token_ids, timestamp_begin)
        text, timestamps = self.values[:, :column], self.values[:, column:]
        if text.numel():
            text.masked_fill_((timestamps.logsumexp(1) > text.amax(1))[:, None], -torch.inf)

    def top(self, k: int) -> tuple[Ints, Floats]:
        columns = self.values.argmax(1, keepdim=True) if k == 1 else _top_columns(self.values, k)
        return self._read_columns(columns)

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        wide = torch.float32 if self.values.device.type == "mps" else torch.float64
        peak = self.values.amax(1, keepdim=True)
        cumulative = ((self.values - peak) / temperature).to(wide).exp().cumsum(1)
        uniform = upload(uniforms, self.values.device, wide).clamp(max=1 - torch.finfo(wide).eps)
        columns = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
        ids, logprobs = self._read_columns(columns)
        return ids[:, 0], logprobs[:, 0]

    def _read_columns(self, columns: Tensor) -> tuple[Ints, Floats]:
        """Return ids and log-probabilities of some columns of each position, by one transfer to the host."""
        logprobs = self.values.gather(1, columns) - self._log_normalizer()[:, None]
        both = torch.stack([columns.float(), logprobs]).cpu().numpy()
        return self.vocabulary.token_ids[both[0].astype(np.int64)], both[1]

    def _log_normalizer(self) -> Tensor:
        return self.values.logsumexp(1)

    def _upload(self, array: Ints | Floats) -> Tensor:
        return upload(array, self.values.device)


def _top_columns(values: Tensor, k: int) -> Tensor:
    """Return the columns of the k largest values of each row, largest first, the lower column first among equals.

    The order of equal values in PyTorch's topk is undefined, and in half precision they are common. So the keys are
    integers that are all different: the bits of the value, made to ascend with it, followed by the column.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0: one zero, not two
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    columns = torch.arange(values.shape[1], device=values.device)
    return (ascending * MAX_VOCAB - columns).topk(min(k, values.shape[1]), 1).values.neg() % MAX_VOCAB
