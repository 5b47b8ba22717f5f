"""Quantized products as nodes of the standard, which TensorRT's parser takes: DequantizeLinear makes the weight, and
what W8A8 and FP8 round is rounded by QuantizeLinear and DequantizeLinear before the plain product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vlm.backends.graphs.form import GraphForm
from vlm.backends.graphs.graph_editor import GraphEditor, remove_unused_constants
from vlm.backends.graphs.kept_weight import MIDDLE, KeptWeight
from vlm.backends.graphs.quantized_linear import products

MOST = {"w8a8": 127, "fp8": 448}  # the largest level
SMALLEST = 1e-6  # scale of a row of zeros; float16 has it


def lower(model: Any) -> None:
    """Rewrites every quantized product of a graph (onnx_ir)."""
    for node in products(model):
        weight, editor = KeptWeight.from_node(node), GraphEditor(model.graph, node)
        editor.replace(_FORMS[weight.kind](editor, node.inputs[0], weight))
    model.graph.opset_imports.pop("vlm", None)
    remove_unused_constants(model.graph)


def _weight_only(editor: GraphEditor, x: Any, weight: KeptWeight) -> Any:
    return editor.add("MatMul", x, _per_channel(editor, weight))


def _int4(editor: GraphEditor, x: Any, weight: KeptWeight) -> Any:
    """Adds the product with a weight of 4 bits. TensorRT takes no zero points: levels are signed, and what their middle
    is off is added, a number a group for the sum of its inputs."""
    import onnx_ir as ir

    levels = editor.constant(f"{weight.name}.levels", weight.values.T.astype(np.int8) - MIDDLE, ir.DataType.INT4)
    scale = editor.constant(f"{weight.name}.scales", weight.scale.T, editor.dtype)
    matrix = editor.add("DequantizeLinear", levels, scale, axis=0, block_size=weight.group_size)
    product = editor.add("MatMul", x, matrix)
    if weight.zero is None:
        return product
    offsets = ((MIDDLE - weight.zero.astype(np.float32)) * weight.scale).T
    offset = editor.add(
        "MatMul", _group_sums(editor, x, weight), editor.constant(f"{weight.name}.offsets", offsets, editor.dtype)
    )
    return editor.add("Add", product, offset)


def _group_sums(editor: GraphEditor, x: Any, weight: KeptWeight) -> Any:
    """Returns [rows, groups] of x [rows, in]."""
    shape = np.array([-1, weight.scale.shape[1], weight.group_size], np.int64)
    grouped = editor.add("Reshape", x, editor.constant(f"{weight.name}.groups", shape))
    return editor.add("ReduceSum", grouped, editor.constant("last_axis", np.array([-1], np.int64)), keepdims=0)


def _rounded(editor: GraphEditor, x: Any, weight: KeptWeight) -> Any:
    """Divides rows by scales of their own, so that the rounding itself has the constant scale that TensorRT wants."""
    if weight.input_scale is not None:
        return _product_of_rounded(
            editor, x, weight, editor.constant(f"{weight.name}.input_scale", weight.input_scale, editor.dtype)
        )
    axis = editor.constant("last_axis", np.array([-1], np.int64))
    largest = editor.add("ReduceMax", editor.add("Abs", x), axis, keepdims=1)
    most = editor.scalar(MOST[weight.kind])
    scale = editor.add("Max", editor.add("Div", largest, most), editor.scalar(SMALLEST))
    product = _product_of_rounded(editor, editor.add("Div", x, scale), weight, editor.scalar(1))
    return editor.add("Mul", product, scale)


def _product_of_rounded(editor: GraphEditor, x: Any, weight: KeptWeight, scale: Any) -> Any:
    zero = editor.constant(f"{weight.kind}_zero", np.zeros((), weight.values.dtype))
    rounded = editor.add("QuantizeLinear", x, scale, zero)
    return editor.add("MatMul", editor.add("DequantizeLinear", rounded, scale, zero), _per_channel(editor, weight))


def _per_channel(editor: GraphEditor, weight: KeptWeight) -> Any:
    """Returns the weight [in, out] of values with a scale an output channel."""
    values = editor.constant(f"{weight.name}.values", weight.values.T)
    scale = editor.constant(f"{weight.name}.scales", weight.scale[:, 0], editor.dtype)
    return editor.add("DequantizeLinear", values, scale, axis=1)


_FORMS: dict[str, Callable[[GraphEditor, Any, KeptWeight], Any]] = {
    "int8": _weight_only,
    "int4": _int4,
    "w8a8": _rounded,
    "fp8": _rounded,
}
FORM = GraphForm(caches_grow=False, lower=lambda model, graph: lower(model), rounding=("w8a8", "fp8"))
