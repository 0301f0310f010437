"""Random streams and chunks against the reference backend, and against references with known bugs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import BackendPair
from streams import PROMPT, Streams

from harken.backends.numpy import model, streaming_encoder
from harken.backends.numpy.model import Mask, Weights
from harken.backends.numpy.streaming_encoder import EncodedChunk
from harken.contract import Floats
from tiny_models import DIMS

MAX_STREAMS = 3
"""Most streams of a program."""


@st.composite
def draw_programs(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], int, int, bool]]]:
    """Draw a history and some steps: streams, frames of their chunks, final frames, and whether they end."""
    history_frames = 2 * draw(st.integers(0, DIMS.n_audio_ctx))
    positions_left, open_streams, steps = [DIMS.n_audio_ctx] * MAX_STREAMS, set(range(MAX_STREAMS)), []
    for _ in range(draw(st.integers(1, 8))):
        candidates = sorted(stream for stream in open_streams if positions_left[stream])
        if not candidates:
            break
        streams = draw(st.lists(st.sampled_from(candidates), min_size=1, unique=True))
        positions = draw(st.integers(1, min(positions_left[stream] for stream in streams)))
        final, end = draw(st.integers(0, positions)), draw(st.sampled_from([False] * 5 + [True]))
        steps.append((streams, 2 * positions, 2 * final, end))
        for stream in streams:
            positions_left[stream] -= final
        open_streams -= set(streams if end else ())
    return history_frames, steps


def test_random_programs_stay_in_step_with_the_reference(backends: BackendPair) -> None:
    @settings(max_examples=40 if backends.name.endswith("fp32") else 8)
    @given(draw_programs(), st.randoms(use_true_random=False))
    def run(program: tuple[int, list[tuple[list[int], int, int, bool]]], random: Random) -> None:
        history_frames, steps = program
        streams = Streams(backends, MAX_STREAMS, history_frames)
        encoded: set[int] = set()
        for step_streams, chunk_frames, final_frames, end in steps:
            streams.encode(step_streams, chunk_frames, final_frames, end=end)
            encoded |= set(step_streams)
        order = sorted(encoded)
        random.shuffle(order)
        streams.compare(order)

    run()


def keeps_look_ahead_in_the_history(chunks: Sequence[EncodedChunk]) -> Mask:
    """Keep keys and values of look-ahead in the history."""
    return np.ones(sum(chunk.positions for chunk in chunks), np.bool_)


def counts_positions_from_each_chunk(chunks: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Count positions from the start of each chunk."""
    embedding = weights["encoder.positional_embedding"]
    wrong = np.concatenate([embedding[: chunk.positions] for chunk in chunks])
    right = np.concatenate([embedding[chunk.first_position :][: chunk.positions] for chunk in chunks])
    return EMBED_CHUNKS(chunks, weights) - right + wrong


def pads_before_each_chunk(chunks: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Pad each chunk with zeros instead of the frames before it."""
    embedding = weights["encoder.positional_embedding"]
    parts = [model.stem(chunk.mel, weights) for chunk in chunks]
    moved = [
        x - embedding[: len(x)] + embedding[chunk.first_position :][: len(x)]
        for x, chunk in zip(parts, chunks, strict=True)
    ]
    return np.concatenate(moved)


def drops_the_right_context(chunks: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Pad each chunk with zeros instead of the frame behind it."""
    cut = [
        EncodedChunk(chunk.mel[:, : 2 * chunk.positions], chunk.first_position, chunk.final_positions)
        for chunk in chunks
    ]
    return EMBED_CHUNKS(cut, weights)


def pads_mel_instead_of_convolved_frames(chunks: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Feed the second convolution the first one's output of zeros before the stream, instead of zeros."""
    silence = np.zeros((len(chunks[0].mel), 2), np.float32)
    embedding = weights["encoder.positional_embedding"]
    later = {**weights, "encoder.positional_embedding": np.pad(embedding, ((1, 0), (0, 0)))}
    first = EncodedChunk(np.concatenate([silence, chunks[0].mel], axis=1), 0, chunks[0].final_positions + 1)
    rest = [EncodedChunk(chunk.mel, chunk.first_position + 1, chunk.final_positions) for chunk in chunks[1:]]
    return EMBED_CHUNKS([first, *rest], later)[1:]


def halves_the_history(chunks: Sequence[EncodedChunk], history_positions: int) -> Mask:
    """Count the history in the wrong unit."""
    return ATTENTION_MASK(chunks, history_positions // 2)


def adds_a_position_to_the_history(chunks: Sequence[EncodedChunk], history_positions: int) -> Mask:
    """Make the history one position too long."""
    return ATTENTION_MASK(chunks, history_positions + 1)


EMBED_CHUNKS, ATTENTION_MASK = streaming_encoder.embed_chunks, streaming_encoder.attention_mask
BUGS = {
    keeps_look_ahead_in_the_history: "final_position_mask",
    counts_positions_from_each_chunk: "embed_chunks",
    pads_before_each_chunk: "embed_chunks",
    drops_the_right_context: "embed_chunks",
    pads_mel_instead_of_convolved_frames: "embed_chunks",
    halves_the_history: "attention_mask",
    adds_a_position_to_the_history: "attention_mask",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bug_in_the_reference_breaks_the_comparison(
    backends: BackendPair, bug: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    if backends.tolerance > 0.05:
        pytest.skip("a single position of history changes less than the rounding of this precision")
    streams = Streams(backends, 1, history_frames=8)
    for _ in range(4):
        streams.encode([0], 12, 8)
    right = streams.open_sessions([0])
    monkeypatch.setattr(streaming_encoder, BUGS[bug], bug)
    pair = replace(right, reference=streams.open_sessions([0]).reference)
    with pytest.raises(AssertionError):
        pair.extend([PROMPT], last_n=len(PROMPT))
