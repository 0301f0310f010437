"""The GPU engine: Whisper in PyTorch on CUDA, Apple's MPS or the CPU."""

from harken.errors import importing

with importing("torch", "backend torch"):
    import torch as _torch  # noqa: F401

from harken.backends.torch.backend import TorchBackend
from harken.backends.torch.lsh_attention import LSHAttention

__all__ = ["LSHAttention", "TorchBackend"]
