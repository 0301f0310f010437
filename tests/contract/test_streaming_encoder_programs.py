"""Random streams and chunks against the reference backend."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import BackendPair
from streams import Streams

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
