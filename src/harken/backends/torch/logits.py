"""Logits on the device, and greedy steps there: each reads the token that the one before it picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from harken.backends.encoding import NO_TOKEN, columns_of
from harken.backends.torch.device import upload
from harken.contract import Floats, GreedyRules, Ints, PickedSoFar, TokenRange

MAX_VOCAB = 1 << 20
"""Bound on the size of a vocabulary (see `harken.types.Dims`); float32 holds all ids below it exactly."""
MAX_CHOICES = 8
"""Most sets of rules whose choice is kept."""
STATE_COLUMNS = 5
"""Columns before the tokens in the input of a step: number of tokens that the row holds; index of its last new token;
token before that one; last timestamp before the next token; end of speech. A token that there is not is
`NO_TOKEN`."""
MOST_CERTAIN = 0.99
"""Highest probability that a token counts with towards `harken.contract.PickedSoFar.least_prob`."""


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
        self._choices: dict[tuple[int, int | None, bytes], GreedyChoice] = {}

    def __len__(self) -> int:
        return len(self.token_ids)

    def choice(self, rules: GreedyRules) -> GreedyChoice:
        """Return the choice by some rules: the same object for equal rules, as captured steps are bound to it."""
        key = rules.eot, rules.timestamp_begin, rules.suppressed.tobytes()
        if key not in self._choices:
            if len(self._choices) == MAX_CHOICES:
                self._choices.clear()
            self._choices[key] = GreedyChoice(rules, self)
        return self._choices[key]


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
        columns = columns_of(np.array([token]), self.vocabulary.token_ids)
        if not len(columns):
            return np.zeros(len(self), np.float32)
        probability: Floats = (self.values[:, columns[0]] - self._log_normalizer()).exp().cpu().numpy()
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
        self.values.index_fill_(1, self._upload(columns_of(tokens, self.vocabulary.token_ids)), -torch.inf)

    def bias(self, bonuses: Sequence[Mapping[int, float]]) -> None:
        if len(bonuses) != len(self):
            raise ValueError(f"{len(bonuses)} bonuses for {len(self)} positions")
        rows = np.repeat(np.arange(len(self)), [len(row_bonuses) for row_bonuses in bonuses])
        tokens = np.array([token for row_bonuses in bonuses for token in row_bonuses], np.int64)
        covered = np.isin(tokens, self.vocabulary.token_ids)
        if covered.any():
            bonus_values = np.array(
                [bonus for row_bonuses in bonuses for bonus in row_bonuses.values()], np.float32
            )
            columns = columns_of(tokens, self.vocabulary.token_ids)
            where = self._upload(rows[covered]), self._upload(columns)
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

    def log_probabilities(self, columns: Tensor) -> Tensor:
        """Return the log-probabilities of some columns of each position, shape (P, columns)."""
        return self.values.gather(1, columns) - self._log_normalizer()[:, None]

    def _read_columns(self, columns: Tensor) -> tuple[Ints, Floats]:
        """Return ids and log-probabilities of some columns of each position, by one transfer to the host."""
        both = torch.stack([columns.float(), self.log_probabilities(columns)]).cpu().numpy()
        return self.vocabulary.token_ids[both[0].astype(np.int64)], both[1]

    def _log_normalizer(self) -> Tensor:
        return self.values.logsumexp(1)

    def _upload(self, array: Ints | Floats) -> Tensor:
        return upload(array, self.values.device)


class GreedyChoice:
    """The most probable token that the rules allow, chosen on the device.

    Parameters
    ----------
    rules : GreedyRules
    vocabulary : LogitVocabulary
    """

    def __init__(self, rules: GreedyRules, vocabulary: LogitVocabulary) -> None:
        self._rules, self._vocabulary = rules, vocabulary
        suppressed = np.zeros(len(vocabulary), np.bool_)
        suppressed[columns_of(rules.suppressed, vocabulary.token_ids)] = True
        self._suppressed = upload(suppressed, vocabulary.token_ids_on_device.device)

    def step(
        self, inputs: Tensor, decode: Callable[[Tensor], Tensor], project: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Read new tokens in every cache row, and pick the next one.

        Parameters
        ----------
        inputs : Tensor of shape (cache rows, STATE_COLUMNS + n), int64
            The state, and the n new tokens; a row with fewer of them is padded.
        decode : callable
            `WhisperModel.decode` of (cache rows, 1 + n).
        project : callable
            `WhisperModel.logits`.

        Returns
        -------
        Tensor of shape (cache rows, STATE_COLUMNS + 2), int64
            The input of the next step, which reads the token picked, and the bits of its log-probability in float32.
        """
        length, index, before_last, last_timestamp, speech_end = inputs[:, :STATE_COLUMNS].unbind(1)
        tokens = inputs[:, STATE_COLUMNS:]
        last = tokens.gather(1, index[:, None])[:, 0]
        states = decode(torch.cat([length[:, None], tokens], 1))
        chosen = states.gather(1, index[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
        logits = TorchLogits(project(chosen), self._vocabulary)
        logits.values.masked_fill_(self._suppressed, -torch.inf)
        begin = self._rules.timestamp_begin
        if begin is not None:
            logits.values.masked_fill_(
                self._banned(begin, last, before_last, last_timestamp, speech_end), -torch.inf
            )
            logits.prefer_timestamps(begin)
        column = logits.values.argmax(1, keepdim=True)
        token = self._vocabulary.token_ids_on_device[column][:, 0]
        if begin is not None:
            last_timestamp = torch.where(token >= begin, token, last_timestamp)
        bits = logits.log_probabilities(column)[:, 0].view(torch.int32).long()
        start = torch.zeros_like(index)
        return torch.stack([length + index + 1, start, last, last_timestamp, speech_end, token, bits], 1)

    def _banned(
        self, begin: int, last: Tensor, before_last: Tensor, last_timestamp: Tensor, speech_end: Tensor
    ) -> Tensor:
        """Return which columns break the grammar of timestamps in each row, as `LogitRules.banned` does."""
        ids, eot = self._vocabulary.token_ids_on_device, self._rules.eot
        was_timestamp = last >= begin
        opened = was_timestamp & ((before_last == NO_TOKEN) | (before_last >= begin))
        closing = was_timestamp & ~opened
        least_timestamp = torch.where(opened, torch.iinfo(torch.int64).max, last_timestamp + ~closing)
        empty = opened & (before_last != NO_TOKEN) & (last < speech_end)
        return (
            ((ids >= begin) & (ids < least_timestamp[:, None]))
            | ((ids < eot) & closing[:, None])
            | ((ids == eot) & empty[:, None])
        )


def steps_until_all_ended(ids: Ints, logprobs: Floats, picked: Sequence[PickedSoFar], eot: int) -> int | None:
    """Return the number of steps up to the one with which the last row ends; None if some row goes on."""
    ends = []
    for tokens, row_logprobs, row in zip(ids.T, logprobs.T, picked, strict=True):
        certainty = np.minimum(np.exp(row_logprobs) * row.calibration, MOST_CERTAIN).cumprod()
        ended = (tokens == eot) | (certainty < row.least_prob)
        ended[row.left - 1 :] = True
        if not ended.any():
            return None
        ends.append(int(ended.argmax()) + 1)
    return max(ends)


def _top_columns(values: Tensor, k: int) -> Tensor:
    """Return the columns of the k largest values of each row, largest first, the lower column first among equals.

    The order of equal values in PyTorch's topk is undefined, and in half precision they are common. So the keys are
    integers that are all different: the bits of the value, made to ascend with it, followed by the column.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0: one zero, not two
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    columns = torch.arange(values.shape[1], device=values.device)
    return (ascending * MAX_VOCAB - columns).topk(min(k, values.shape[1]), 1).values.neg() % MAX_VOCAB
