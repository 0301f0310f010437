"""Random programs of windows, in step with the reference; and faulty references, with which no backend is in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from bench import Bench
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import PROMPT, Streams

from harken.backends.numpy import model, streaming_encoder
from harken.backends.numpy.model import Mask, Weights
from harken.backends.numpy.streaming_encoder import EncodedChunk
from harken.contract import Floats
from tiny_models import DIMS

MOST = 3
"""Streams in a program."""


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], int, int, bool]]]:
    """A history, and what is heard: which streams, window and kept frames, and whether that is their end."""
    history = 2 * draw(st.integers(0, DIMS.n_audio_ctx))
    room, going, steps = [DIMS.n_audio_ctx] * MOST, set(range(MOST)), []
    for _ in range(draw(st.integers(1, 8))):
        able = sorted(stream for stream in going if room[stream])
        if not able:
            break
        streams = draw(st.lists(st.sampled_from(able), min_size=1, unique=True))
        window = draw(st.integers(1, min(room[stream] for stream in streams)))
        keep, end = draw(st.integers(0, window)), draw(st.sampled_from([False] * 5 + [True]))
        steps.append((streams, 2 * window, 2 * keep, end))
        for stream in streams:
            room[stream] -= keep
        going -= set(streams if end else ())
    return history, steps


def test_random_programs(bench: Bench) -> None:
    @settings(max_examples=40 if bench.name.endswith("fp32") else 8)
    @given(programs(), st.randoms(use_true_random=False))
    def follow(program: tuple[int, list[tuple[list[int], int, int, bool]]], random: object) -> None:
        history, steps = program
        streams = Streams(bench, MOST, history)
        heard: set[int] = set()
        for which, window, keep, end in steps:
            streams.hear(which, window, keep, end=end)
            heard |= set(which)
        order = sorted(heard)
        random.shuffle(order)  # type: ignore[attr-defined]
        streams.compare(order)

    follow()


def forgets_nothing_of_look_ahead(windows: Sequence[EncodedChunk]) -> Mask:
    """Keys and values of look-ahead stay in history."""
    return np.ones(sum(window.positions for window in windows), np.bool_)


def starts_again(windows: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Positions are counted from the beginning of each window."""
    embedding = weights["encoder.positional_embedding"]
    its = np.concatenate([embedding[: window.positions] for window in windows])
    right = np.concatenate([embedding[window.first_position :][: window.positions] for window in windows])
    return STEM(windows, weights) - right + its


def pads_each_window(windows: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Zeros stand before each window, where frames of the one before do."""
    embedding = weights["encoder.positional_embedding"]
    parts = [model.stem(window.mel, weights) for window in windows]
    moved = [
        x - embedding[: len(x)] + embedding[window.first_position :][: len(x)]
        for x, window in zip(parts, windows, strict=True)
    ]
    return np.concatenate(moved)


def drops_the_frame_behind(windows: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Zeros stand behind each window, where a frame was given for the convolutions."""
    cut = [
        EncodedChunk(window.mel[:, : 2 * window.positions], window.first_position, window.final_positions)
        for window in windows
    ]
    return STEM(cut, weights)


def pads_with_what_convolved_silence_is(windows: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """The second convolution sees what the first makes of zeros before the stream, where it should see zeros."""
    silence = np.zeros((len(windows[0].mel), 2), np.float32)
    embedding = weights["encoder.positional_embedding"]
    later = {**weights, "encoder.positional_embedding": np.pad(embedding, ((1, 0), (0, 0)))}
    first = EncodedChunk(np.concatenate([silence, windows[0].mel], axis=1), 0, windows[0].final_positions + 1)
    rest = [
        EncodedChunk(window.mel, window.first_position + 1, window.final_positions) for window in windows[1:]
    ]
    return STEM([first, *rest], later)[1:]


def sees_no_further_than_half(windows: Sequence[EncodedChunk], history: int) -> Mask:
    """The history is counted in other units."""
    return VISIBLE(windows, history // 2)


def sees_one_more(windows: Sequence[EncodedChunk], history: int) -> Mask:
    """The history is one position too long."""
    return VISIBLE(windows, history + 1)


STEM, VISIBLE = streaming_encoder.embed_chunks, streaming_encoder.attention_mask
BUGS = {
    forgets_nothing_of_look_ahead: "final_position_mask",
    starts_again: "embed_chunks",
    pads_each_window: "embed_chunks",
    drops_the_frame_behind: "embed_chunks",
    pads_with_what_convolved_silence_is: "embed_chunks",
    sees_no_further_than_half: "attention_mask",
    sees_one_more: "attention_mask",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bugs_would_be_noticed(
    bench: Bench, bug: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    if bench.tolerance > 0.05:
        pytest.skip("a single position of history is no louder than the rounding of this precision")
    streams = Streams(bench, 1, history=8)
    for _ in range(4):
        streams.hear([0], 12, 8)
    right = streams.gather([0])
    monkeypatch.setattr(streaming_encoder, BUGS[bug], bug)
    pair = replace(right, expected=streams.gather([0]).expected)
    with pytest.raises(AssertionError):
        pair.extend([PROMPT], last_n=len(PROMPT))
