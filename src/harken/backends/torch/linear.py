"""Products with weights, whose time should hardly grow with the number of rows while that is small.

On a GPU it does not, and `torch.nn.functional.linear` is all there is to it. On an x86 processor that function
leaves a single row to a kernel of its own, and from two rows on rearranges the whole matrix at every call, which
takes twice as long: too much to verify a draft by. So there a matrix is rearranged once, by oneDNN, whose product
with nine rows takes about as long as with one. These are the operators that PyTorch's own compiler freezes models
with (torch/_inductor/mkldnn_lowerings.py).
"""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def prepack(weight: Tensor) -> Tensor:
    """Arrange a matrix of shape (outputs, inputs) for `linear`; one that gains nothing by it comes back as it is."""
    return torch.ops.mkldnn._reorder_linear_weight(weight) if _benefits_from_prepacking(weight) else weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows of shape (..., inputs) by a matrix that has been through `pack`: shape (..., outputs)."""
    if weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return F.linear(x, weight, bias)


def _benefits_from_prepacking(weight: Tensor) -> bool:
    x86 = weight.device.type == "cpu" and platform.machine().lower() in {"x86_64", "amd64"}
    if not (x86 and torch.backends.mkldnn.is_available()):
        return False
    match weight.dtype:
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case _:
            return True
