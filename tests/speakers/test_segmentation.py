"""Tests of the segmentation model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harken.audio import load_audio
from harken.errors import CheckpointError
from harken.speakers.segmentation import N_FRAMES, STEP_SAMPLES, WINDOW_SAMPLES, SegmentationModel
from real_models import EXAMPLE, model_path


@pytest.mark.real
def test_speech_is_active_where_it_is_loud() -> None:
    speech = np.zeros(WINDOW_SAMPLES, np.float32)
    speech[3 * 16_000 :] = load_audio(EXAMPLE)[: WINDOW_SAMPLES - 3 * 16_000]
    model = SegmentationModel(model_path("speakers") / "segmentation-3.0.onnx", threads=1)
    together = model.activities(np.stack([speech, np.zeros_like(speech)]))
    assert together.shape == (2, N_FRAMES, 3)
    assert not together[1].any()
    active = together[0].any(axis=1)
    assert np.flatnonzero(active)[0] * STEP_SAMPLES == pytest.approx(3.3 * 16_000, abs=0.2 * 16_000)
    assert active.mean() > 0.4
    assert together[0].sum(axis=1).max() == 1, "one person speaks"
    np.testing.assert_array_equal(model.activities(speech[None])[0], together[0])


@pytest.mark.parametrize("content", [b"", b"no graph", bytes(1000)], ids=["empty", "text", "zeros"])
def test_file_that_is_no_graph_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "segmentation-3.0.onnx"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"segmentation-3\.0\.onnx: is damaged, or not segmentation-3\.0"):
        SegmentationModel(path, threads=1)


def test_another_graph_is_refused_by_name(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4]) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Relu", ["input"], ["output"])], "other", value[:1], value[1:])
    path = tmp_path / "other.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    with pytest.raises(CheckpointError, match=r"other\.onnx: is damaged, or not segmentation-3\.0"):
        SegmentationModel(path, threads=1)
