"""What the native backend loads, and what it does with streams and assistants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_files import random_weights
from harken.backends.native import NativeBackend
from harken.backends.native import decoder as native_decoder
from harken.backends.native.library import unavailable_reason
from harken.contract import Floats
from harken.errors import CheckpointError, OptionError
from harken.types import Dims
from tiny_models import DIMS, make_backend

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")

Open = Callable[..., Any]


def make_fitting_weights(dims: Dims) -> dict[str, Floats]:
    return {name: values.astype(np.float32) for name, values in random_weights(dims).items()}


@pytest.fixture
def open_native(tmp_path: Path) -> Open:
    def open_native(precision: str, dims: Dims = DIMS, **options: Any) -> Any:
        return make_backend(f"native-{precision}", tmp_path, make_fitting_weights(dims), dims=dims, **options)

    return open_native


@pytest.mark.parametrize("shares_encoder", [True, False], ids=["of a whole model", "of a decoder"])
def test_assistant_without_an_encoder_loads_none(
    open_native: Open, shares_encoder: bool, tmp_path: Path
) -> None:
    whole = open_native("int8")
    before = {*tmp_path.glob("*")}
    dims = DIMS if shares_encoder else DIMS.without_encoder()
    assistant = open_native("int4", dims, shares_encoder=shares_encoder)
    (new,) = {*tmp_path.glob("*")} - before
    assert "encoder" not in new.name
    mel = np.random.default_rng(0).standard_normal((1, DIMS.n_mels, 20), np.float32)
    session = assistant.open_session(assistant.reuse_encoder_output(whole.encode(mel)), [0], 8)
    assert len(session.extend([[65, 66]])) == 1
    with pytest.raises(AssertionError, match="no encoder"):
        assistant.encode(mel)


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


def test_weights_are_not_read_where_they_are_packed_already(tmp_path: Path) -> None:
    weights = make_fitting_weights(DIMS)
    NativeBackend(DIMS, weights, "digest", threads=1, cache=tmp_path)
    backend = NativeBackend(DIMS, {}, "digest", threads=1, cache=tmp_path)
    assert backend.encode(np.zeros((1, DIMS.n_mels, 20), np.float32)).n_windows == 1
    few = np.arange(0, DIMS.n_vocab, 7)
    for options in ({"precision": "int4"}, {"vocab_subset": few}):
        with pytest.raises(KeyError):
            NativeBackend(DIMS, {}, "digest", threads=1, cache=tmp_path, **options)
    with pytest.raises(KeyError):
        NativeBackend(DIMS, {}, "other", threads=1, cache=tmp_path)


def test_weights_that_changed_while_they_were_packed_are_not_stored(tmp_path: Path) -> None:
    def changed() -> None:
        raise CheckpointError("changed")

    with pytest.raises(CheckpointError, match="changed"):
        NativeBackend(DIMS, make_fitting_weights(DIMS), "d", threads=1, cache=tmp_path, check_unchanged=changed)
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_stream_packed_chunk_by_chunk_is_the_stream_packed_at_once(
    open_native: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of the look-ahead are packed again; those before the part that changes are not."""
    backend = open_native("int8")
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
def test_token_outside_of_the_vocabulary_is_refused(open_native: Open, token: int) -> None:
    backend = open_native("int8")
    features = backend.encode(np.zeros((1, DIMS.n_mels, 20), np.float32))
    logits = backend.open_session(features, [0], 8).extend([[65]])
    logits.suppress_tokens(np.array([3, token]))
    with pytest.raises(IndexError, match="not all ids"):
        logits.top(1)
