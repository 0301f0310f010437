"""The choice of runtimes, for each precision and each processor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harken.backends.onnx import runtimes
from harken.backends.onnx.runtimes import (
    bfloat16_is_faster,
    has_amx,
    make_runtime_plan,
    openvino_capabilities,
)
from harken.errors import BackendUnavailable, OptionError

WITHOUT_OPENVINO: frozenset[str] = frozenset()
WITHOUT_BF16 = frozenset({"FP32", "INT8"})
WITH_BF16 = WITHOUT_BF16 | {"BF16"}


@pytest.mark.parametrize(
    ("capabilities", "requested", "precision", "encoder", "decoder"),
    [
        (WITH_BF16, "auto", "int8", "openvino bf16", "onnxruntime int8"),
        (WITH_BF16, "int8", "int8", "openvino bf16", "onnxruntime int8"),
        (WITH_BF16, "int4", "int4", "openvino bf16", "onnxruntime int4"),
        (WITH_BF16, "bf16", "bf16", "openvino bf16", "onnxruntime fp32"),
        (WITH_BF16, "fp32", "fp32", "openvino f32", "onnxruntime fp32"),
        (WITHOUT_BF16, "auto", "int8", "openvino f32", "onnxruntime int8"),
        (WITHOUT_BF16, "fp32", "fp32", "openvino f32", "onnxruntime fp32"),
        (WITHOUT_OPENVINO, "auto", "int8", "onnxruntime fp32", "onnxruntime int8"),
        (WITHOUT_OPENVINO, "fp32", "fp32", "onnxruntime fp32", "onnxruntime fp32"),
    ],
)
def test_plan_follows_precision_and_processor(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: frozenset[str],
    requested: str,
    precision: str,
    encoder: str,
    decoder: str,
) -> None:
    monkeypatch.setattr(runtimes, "openvino_capabilities", lambda: capabilities)
    monkeypatch.setattr(runtimes, "bfloat16_is_faster", lambda: True)
    plan = make_runtime_plan(requested)
    assert plan.precision == precision
    assert (" ".join(plan.encoder), " ".join(plan.decoder)) == (encoder, decoder)
    assert str(plan) == f"encoder {encoder}, decoder {decoder}"


@pytest.mark.parametrize(
    ("requested", "encoder"),
    [("auto", "f32"), ("int8", "f32"), ("int4", "f32"), ("fp32", "f32"), ("bf16", "bf16")],
)
def test_slow_bfloat16_is_used_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, requested: str, encoder: str
) -> None:
    monkeypatch.setattr(runtimes, "openvino_capabilities", lambda: WITH_BF16)
    monkeypatch.setattr(runtimes, "bfloat16_is_faster", lambda: False)
    assert make_runtime_plan(requested).encoder == ("openvino", encoder)


@pytest.mark.parametrize(
    ("description", "amx", "faster"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16 avx512_fp16", False, False),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16 amx_bf16 amx_tile amx_int8", True, True),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu not_amx_bf16 amx_tile", False, False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512_bf16", False, True),
        ("Features\t: fp asimd bf16 sme", False, True),
        (None, False, True),
    ],
)
def test_bfloat16_is_slower_on_intel_without_matrix_units(
    tmp_path: Path, description: str | None, amx: bool, faster: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if description:
        cpuinfo.write_text(description)
    assert (has_amx(cpuinfo), bfloat16_is_faster(cpuinfo)) == (amx, faster)


@pytest.mark.parametrize("capabilities", [WITHOUT_BF16, WITHOUT_OPENVINO])
def test_bf16_is_refused_on_a_processor_without_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: frozenset[str]
) -> None:
    monkeypatch.setattr(runtimes, "openvino_capabilities", lambda: capabilities)
    with pytest.raises(OptionError, match=r"precision='bf16'.*fp32 or int8"):
        make_runtime_plan("bf16")


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(OptionError, match=r"precision='fp16'.*auto, fp32, bf16, int8"):
        make_runtime_plan("fp16")


def test_missing_openvino_has_no_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert openvino_capabilities() == frozenset()


def test_missing_onnxruntime_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from harken.backends.onnx.runtimes import import_onnxruntime

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendUnavailable, match=r"pip install .\.\[onnx\]"):
        import_onnxruntime()
