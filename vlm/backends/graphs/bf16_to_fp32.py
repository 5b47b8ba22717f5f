"""A graph in bfloat16 as one in float32: ONNX Runtime has no CPU kernels of bfloat16, but can compare the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def bf16_to_fp32(source: Path, target: Path) -> None:
    """Reads a graph and writes it with every bfloat16 in it as float32; the values are the same."""
    import onnx_ir as ir

    model = ir.load(source)
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for value in (*graph.initializers.values(), *graph.inputs, *graph.outputs):
            _widen_value(value)
        for node in graph:
            for value in node.outputs:
                _widen_value(value)
            for attribute in node.attributes.values():
                node.attributes[attribute.name] = _widened(attribute)
    ir.save(model, target, external_data=f"{target.name}.data")


def _widen_value(value: Any) -> None:
    import onnx_ir as ir

    if value.dtype == ir.DataType.BFLOAT16:
        value.dtype = ir.DataType.FLOAT
    if value.const_value is not None and value.const_value.dtype == ir.DataType.BFLOAT16:
        value.const_value = _float(value.const_value)


def _widened(attribute: Any) -> Any:
    """Widens an attribute from bfloat16 to float32: a constant, or the type of a cast."""
    import onnx_ir as ir

    if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == ir.DataType.BFLOAT16:
        return ir.Attr(attribute.name, ir.AttributeType.TENSOR, _float(attribute.value))
    if attribute.name == "to" and attribute.value == ir.DataType.BFLOAT16:
        return ir.AttrInt64("to", int(ir.DataType.FLOAT))
    return attribute


def _float(tensor: Any) -> Any:
    import numpy as np
    import onnx_ir as ir

    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)
