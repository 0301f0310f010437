"""A builder over `onnx.helper`, with which a graph is written like the formulas of a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from harken.backends.onnx.runtimes import DATA_FILE, BuiltGraph

OPSET = 20
MICROSOFT_DOMAIN = "com.microsoft"
LARGEST_INLINE_BYTES = 1024
"""Size up to which a constant is part of the model instead of the file of weights."""
ELEMENT_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.uint8): TensorProto.UINT8,
}


class GraphBuilder:
    """A graph under construction: its nodes, constants, inputs and outputs; values are passed by name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._weights: list[NDArray[np.generic]] = []
        self._weight_bytes = 0
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: type = np.float32) -> str:
        """Declare an input and return its name; a string in `shape` names a dimension that may vary."""
        self._inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[np.dtype(dtype)], shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[int | str]) -> None:
        """Declare a float32 output with the given name and value."""
        if value != name:
            self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def constant(self, value: NDArray[np.generic] | Sequence[int]) -> str:
        """Add an initializer and return its name; a sequence of integers becomes int64."""
        array = np.ascontiguousarray(value if isinstance(value, np.ndarray) else np.asarray(value, np.int64))
        name = f"constant_{len(self._initializers)}"
        small = array.nbytes <= LARGEST_INLINE_BYTES
        self._initializers.append(numpy_helper.from_array(array, name) if small else self._weight(array, name))
        return name

    def _weight(self, array: NDArray[np.generic], name: str) -> onnx.TensorProto:
        """Return an initializer whose values are at the end of the file of weights."""
        data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=data_type, dims=array.shape, raw_data=b"")
        set_external_data(tensor, DATA_FILE, self._weight_bytes, array.nbytes)
        tensor.ClearField("raw_data")
        self._weights.append(array)
        self._weight_bytes += array.nbytes
        return tensor

    def op(self, op_type: str, *inputs: str, domain: str = "", out: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name, `out` if that is given."""
        name = out or f"{op_type}_{len(self._nodes)}"
        self._add_node(op_type, inputs, [name], domain, attributes)
        return name

    def ops(self, op_type: str, *inputs: str, outputs: int, **attributes: object) -> list[str]:
        """Add a node with several outputs and return their names."""
        names = [f"{op_type}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._add_node(op_type, inputs, names, "", attributes)
        return names

    def _add_node(
        self, op_type: str, inputs: Sequence[str], names: list[str], domain: str, attributes: dict[str, object]
    ) -> None:
        name = f"{op_type}_{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(op_type, list(inputs), names, name=name, domain=domain, **attributes)
        )

    def layer_norm(self, x: str, weights: Mapping[str, NDArray[np.generic]], name: str) -> str:
        """Add a layer normalisation over the last axis and return its output."""
        scale, bias = (
            self.constant(np.asarray(weights[f"{name}.{part}"], np.float32)) for part in ("weight", "bias")
        )
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def build(self) -> BuiltGraph:
        """Return the finished graph."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT_DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="harken")
        return BuiltGraph(model, self._weights)
