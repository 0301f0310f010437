"""Which runtime computes what, for each precision asked and each processor."""

from __future__ import annotations

import sys

import pytest

from harken.backends.onnx import runtime_plan
from harken.backends.onnx.runtime_plan import make_runtime_plan, openvino_capabilities
from harken.errors import BackendUnavailable, OptionError

NONE: frozenset[str] = frozenset()
PLAIN = frozenset({"FP32", "INT8"})
BFLOAT = PLAIN | {"BF16"}


@pytest.mark.parametrize(
    ("capabilities", "asked", "precision", "encoder", "decoder"),
    [
        (BFLOAT, "auto", "int8", "openvino bf16", "onnxruntime int8"),
        (BFLOAT, "int8", "int8", "openvino bf16", "onnxruntime int8"),
        (BFLOAT, "int4", "int4", "openvino bf16", "onnxruntime int4"),
        (BFLOAT, "bf16", "bf16", "openvino bf16", "onnxruntime fp32"),
        (BFLOAT, "fp32", "fp32", "openvino f32", "onnxruntime fp32"),
        (PLAIN, "auto", "int8", "openvino f32", "onnxruntime int8"),
        (PLAIN, "fp32", "fp32", "openvino f32", "onnxruntime fp32"),
        (NONE, "auto", "int8", "onnxruntime fp32", "onnxruntime int8"),
        (NONE, "fp32", "fp32", "onnxruntime fp32", "onnxruntime fp32"),
    ],
)
def test_plan(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: frozenset[str],
    asked: str,
    precision: str,
    encoder: str,
    decoder: str,
) -> None:
    monkeypatch.setattr(runtime_plan, "openvino_capabilities", lambda: capabilities)
    made = make_runtime_plan(asked)
    assert made.precision == precision
    assert (" ".join(made.encoder), " ".join(made.decoder)) == (encoder, decoder)
    assert str(made) == f"encoder {encoder}, decoder {decoder}"


@pytest.mark.parametrize("capabilities", [PLAIN, NONE])
def test_bfloat16_needs_a_processor_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: frozenset[str]
) -> None:
    monkeypatch.setattr(runtime_plan, "openvino_capabilities", lambda: capabilities)
    with pytest.raises(OptionError, match=r"precision='bf16'.*fp32 or int8"):
        make_runtime_plan("bf16")


def test_unknown_precision() -> None:
    with pytest.raises(OptionError, match=r"precision='fp16'.*auto, fp32, bf16, int8"):
        make_runtime_plan("fp16")


def test_without_openvino_nothing_is_capable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert openvino_capabilities() == frozenset()


def test_without_onnxruntime_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from harken.backends.onnx.runtimes import import_onnxruntime

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendUnavailable, match="pip install onnxruntime"):
        import_onnxruntime()
