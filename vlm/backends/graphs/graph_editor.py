"""Puts nodes and constants in the place of a node of a graph (onnx_ir)."""

from __future__ import annotations

from typing import Any

import numpy as np


class GraphEditor:
    """Collects what takes the place of one node, in order; `replace` puts it there."""

    def __init__(self, graph: Any, node: Any):
        self.graph, self.node, self.nodes = graph, node, []
        self.prefix = node.outputs[0].name

    @property
    def dtype(self) -> Any:
        """Returns the type of the node's result (onnx_ir.DataType)."""
        return self.node.outputs[0].dtype

    def constant(self, name: str, array: np.ndarray, dtype: Any = None) -> Any:
        """Returns the graph's constant of a name, made of an array where there is none yet; of the array's type unless
        one is named."""
        import onnx_ir as ir

        if name not in self.graph.initializers:
            array = array if dtype is None else array.astype(dtype.numpy())
            tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
            value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
            self.graph.initializers[name] = value
        return self.graph.initializers[name]

    def scalar(self, number: float, dtype: Any = None) -> Any:
        """Returns the constant of one number, of the type of the node's result unless one is named."""
        dtype = dtype or self.dtype
        return self.constant(f"{dtype.name.lower()}_{number:g}", np.array(number), dtype)

    def add(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> Any:
        """Adds a node and returns its one result."""
        import onnx_ir as ir

        node = ir.node(operator, list(inputs), attributes, domain=domain)
        node.name = node.outputs[0].name = f"{self.prefix}.{len(self.nodes)}.{operator}"
        self.nodes.append(node)
        return node.outputs[0]

    def replace(self, result: Any) -> None:
        """Puts the nodes in the place of theirs, `result` in that of its result."""
        old = self.node.outputs[0]
        result.dtype, result.shape, name = old.dtype, old.shape, old.name
        self.graph.insert_before(self.node, self.nodes)
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)
        result.name = name


def remove_unused_constants(graph: Any) -> None:
    """Removes constants that no node reads any more."""
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
