"""The choice of a runtime and a precision for encoder and decoder on this machine.

Measured in docs/decisions/runtimes.md: OpenVINO is fastest at the encoder, a large computation of fixed shape, and
ONNX Runtime at the decoder, whose steps are short and whose shapes vary. OpenVINO's bfloat16 decoder takes longer than
ONNX Runtime's in float32, so "bf16" applies to the encoder only. The native backend takes over the encoder's part of a
plan where it encodes with graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harken.backends.onnx.runtimes import import_openvino
from harken.errors import BackendUnavailable, OptionError

PRECISIONS = ("auto", "fp32", "bf16", "int8")
PROCESSOR_DESCRIPTION = Path("/proc/cpuinfo")
DRAFT_PRECISION = "int4"
"""Too coarse to transcribe with, but a third faster for an assistant, whose tokens are all verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePlan:
    """A runtime and its precision for the encoder and for the decoder."""

    precision: str
    encoder: tuple[str, str]
    decoder: tuple[str, str]

    def __str__(self) -> str:
        return f"encoder {' '.join(self.encoder)}, decoder {' '.join(self.decoder)}"


def make_runtime_plan(precision: str) -> RuntimePlan:
    """Choose runtimes and precisions for this machine.

    Raises
    ------
    OptionError
        If the precision is unknown, or is bf16 and the processor has no bfloat16 arithmetic.
    """
    if precision not in (*PRECISIONS, DRAFT_PRECISION):
        raise OptionError("precision", precision, ", ".join(PRECISIONS))
    cpu_capabilities = openvino_capabilities()
    encoder = ("openvino", "f32") if cpu_capabilities else ("onnxruntime", "fp32")
    if "BF16" in cpu_capabilities and (precision == "bf16" or (precision != "fp32" and bfloat16_is_faster())):
        encoder = ("openvino", "bf16")
    match precision:
        case "fp32":
            return RuntimePlan(precision="fp32", encoder=encoder, decoder=("onnxruntime", "fp32"))
        case "bf16" if encoder[1] == "bf16":
            return RuntimePlan(precision="bf16", encoder=encoder, decoder=("onnxruntime", "fp32"))
        case "bf16":
            raise OptionError(
                "precision",
                precision,
                "fp32 or int8: bf16 takes OpenVINO and a processor with bfloat16 arithmetic",
            )
        case "int4":
            return RuntimePlan(precision="int4", encoder=encoder, decoder=("onnxruntime", "int4"))
        case _:
            return RuntimePlan(precision="int8", encoder=encoder, decoder=("onnxruntime", "int8"))


def bfloat16_is_faster(processor_description: Path = PROCESSOR_DESCRIPTION) -> bool:
    """Return False where bfloat16 arithmetic is slower than float32: on Intel's processors without its matrix units.

    Their vector instruction VDPBF16PS does twice the operations of a float32 FMA in four times its time, so bfloat16 is
    fast in AMX tiles only; AMD's vectors are. Where Linux does not describe the processor, no exception is known. A
    measurement would decide for any processor, but a busy one could decide otherwise the next time, and with it the
    text.
    """
    return has_amx(processor_description) or "GenuineIntel" not in _read(processor_description)


def has_amx(processor_description: Path = PROCESSOR_DESCRIPTION) -> bool:
    """Return whether the processor has Intel's matrix units for bfloat16, as far as Linux says so."""
    return "amx_bf16" in _read(processor_description).split()


def _read(processor_description: Path) -> str:
    try:
        return processor_description.read_text(errors="replace")
    except OSError:
        return ""


def openvino_capabilities() -> frozenset[str]:
    """Return the processor's capabilities as OpenVINO reports them (``BF16`` ...); empty if it is not installed."""
    try:
        core = import_openvino().Core()
    except BackendUnavailable:
        return frozenset()
    return frozenset(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
