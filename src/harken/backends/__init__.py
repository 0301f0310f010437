"""The backends: a reference in numpy, the CPU engine on ONNX graphs, the GPU engine in PyTorch.

They implement `harken.contract` and know nothing of `harken.decoding`.
"""
