"""The CPU engine: ONNX graphs built straight from the weights, no PyTorch needed."""

from harken.backends.onnx.backend import OnnxBackend

__all__ = ["OnnxBackend"]
