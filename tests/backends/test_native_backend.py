"""What the native backend refuses, and what it keeps of streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harken.backends.native import NativeBackend
from harken.backends.native import decoder as native_decoder
from harken.backends.native.library import unavailable_reason
from harken.errors import OptionError
from tiny_models import DIMS, make_backend

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")


@pytest.mark.parametrize("change", ["n_audio_head=8", "n_text_head=8", "n_text_state=48, n_text_head=3"])
def test_model_whose_heads_do_not_fit_is_refused_with_the_extra_that_takes_it(
    tmp_path: Path, change: str
) -> None:
    changes = {name: int(value) for name, _, value in (part.partition("=") for part in change.split(", "))}
    with pytest.raises(
        OptionError, match=r"backend='onnx' \(pip install '\.\[onnx\]'.*heads of a multiple of 16"
    ) as caught:
        NativeBackend(replace(DIMS, **changes), {}, "digest", cache=tmp_path)
    assert change in str(caught.value)
    assert "\n" not in str(caught.value)


def test_stream_packed_chunk_by_chunk_is_the_stream_packed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of the look-ahead are packed again; those before the part that changes are not."""
    backend = make_backend("native-int8", tmp_path)
    monkeypatch.setattr(native_decoder, "PART_OF_STREAM", 16)
    noise = np.random.default_rng(0)
    often, once = backend.open_encoder(20), backend.open_encoder(20)
    for n_frames, final_frames in ((9, 0), (17, 10), (17, 4), (23, 16), (17, 0), (17, 16)):
        mel = noise.standard_normal((1, DIMS.n_mels, n_frames)).astype(np.float32)
        for state in (often, once):
            backend.encode_chunk([state], mel, final_frames)
        backend.stream_features([often])
    sessions = [backend.open_session(backend.stream_features([state]), [0], 8) for state in (often, once)]
    one, other = (session.extend([[65, 66, 67]]).top(3) for session in sessions)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("token", [-1, DIMS.n_vocab])
def test_token_outside_of_the_vocabulary_is_refused(tmp_path: Path, token: int) -> None:
    backend = make_backend("native-int8", tmp_path)
    features = backend.encode(np.zeros((1, DIMS.n_mels, 20), np.float32))
    logits = backend.open_session(features, [0], 8).extend([[65]])
    logits.suppress_tokens(np.array([3, token]))
    with pytest.raises(IndexError, match="not all ids"):
        logits.top(1)
