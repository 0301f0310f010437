"""Streams encoded chunk by chunk: every backend against the reference, and both against the offline encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pairs import PROMPT, BackendPair, decode
from streams import Streams, decode_alone, make_mels

from harken.backends.numpy import model
from harken.backends.numpy.backend import NumpyFeatures
from tiny_models import BACKENDS, DIMS, make_backend, make_weights

WHOLE = 2 * DIMS.n_audio_ctx


def close(actual: np.ndarray, expected: np.ndarray, backends: BackendPair) -> None:
    """Compare results of two ways to compute, in which even the reference adds in another order."""
    tolerance = max(backends.tolerance, BACKENDS["onnx-fp32"].tolerance)
    np.testing.assert_allclose(actual, expected, atol=tolerance * expected.std(), rtol=0)


def test_one_chunk_of_the_whole_stream_equals_the_offline_encoder(backends: BackendPair) -> None:
    streams = Streams(backends, 2, history_frames=0)
    streams.encode([0, 1], WHOLE, WHOLE, end=True)
    offline = backends.reference.encode(streams.mels[:, :, :WHOLE])
    whole = decode(backends.reference, offline, [0, 1], last_n=len(PROMPT))
    close(streams.compare([0, 1]), whole, backends)


@pytest.mark.parametrize("history_frames", [0, 4, 10, WHOLE])
def test_chunks_without_look_ahead_equal_the_offline_encoder_under_a_block_mask(
    backends: BackendPair, history_frames: int
) -> None:
    block_frames = (6, 2, 10, 6, 16, 8)
    streams = Streams(backends, 1, history_frames)
    for frames in block_frames:
        streams.encode([0], frames, frames, end=streams.positions_left(0) == frames // 2)
    streams.compare([0])

    block = np.repeat(np.arange(len(block_frames)), block_frames)[::2]
    block_start = np.repeat(np.cumsum((0, *block_frames[:-1])), block_frames)[::2] // 2
    keys = np.arange(DIMS.n_audio_ctx)
    mask = (block <= block[:, None]) & (keys >= block_start[:, None] - history_frames // 2)
    x = model.stem(streams.mels[0, :, :WHOLE], make_weights())
    offline = NumpyFeatures.from_windows([model.encoder_blocks(x, make_weights(), DIMS, mask)])
    expected = decode(backends.reference, offline, last_n=len(PROMPT))
    close(decode_alone(backends, streams.states[0]), expected, backends)


def test_chunk_may_be_look_ahead_only(backends: BackendPair) -> None:
    streams = Streams(backends, 1, history_frames=8)
    streams.encode([0], 10, 4)
    streams.encode([0], 10, 4)
    before = decode_alone(backends, streams.states[0])
    streams.encode([0], 16, 0)
    streams.compare([0])
    streams.encode([0], 6, 0, end=True)
    streams.compare([0])
    streams.encode([0], 4, 4)
    streams.compare([0])
    assert streams.states[0].final_positions == 6
    assert not np.allclose(decode_alone(backends, streams.states[0]), before, atol=1e-3)


def test_repeated_look_ahead_leaves_no_trace(backends: BackendPair) -> None:
    """Frames may be encoded any number of times as look-ahead before they become final."""
    plain, repeated = Streams(backends, 1, history_frames=10), Streams(backends, 1, history_frames=10)
    for _ in range(3):
        plain.encode([0], 12, 8)
        repeated.encode([0], 6, 0)
        repeated.encode([0], 20, 0)
        repeated.encode([0], 12, 8)
    close(repeated.compare([0]), plain.compare([0]), backends)


def test_batch_of_streams_equals_each_stream_alone(backends: BackendPair) -> None:
    """The streams have histories of different length, shorter and as long as `history_frames`."""
    mels = make_mels(3)
    together = Streams(backends, 3, history_frames=12, mels=mels)
    separate = [Streams(backends, 1, history_frames=12, mels=mels[i : i + 1]) for i in range(3)]
    for stream, hops in enumerate((0, 1, 4)):
        for _ in range(hops):
            together.encode([stream], 10, 6)
            separate[stream].encode([0], 10, 6)
    for _ in range(2):
        together.encode([2, 0, 1], 12, 8)
        for stream in range(3):
            separate[stream].encode([0], 12, 8)
    batched = together.compare([0, 1, 2])
    for stream, logits in enumerate(np.split(batched, 3)):
        close(decode_alone(backends, separate[stream].states[0]), logits, backends)


def test_attention_is_zero_behind_the_end_of_a_shorter_stream(backends: BackendPair) -> None:
    streams = Streams(backends, 2, history_frames=8)
    streams.encode([0, 1], 10, 6)
    streams.encode([1], 20, 6)
    pair = streams.open_sessions([0, 1], attention=True)
    pair.extend([PROMPT] * 2)
    short, long = pair.attention(0), pair.attention(1)
    assert short.shape[2] == long.shape[2] == 13
    assert not short[:, :, 5:].any()
    np.testing.assert_allclose(short.sum(axis=2), 1, atol=1e-5)
    assert (long[:, :, 5:] > 0).any(axis=2).all()


def test_rows_over_streams_of_different_length_extend_rewind_and_reorder(backends: BackendPair) -> None:
    """Padding masks follow the rows."""
    streams = Streams(backends, 3, history_frames=8)
    for stream, hops in enumerate((1, 5, 3)):
        for _ in range(hops):
            streams.encode([stream], 12, 6)
    pair = streams.open_sessions([2, 1, 0], attention=True)
    pair.extend([PROMPT, PROMPT[:2], PROMPT[:5]], last_n=2)
    pair.extend([[65, 66], [67], []], last_n=2)
    for rows in ([0, 1, 2, 2], [3, 1, 0, 0], [0, 0, 1], [2, 0], [1]):
        pair.reorder(rows)
        pair.extend([[70 + row] for row in range(len(rows))])
        pair.rewind([length - 1 + row % 2 for row, length in enumerate(pair.lengths)])
        pair.extend([[80 + row, 90] for row in range(len(rows))], last_n=2)
        for row in range(len(rows)):
            pair.attention(row)


def test_features_do_not_change_with_later_chunks(backends: BackendPair) -> None:
    streams = Streams(backends, 1, history_frames=8)
    streams.encode([0], 12, 6)
    early = streams.open_sessions([0])
    streams.encode([0], 12, 6)
    streams.encode([0], 12, 6)
    early.extend([PROMPT])
    assert early.lengths == (len(PROMPT),)


def test_decoder_without_encoder_reuses_the_output_of_streams(backends: BackendPair, tmp_path: Path) -> None:
    streams = Streams(backends, 2, history_frames=8)
    streams.encode([0, 1], 12, 6)
    streams.encode([1], 12, 6)
    decoder = make_backend(backends.name, tmp_path, shares_encoder=True)
    features = decoder.reuse_encoder_output(backends.tested.stream_features(streams.states))
    decoded = decode(decoder, features, [0, 1], last_n=len(PROMPT))
    close(decoded, streams.compare([0, 1]), backends)


class ForeignState:
    """State of a stream in a backend of another kind."""

    final_positions = positions = 0


def test_encoder_states_of_another_backend_are_refused(backends: BackendPair) -> None:
    own, mel = backends.tested.open_encoder(8), make_mels(2)[:, :, :13]
    with pytest.raises(AssertionError, match="this backend's own open_encoder"):
        backends.tested.encode_chunk([own, ForeignState()], mel, 12)
    backends.tested.encode_chunk([own], mel[:1], 12)
    with pytest.raises(AssertionError, match="this backend's own open_encoder"):
        backends.tested.stream_features([own, ForeignState()])


def test_encoder_output_of_streams_is_that_of_the_reference(backends: BackendPair) -> None:
    streams = Streams(backends, 2, history_frames=8)
    streams.encode([0, 1], 12, 6)
    streams.encode([1], 12, 6)
    tested = backends.tested.encoder_output(backends.tested.stream_features(streams.states))
    reference = backends.reference.encoder_output(backends.reference.stream_features(streams.reference_states))
    for row, state in enumerate(streams.reference_states):
        expected = reference[row, : state.positions]
        assert np.abs(tested[row, : state.positions] - expected).max() <= backends.tolerance * expected.std()
