"""The CPU engine: ONNX graphs built from the weights, without PyTorch."""

from harken.backends.onnx.backend import OnnxBackend

__all__ = ["OnnxBackend"]
