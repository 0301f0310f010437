"""The choice of a device and a precision, and transfers to the device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from harken.errors import OptionError

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEFAULT_PRECISION = {"cuda": "fp16", "mps": "fp16", "cpu": "fp32"}
"""Precision of "auto": that of the published weights, on the CPU float32."""


def choose_device(device: str, precision: str) -> tuple[torch.device, str]:
    """Choose a device and a precision on this machine.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``; ``"auto"`` is the first available of cuda, mps, cpu.
    precision : str
        ``"fp32"``, ``"fp16"`` or ``"bf16"``; ``"auto"`` is fp16, on the CPU fp32.

    Raises
    ------
    OptionError
        If either is unknown or not available on this machine.
    """
    usable = _usable_devices()
    if device == "auto":
        device = usable[0]
    if device not in usable:
        raise OptionError("device", device, f"auto, {', '.join(usable)} on this machine with this PyTorch")
    torch_device = (
        torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    )
    if precision == "auto":
        precision = DEFAULT_PRECISION[torch_device.type]
    if precision not in DTYPES:
        raise OptionError("precision", precision, f"auto, {', '.join(DTYPES)} with backend='torch'")
    if (
        precision == "bf16"
        and torch_device.type == "cuda"
        and torch.cuda.get_device_capability(torch_device) < (8, 0)
    ):
        raise OptionError(
            "precision", precision, f"fp32 or fp16: {describe_device(torch_device)} has no bfloat16 arithmetic"
        )
    return torch_device, precision


def count_gpus() -> int:
    """Return the number of CUDA devices."""
    return int(torch.cuda.device_count())


def describe_device(device: torch.device) -> str:
    """Return the name of the hardware, for people."""
    match device.type:
        case "cuda":
            return str(torch.cuda.get_device_name(device))
        case "mps":
            return "Apple GPU"
        case _:
            return f"CPU, {torch.get_num_threads()} threads"


def memory_bytes(device: torch.device) -> int:
    """Return the memory of a GPU; elsewhere a bound that is never met."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else sys.maxsize


def upload(
    values: Sequence[Any] | NDArray[Any], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Copy numbers to the device without waiting for earlier work on it.

    CUDA copies asynchronously from pinned memory only; PyTorch keeps such memory until the copy is done.
    """
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _usable_devices() -> list[str]:
    """Return the devices that this PyTorch supports on this machine, the fastest first."""
    cuda = [f"cuda:{index}" for index in range(count_gpus())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(["cuda"] if cuda else []), *cuda, *mps, "cpu"]
