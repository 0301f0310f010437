"""Streams encoded chunk by chunk: every backend against the reference, and that against the offline encoder."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import PROMPT, decode

from harken.backends.numpy import model
from tiny_models import BACKENDS, DIMS, make_backend, make_weights

WHOLE = 2 * DIMS.n_audio_ctx
MAX_STREAMS = 3
"""Most streams of a program."""


def make_mels(streams):
    """Draw log-mel, different in each stream, of one frame more than there are positions for."""
    frames = 2 * DIMS.n_audio_ctx + 1
    return np.random.default_rng(5).standard_normal((streams, DIMS.n_mels, frames), np.float32)


class Streams:
    """Some streams, each encoded by the backend under test and by the reference backend."""

    def __init__(self, backends, count, history_frames):
        self._backends, self._mels = backends, make_mels(count)
        self.states, self._reference_states = (
            [backend.open_encoder(history_frames) for _ in range(count)]
            for backend in (backends.tested, backends.reference)
        )

    def encode(self, streams, chunk_frames, final_frames, *, end=False):
        """Encode the next `chunk_frames` of some streams, and pass the frame behind them unless they end here."""
        firsts = [2 * self._reference_states[stream].final_positions for stream in streams]
        chunks = [
            self._mels[stream, :, first : first + chunk_frames + (not end)]
            for stream, first in zip(streams, firsts, strict=True)
        ]
        mel = np.stack(chunks)
        for backend, states in self._sides():
            backend.encode_chunk([states[stream] for stream in streams], mel, final_frames)
            np.testing.assert_array_equal(mel, chunks)
        for state, expected in zip(self.states, self._reference_states, strict=True):
            assert state.final_positions == expected.final_positions

    def pair(self, streams):
        """Return both backends with the features of some streams."""
        features, reference_features = (
            backend.stream_features([states[stream] for stream in streams]) for backend, states in self._sides()
        )
        return replace(self._backends, features=features, reference_features=reference_features)

    def compare(self, streams):
        """Compare the output and what is decoded; return the log-probabilities after each token of `PROMPT`."""
        pair = self.pair(streams)
        pair.compare_output()
        session = pair.open_session(range(len(streams)), attention=True)
        decoded = session.extend([PROMPT] * len(streams), last_n=len(PROMPT))
        for row in range(len(streams)):
            session.attention(row)
        return decoded

    def _sides(self):
        yield self._backends.tested, self.states
        yield self._backends.reference, self._reference_states


@st.composite
def draw_programs(draw):
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


def test_streams_used_in_any_order_stay_in_step_with_the_reference(backends):
    @settings(max_examples=12 if backends.name.endswith("fp32") else 6)
    @given(draw_programs(), st.randoms(use_true_random=False))
    def run(program, random):
        history_frames, steps = program
        streams = Streams(backends, MAX_STREAMS, history_frames)
        encoded = set()
        for step_streams, chunk_frames, final_frames, end in steps:
            streams.encode(step_streams, chunk_frames, final_frames, end=end)
            encoded |= set(step_streams)
        order = sorted(encoded)
        random.shuffle(order)
        streams.compare(order)

    run()


def test_stream_is_encoded_as_by_the_reference(other_backends):
    """In short, for the backends that do not take the whole suite."""
    streams = Streams(other_backends, 1, history_frames=8)
    streams.encode([0], 16, 8)
    streams.encode([0], 16, 16)
    streams.compare([0])


# --- the reference -----------------------------------------------------------------------------------------


def encode_chunks(backend, history_frames, *chunks):
    """Encode chunks of a stream, each of some frames of which the first ones are final; return all positions."""
    state, mel = backend.open_encoder(history_frames), make_mels(1)
    for frames, final_frames in chunks:
        first = 2 * state.final_positions
        behind = first + frames + (first + frames < WHOLE)
        backend.encode_chunk([state], mel[:, :, first:behind], final_frames)
    return backend.stream_features([state]).windows[0]


@pytest.mark.parametrize(
    ("history_frames", "frames"), [(0, (WHOLE,)), *((n, (6, 2, 10, 6, 16, 8)) for n in (0, 4, 10, WHOLE))]
)
def test_chunks_without_look_ahead_equal_the_offline_encoder_under_a_block_mask(
    reference_backend, history_frames, frames
):
    """One chunk of the whole stream equals it without a mask."""
    actual = encode_chunks(reference_backend, history_frames, *zip(frames, frames, strict=True))
    block = np.repeat(np.arange(len(frames)), frames)[::2]
    block_start = np.repeat(np.cumsum((0, *frames[:-1])), frames)[::2] // 2
    keys = np.arange(DIMS.n_audio_ctx)
    mask = (block <= block[:, None]) & (keys >= block_start[:, None] - history_frames // 2)
    x = model.stem(make_mels(1)[0, :, :WHOLE], make_weights())
    np.testing.assert_allclose(actual, model.encoder_blocks(x, make_weights(), DIMS, mask), atol=1e-4)


def test_repeated_look_ahead_leaves_no_trace(reference_backend):
    """Frames may be encoded any number of times as look-ahead before they become final."""
    plain = encode_chunks(reference_backend, 10, *[(12, 8)] * 3)
    repeated = encode_chunks(reference_backend, 10, *[(6, 0), (20, 0), (12, 8)] * 3)
    np.testing.assert_allclose(repeated, plain, atol=1e-4)


# --- sessions over streams ---------------------------------------------------------------------------------


def test_rows_over_streams_of_different_length_extend_rewind_and_reorder(backends):
    """Padding masks follow the rows."""
    streams = Streams(backends, 3, history_frames=8)
    for stream, hops in enumerate((1, 5, 3)):
        for _ in range(hops):
            streams.encode([stream], 12, 6)
    pair = streams.pair([2, 1, 0]).open_session(range(3), attention=True)
    pair.extend([PROMPT, PROMPT[:2], PROMPT[:5]], last_n=2)
    pair.extend([[65, 66], [67], []], last_n=2)
    assert [int((pair.attention(row) > 0).any(axis=(0, 1)).sum()) for row in range(3)] == [12, 18, 6]
    for rows in ([0, 1, 2, 2], [3, 1, 0, 0], [0, 0, 1], [2, 0], [1]):
        pair.reorder(rows)
        pair.extend([[70 + row] for row in range(len(rows))])
        pair.rewind([length - 1 + row % 2 for row, length in enumerate(pair.lengths)])
        pair.extend([[80 + row, 90] for row in range(len(rows))], last_n=2)
        for row in range(len(rows)):
            pair.attention(row)


def test_features_do_not_change_with_later_chunks(backends):
    streams = Streams(backends, 1, history_frames=8)
    streams.encode([0], 12, 6)
    early = streams.pair([0]).open_session([0])
    streams.encode([0], 12, 6)
    streams.encode([0], 12, 6)
    early.extend([PROMPT])


def test_decoder_without_encoder_reuses_the_output_of_streams(backends, tmp_path):
    streams = Streams(backends, 2, history_frames=8)
    streams.encode([0, 1], 12, 6)
    streams.encode([1], 12, 6)
    decoder = make_backend(backends.name, tmp_path, shares_encoder=True)
    features = decoder.reuse_encoder_output(backends.tested.stream_features(streams.states))
    decoded = decode(decoder, features, [0, 1], last_n=len(PROMPT))
    expected = streams.compare([0, 1])
    tolerance = max(backends.tolerance, BACKENDS["onnx-fp32"].tolerance)
    np.testing.assert_allclose(decoded, expected, atol=tolerance * expected.std(), rtol=0)


class ForeignState:
    """State of a stream in a backend of another kind."""

    final_positions = positions = 0


def test_encoder_states_of_another_backend_are_refused(backends):
    own, mel = backends.tested.open_encoder(8), make_mels(2)[:, :, :13]
    with pytest.raises(AssertionError, match="this backend's own open_encoder"):
        backends.tested.encode_chunk([own, ForeignState()], mel, 12)
    backends.tested.encode_chunk([own], mel[:1], 12)
    with pytest.raises(AssertionError, match="this backend's own open_encoder"):
        backends.tested.stream_features([own, ForeignState()])
