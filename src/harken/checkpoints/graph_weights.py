"""The weights of Whisper in a graph of operations, where many have lost their names.

Exporters to ONNX and OpenVINO keep the names of some weights. Others are found by the operation that takes them, whose
name is the path of a module of PyTorch (``/layers.0/self_attn/k_proj/MatMul``). sherpa-onnx runs the modules of a
decoder outside of their blocks, so of their path only ``/query_1/MatMul`` is left: they belong to the block of the
normalisation before them. The exporter of ``torch.onnx`` transposes the matrices of layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harken.checkpoints.model_files import LazyTensor
from harken.checkpoints.weight_names import openai_name_of
from harken.checkpoints.weight_shapes import is_weight_name

_TRANSPOSED, _GAIN = "weight, transposed", "weight, of a normalisation"
_ROLES: dict[str, dict[int, str]] = {
    "MatMul": {1: _TRANSPOSED},
    "MatMulInteger": {1: _TRANSPOSED},
    "MatMulNBits": {1: "weight"},
    "Conv": {1: "weight", 2: "bias"},
    "ConvInteger": {1: "weight"},
    "Convolution": {1: "weight"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "Add": {0: "bias", 1: "bias"},
    "Mul": {0: _GAIN, 1: _GAIN},
    "Multiply": {0: _GAIN, 1: _GAIN},
}
"""What the inputs of an operation are to the module that it belongs to."""
_ALIASES = {
    "audioEncoder.": "encoder.",
    "textDecoder.": "decoder.",
    "_openvino_orig_": "",
    "_compressed": "",
    "_merged_0": "",
    "self.": "",
    "mlp.mlp.": "mlp.",
}
_WRAPPERS = re.compile(r"(model\.)*")
_NORM = re.compile(r"(.+)\.(attn_ln|cross_attn_ln|mlp_ln|ln_post)\.weight")
_PARTS = {"attn_ln": "attn.", "cross_attn_ln": "cross_attn.", "mlp_ln": ""}
_COUNTED = re.compile(r"(.+?)(?:_(\d+))?")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a graph, with the name that the exporter gave it."""

    label: str
    tensor: LazyTensor


@dataclass(frozen=True, slots=True)
class Node:
    """An operation: the module it belongs to, its type, and the names of the values it takes."""

    module: str
    type: str
    inputs: tuple[str, ...]


def weights_of_graph(
    nodes: Iterable[Node], constants: Mapping[str, Constant], side: str
) -> dict[str, LazyTensor]:
    """Return the weights of a graph under OpenAI's names.

    Its nodes are in the order in which they are computed, its constants by the name of the value. The side is what it
    computes, ``"encoder"`` or ``"decoder"``, for names that do not say.
    """
    names = {value: _weight_name(constant.label, side) for value, constant in constants.items()}
    found = {name: _squeezed(name, constants[value].tensor) for value, name in names.items() if name}
    norm = None
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if name := names.get(value):
                norm = _NORM.fullmatch(name) or norm
            elif value in constants and (role := _ROLES.get(node.type, {}).get(index)):
                tensor, leaf = constants[value].tensor, role.split(",")[0]
                name = _weight_name(f"{node.module}.{leaf}", side) or _in_block(node.module, leaf, norm)
                is_matrix = sum(axis > 1 for axis in tensor.shape) == 2
                if node.type == "Add" and node.module in ("", side) and is_matrix:
                    name = "encoder.positional_embedding"
                if name and (role != _GAIN or _is_norm(name)):
                    turned = tensor.transposed() if role == _TRANSPOSED else tensor
                    found.setdefault(name, _squeezed(name, turned))
    return found


def _weight_name(label: str, side: str) -> str | None:
    """Return OpenAI's name of a weight; None if it is the name of none."""
    for theirs, ours in _ALIASES.items():
        label = label.replace(theirs, ours)
    label = _WRAPPERS.sub("", label, count=1)
    name = openai_name_of(label if label.startswith(("encoder.", "decoder.")) else f"{side}.{label}")
    return name if is_weight_name(name) else None


def _in_block(module: str, leaf: str, norm: re.Match[str] | None) -> str | None:
    """Return the name of a weight of a module that was run outside of its block, after a normalisation."""
    counted = _COUNTED.fullmatch(module.replace("mlp.mlp.", "mlp."))
    if norm is None or counted is None:
        return None
    block, normalised = norm.groups()
    if normalised == "ln_post":  # whose output the cross-attention of all blocks reads
        name = f"decoder.blocks.{counted[2] or 0}.cross_attn.{counted[1]}.{leaf}"
    else:
        name = f"{block}.{_PARTS[normalised]}{counted[1]}.{leaf}"
    return name if is_weight_name(name) else None


def _is_norm(name: str) -> bool:
    return name.rpartition(".")[0].endswith(("_ln", ".ln", "ln_post"))


def _squeezed(name: str, tensor: LazyTensor) -> LazyTensor:
    """Return a bias, a gain or positions without the axes of one that some graphs have around them."""
    if name.endswith((".bias", ".positional_embedding")) or _is_norm(name):
        return tensor.reshaped(tuple(axis for axis in tensor.shape if axis != 1))
    return tensor
