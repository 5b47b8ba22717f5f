"""Weights of 8 bits in exported graphs: ONNX Runtime's `MatMulNBits` in the place of products with constants."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

BITS, BLOCK = 8, 32  # so many weights of a column share a scale
# ONNX Runtime rounds what they are multiplied with to 8 bits too, in blocks as they come. With level 1, which keeps
# that in float32, it widens the whole matrix for every product: slower than float32 weights by far.
ACCURACY_LEVEL = 4


def quantize(path: Path) -> None:
    """Rewrites the graph at `path`, and the weights beside it. Every constant matrix of a product is kept in 8 bits,
    symmetric in blocks along the sum; tables of embeddings, convolutions, norms and biases stay as they are."""
    import onnx

    model = onnx.load(str(path))
    _own_weights(model.graph)
    quantizer = _quantizer(_plain_products(model))
    quantizer.process()
    quantizer.model.clean_initializers()
    _save(quantizer.model.model, path)


def _quantizer(model: Any) -> Any:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger(MatMulNBitsQuantizer.__module__).setLevel(logging.ERROR)
    return MatMulNBitsQuantizer(model, BITS, BLOCK, is_symmetric=True, accuracy_level=ACCURACY_LEVEL)


def _plain_products(model: Any) -> Any:
    """Turns Gemm into MatMul and Add, which is what the quantizer takes."""
    from onnxruntime.quantization.onnx_model import ONNXModel

    editor = ONNXModel(model)
    editor.replace_gemm_with_matmul()
    return editor.model


def _own_weights(graph: Any) -> None:
    """Gives every product a copy of a matrix that is used elsewhere too, as a table of embeddings is: each is turned in
    its place."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    uses = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        if node.op_type == "Gemm" and uses[node.input[1]] > 1 and node.input[1] in weights:
            copy = graph.initializer.add()
            copy.CopyFrom(weights[node.input[1]])
            copy.name = node.input[1] = f"{copy.name}.of.{node.name}"


def _save(model: Any, path: Path) -> None:
    import onnx

    from vlm.backends.graphs.export import EXTERNAL_FROM

    for old in path.parent.iterdir():
        old.unlink()
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(model, str(path), save_as_external_data=size > EXTERNAL_FROM, location=f"{path.name}.data")
