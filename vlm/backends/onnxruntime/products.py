"""Quantized products as ONNX Runtime computes them fastest on a CPU: `MatMulNBits` for few rows, products of whole
numbers for many. Both round what the weights meet to 8 bits as it comes: a product that keeps it in float32 widens the
whole matrix each time, which is slower than float32 weights by far."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlm.backends.graphs.form import GraphForm
from vlm.backends.graphs.graph_editor import GraphEditor, remove_unused_constants
from vlm.backends.graphs.kept_weight import KeptWeight
from vlm.backends.graphs.quantized_linear import products
from vlm.backends.onnxruntime.group_sizes import GROUP_SIZES

ROUNDED = 4  # accuracy level: rows are rounded to 8 bits, in the weights' groups
CONTRIB = "com.microsoft"
TINY, MIDDLE, MOST = 1e-30, 128, 127  # smallest scale of a row; what 0 is kept as; the largest level above it


def lower(model: Any, *, many_rows: bool, accuracy_level: int = ROUNDED) -> None:
    """Rewrites every quantized product of a graph (onnx_ir). `many_rows`: it is most often run on more than a few rows,
    as encoders are."""
    for node in products(model):
        weight, editor = KeptWeight.from_node(node), GraphEditor(model.graph, node)
        if weight.kind == "w8a8" or (weight.kind == "int8" and many_rows):
            editor.replace(_whole_numbers(editor, node.inputs[0], weight))
        else:
            editor.replace(_groups(editor, node.inputs[0], weight, accuracy_level))
    model.graph.opset_imports.pop("vlm", None)
    model.graph.opset_imports[CONTRIB] = 1
    remove_unused_constants(model.graph)


def _whole_numbers(editor: GraphEditor, x: Any, weight: KeptWeight) -> Any:
    """Rounds every row by a scale of its own or a static one, so that none depends on what it is batched with."""
    middle = editor.constant("middle", np.array(MIDDLE, np.uint8))
    if weight.input_scale is not None:
        static = editor.constant(f"{weight.name}.input_scale", weight.input_scale)
        return _product_of_rounded(editor, editor.add("QuantizeLinear", x, static, middle), weight, static)
    axis = editor.constant("last_axis", np.array([-1], np.int64))
    largest = editor.add("ReduceMax", editor.add("Abs", x), axis, keepdims=0)
    scale = editor.add("Max", editor.add("Div", largest, editor.scalar(MOST)), editor.scalar(TINY))
    middles = editor.add("Expand", middle, editor.add("Shape", scale))
    rounded = editor.add("QuantizeLinear", x, scale, middles, axis=0)
    product = _product_of_rounded(editor, rounded, weight, editor.scalar(1))
    return editor.add("Mul", product, editor.add("Unsqueeze", scale, axis))


def _product_of_rounded(editor: GraphEditor, rounded: Any, weight: KeptWeight, scale: Any) -> Any:
    values = editor.constant(f"{weight.name}.values", weight.values.T)
    scales = editor.constant(f"{weight.name}.scales", weight.scale[:, 0])
    middle = editor.constant("middle", np.array(MIDDLE, np.uint8))
    return editor.add("MatMulIntegerToFloat", rounded, values, scale, scales, middle, domain=CONTRIB)


def _groups(editor: GraphEditor, x: Any, weight: KeptWeight, accuracy_level: int) -> Any:
    bits, size = (4, weight.group_size) if weight.kind == "int4" else (8, _group_size(weight.inputs))
    inputs = [x, *_constants(editor, weight, size)]
    if weight.zero is not None:
        zeros = np.pad(weight.zero, ((0, 0), (0, weight.zero.shape[1] % 2)))
        inputs.append(editor.constant(f"{weight.name}.zeros", _halves(zeros)))
    sizes = {"K": weight.inputs, "N": len(weight.values), "bits": bits, "block_size": size}
    return editor.add("MatMulNBits", *inputs, domain=CONTRIB, accuracy_level=accuracy_level, **sizes)


def _constants(editor: GraphEditor, weight: KeptWeight, size: int) -> tuple[Any, Any]:
    """Returns the levels [out, groups, bytes] uint8 and scales [out, groups]; a channel's is that of its groups."""
    levels, scale = weight.values, weight.scale
    if weight.kind != "int4":
        levels = (weight.values.astype(np.int16) + MIDDLE).astype(np.uint8)
        levels = np.pad(levels, ((0, 0), (0, -weight.inputs % size)), constant_values=MIDDLE)
        scale = np.repeat(scale, levels.shape[1] // size, axis=1)
    packed = _halves(levels) if weight.kind == "int4" else levels
    grouped = packed.reshape(len(levels), scale.shape[1], -1)
    return editor.constant(f"{weight.name}.levels", grouped), editor.constant(f"{weight.name}.scales", scale)


def _group_size(inputs: int) -> int:
    """Returns the largest groups that make sense for a scale a channel: each costs a multiplication."""
    return next((size for size in GROUP_SIZES if size >= inputs), GROUP_SIZES[-1])


def _halves(levels: np.ndarray) -> np.ndarray:
    """Packs [out, n] below 16 -> [out, n / 2] uint8, an even one in the low half of a byte."""
    return levels[:, ::2] | (levels[:, 1::2] << 4)


FORM = GraphForm(
    caches_grow=True,
    lower=lambda model, graph: lower(model, many_rows=graph != "decoder"),
    rounding=("int8", "int4", "int4-asymmetric", "w8a8"),
    whole_numbers=True,
    small_heads=True,
)
