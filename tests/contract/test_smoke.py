"""The contract in short, for the backends that do not take the whole suite."""

from __future__ import annotations

import numpy as np
from pairs import BackendPair

from tiny_models import BACKENDS, DIMS, make_mel


def test_session_that_is_used_in_every_way_is_that_of_the_reference(other_backends: BackendPair) -> None:
    session = other_backends.open_session([0, 2, 2], attention=True)
    session.extend([[256, 72, 101], [256], [256, 72]], 2)
    session.reorder([0, 1, 1, 2])
    session.extend([[1], [2, 3, 4], [], [5]], 3)
    session.rewind([3, 2, 1, 2])
    session.extend([[6], [7], [8], [9, 10]])
    assert session.lengths == (4, 3, 2, 4)
    for row in range(4):
        session.attention(row)


def test_stream_is_encoded_as_by_the_reference(other_backends: BackendPair) -> None:
    mel = make_mel(1)[:, :, :33]
    outputs = []
    for backend in (other_backends.tested, other_backends.reference):
        state = backend.open_encoder(8)
        backend.encode_chunk([state], mel[:, :, :17], 8)
        backend.encode_chunk([state], mel[:, :, 8:25], 16)
        outputs.append(np.asarray(backend.encoder_output(backend.stream_features([state])))[0])
    actual, expected = outputs
    assert actual.shape == expected.shape == (12, DIMS.n_audio_state)
    # A stream is computed in float32 or in the precision of windows, so that the tolerance is that of a window.
    tolerance = max(other_backends.tolerance, BACKENDS["onnx-fp32"].tolerance)
    assert np.abs(actual - expected).max() <= tolerance * expected.std()
