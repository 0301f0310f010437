"""A CPU engine on ONNX graphs, built from the weights without PyTorch; its packages are the extra ``onnx``."""

from harken.backends.onnx.backend import OnnxBackend

__all__ = ["OnnxBackend"]
