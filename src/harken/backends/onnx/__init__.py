"""The CPU engine: ONNX graphs built from the weights, without PyTorch."""

from harken.backends.onnx.telemetry import turn_off_telemetry

turn_off_telemetry()  # before any module of this package can import a runtime

from harken.backends.onnx.backend import OnnxBackend  # noqa: E402

__all__ = ["OnnxBackend"]
