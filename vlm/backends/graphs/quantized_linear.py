"""Products with quantized weights in an exported graph: one node each, which holds a Linear's own parameters, until a
runtime's form takes its place (vlm.backends.graphs.qdq, vlm.backends.onnxruntime.products)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vlm.layers.linear import Linear
from vlm.layers.quant.fp8 import Fp8
from vlm.layers.quant.inputs import QuantizedMethod
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import Int8
from vlm.layers.quant.w8a8 import W8A8
from vlm.ops.activation import Activation
from vlm.ops.products.activated import activated

DOMAIN, PRODUCT = "vlm", "QuantizedLinear"
INPUTS = ("x", "weight", "scale", "zero", "input_scale")
KINDS: dict[type, str] = {Int8: "int8", W8A8: "w8a8", Fp8: "fp8", Int4: "int4"}  # the node's attribute `kind`

_library = torch.library.Library("vlm", "FRAGMENT")
_library.define(
    "graph_linear(Tensor x, Tensor weight, Tensor scale, Tensor? zero, Tensor? input_scale, str kind) -> Tensor"
)


@torch.library.register_fake("vlm::graph_linear")
def _(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, input_scale: Tensor | None, kind: str) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class GraphProduct:
    """Stands for a method while a network is exported. What it makes is a node: it computes nothing."""

    def __init__(self, method: QuantizedMethod):
        self.kind, self.inputs = KINDS[type(method)], method.inputs

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
        weight = linear.weight_packed if self.kind == "int4" else linear.weight
        zero = getattr(linear, "weight_zero", None)
        x, static = self.inputs.arranged(linear, x), self.inputs.static_scale(linear)
        rows = x if x.ndim == 2 else x.flatten(0, -2)
        y = torch.ops.vlm.graph_linear(rows, weight, linear.weight_scale, zero, static, self.kind)
        y = y if x.ndim == 2 else y.view(*x.shape[:-1], y.shape[-1])
        return activated(y if bias is None else y + bias, activation)


@contextlib.contextmanager
def products_as_nodes(network: nn.Module) -> Iterator[None]:
    """Lets the quantized layers of a network be exported as nodes."""
    linears = [module for module in network.modules() if isinstance(module, Linear)]
    quantized = {linear: linear.method for linear in linears if isinstance(linear.method, QuantizedMethod)}
    for linear, method in quantized.items():
        linear.method = GraphProduct(method)  # type: ignore[assignment] - a method without a layout
    try:
        yield
    finally:
        for linear, method in quantized.items():
            linear.method = method


def lowerings() -> dict[Any, Callable[..., Any]]:
    """Returns the node of `graph_linear`."""
    from onnxscript.values import Opset

    _register()

    def product(x, weight, scale, zero, input_scale, kind: str):
        return Opset(DOMAIN, 1).QuantizedLinear(x, weight, scale, zero, input_scale, kind=kind)

    return {torch.ops.vlm.graph_linear.default: product}


def products(model: Any) -> list[Any]:
    """Returns the nodes of a graph (onnx_ir) that are products with quantized weights."""
    return [node for node in model.graph if node.op_type == PRODUCT and node.domain == DOMAIN]


def _register() -> None:
    """Makes the node known to the exporter."""
    from onnx import defs

    if defs.has(PRODUCT, DOMAIN):
        return
    schema = defs.OpSchema
    parameter, maybe = schema.FormalParameter, schema.FormalParameterOption.Optional
    floats = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
    weights = ["tensor(int8)", "tensor(uint8)", "tensor(float8e4m3fn)"]
    inputs = [parameter("x", "T"), parameter("weight", "W"), parameter("scale", "S")]
    inputs += [parameter("zero", "Z", param_option=maybe), parameter("input_scale", "S", param_option=maybe)]
    types = [("T", floats, ""), ("W", weights, ""), ("S", ["tensor(float)"], ""), ("Z", ["tensor(uint8)"], "")]
    kind = schema.Attribute("kind", schema.AttrType.STRING)
    outputs = [parameter("y", "T")]
    defs.register_schema(
        schema(PRODUCT, DOMAIN, 1, inputs=inputs, outputs=outputs, type_constraints=types, attributes=[kind])
    )
