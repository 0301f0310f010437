"""The GPU engine: Whisper in PyTorch on CUDA, Apple's MPS or the CPU."""

from harken.errors import BackendUnavailable, install_hint

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise BackendUnavailable(f"PyTorch cannot be imported ({error}): {install_hint('torch')}") from error

from harken.backends.torch.backend import TorchBackend
from harken.backends.torch.lsh_attention import LSHAttention

__all__ = ["LSHAttention", "TorchBackend"]
