"""The encoder of a stream in PyTorch, for training: what `Backend.encode_chunk` computes chunk by chunk, all at once.

The chunks are concatenated, as in the reference backend (`harken.backends.numpy.backend`): each position attends to its
own chunk and to the final positions of earlier chunks within the history. A chunk of which nothing becomes final, and
that is not the last one, influences nothing and is left out; so are, in the last layer, the look-ahead positions of all
chunks but the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.training.hearing import HeardChunk
from harken.training.network import NamedWeights, convolve, linear, mlp, norm
from harken.types import FRAMES_PER_POSITION, Dims

CONTEXT_POSITIONS = 2
"""Positions before a chunk whose frames its convolutions read, rounded up."""


def run_streaming_encoder(
    weights: NamedWeights, dims: Dims, chunks: Sequence[HeardChunk], history_frames: int
) -> Tensor:
    """Encode a stream.

    Parameters
    ----------
    weights : mapping of str to Tensor
    dims : Dims
    chunks : sequence of HeardChunk
    history_frames : int
        As for `harken.contract.Backend.open_encoder`.

    Returns
    -------
    Tensor of shape (positions, n_audio_state)
        As of `harken.contract.Backend.stream_features` after the last chunk.
    """
    chunks = [chunk for chunk in chunks[:-1] if chunk.final_positions] + [chunks[-1]]
    layout = [*_lay_out(chunks, history_frames // FRAMES_PER_POSITION)]
    needed = torch.cat([torch.arange(rows.start, rows.start + rows.n_needed) for rows in layout])
    x = _embed(weights, chunks)
    for layer in range(dims.n_audio_layer):
        block, is_last = f"encoder.blocks.{layer}", layer == dims.n_audio_layer - 1
        y = norm(x, weights, f"{block}.attn_ln")
        key, value = (
            _split_heads(linear(y, weights, f"{block}.attn.{name}"), dims) for name in ("key", "value")
        )
        query = _split_heads(linear(y[needed] if is_last else y, weights, f"{block}.attn.query"), dims)
        lengths = [rows.n_needed if is_last else rows.stop - rows.start for rows in layout]
        attended = [
            F.scaled_dot_product_attention(part, key[:, rows.attended], value[:, rows.attended])
            for rows, part in zip(layout, query.split(lengths, dim=1), strict=True)
        ]
        mixed = torch.cat(attended, dim=1).transpose(0, 1).flatten(1)
        x = (x[needed] if is_last else x) + linear(mixed, weights, f"{block}.attn.out")
        x = x + mlp(x, weights, block)
    return norm(x, weights, "encoder.ln_post")


@dataclass(frozen=True, slots=True)
class _ChunkRows:
    """The rows of a chunk among those of all chunks concatenated.

    Parameters
    ----------
    start, stop : int
    n_needed : int
        Rows from the first one on that belong to the result.
    attended : Tensor of int64
        Rows that they attend to: the history, then the chunk.
    """

    start: int
    stop: int
    n_needed: int
    attended: Tensor


def _lay_out(chunks: Sequence[HeardChunk], history_positions: int) -> list[_ChunkRows]:
    layout: list[_ChunkRows] = []
    final_rows: list[int] = []  # by position in the stream
    for chunk in chunks:
        start = layout[-1].stop if layout else 0
        rows = range(start, start + chunk.positions)
        history = final_rows[max(0, chunk.first_position - history_positions) : chunk.first_position]
        n_needed = chunk.positions if chunk is chunks[-1] else chunk.final_positions
        layout.append(_ChunkRows(rows.start, rows.stop, n_needed, torch.tensor([*history, *rows])))
        final_rows += rows[: chunk.final_positions]
    return layout


def _embed(weights: NamedWeights, chunks: Sequence[HeardChunk]) -> Tensor:
    """Convolve each chunk behind the final frames before it, and concatenate the results."""
    embeddings, final_mel = [], torch.empty(len(chunks[0].mel), 0)
    for chunk in chunks:
        context = final_mel[:, -CONTEXT_POSITIONS * FRAMES_PER_POSITION :] if final_mel.shape[1] else final_mel
        mel = torch.from_numpy(chunk.mel)
        x = convolve(weights, torch.cat([context, mel], dim=1))
        x = x[context.shape[1] // FRAMES_PER_POSITION :][: chunk.positions]
        positions = slice(chunk.first_position, chunk.first_position + chunk.positions)
        embeddings.append(x + weights["encoder.positional_embedding"][positions])
        final_mel = torch.cat([final_mel, mel[:, : FRAMES_PER_POSITION * chunk.final_positions]], dim=1)
    return torch.cat(embeddings)


def _split_heads(x: Tensor, dims: Dims) -> Tensor:
    """Split (rows, n_audio_state) into heads: (heads, rows, head size)."""
    return x.unflatten(-1, (dims.n_audio_head, -1)).transpose(0, 1)
