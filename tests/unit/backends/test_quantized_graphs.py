"""Products with quantized weights in exported graphs: each method's nodes compute what its Linear does, in the form of
the standard, which TensorRT's parser takes, and in ONNX Runtime's own."""

from __future__ import annotations

from functools import cache, partial

import pytest

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

import onnx
import onnx_ir as ir
import torch

from vlm.backends.graphs import qdq
from vlm.backends.graphs.quantized_linear import lowerings, products_as_nodes
from vlm.backends.onnxruntime import products
from vlm.backends.onnxruntime.backend import OnnxRuntimeBackend
from vlm.backends.onnxruntime.session import AS_WRITTEN, EXACT_SUMS
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.inputs import Inputs
from vlm.layers.quant.methods import METHODS

pytestmark = pytest.mark.slow  # every method as nodes of graphs
INPUTS = {
    "plain": Inputs(),
    "static": Inputs(input_scale=True),
    "arranged": Inputs(pre_quant_scale=True, input_order=True),
}
FORMS = {
    "qdq": qdq.lower,
    "few rows": partial(products.lower, many_rows=False, accuracy_level=1),
    "many rows": partial(products.lower, many_rows=True, accuracy_level=1),
}
IN, OUT = 48, 24


def quantized_linear(method: str, inputs: Inputs, seed: int = 0) -> Linear:
    generator = torch.Generator().manual_seed(seed)
    linear, kind = Linear(IN, OUT, context=ModelContext()), METHODS[method]({"group_size": 16}).with_inputs(inputs)
    linear.keep(kind)
    parameters = kind.quantize(torch.randn(OUT, IN, generator=generator))
    extra = {
        "pre_quant_scale": torch.rand(IN, generator=generator) + 0.5,
        "input_order": torch.randperm(IN, generator=generator).int(),
        "input_scale": torch.tensor([0.02]),
    }
    parameters |= {name: extra[name] for name in inputs.layout(IN)}
    linear.load_state_dict(parameters | {"bias": torch.randn(OUT, generator=generator)}, assign=True)
    return linear.eval().requires_grad_(False)


def exported(linear: Linear, x: torch.Tensor, lower) -> onnx.ModelProto:
    return lowered(nodes_of(linear, x), lower)


def nodes_of(linear: Linear, x: torch.Tensor) -> onnx.ModelProto:
    """Returns the graph with its products as nodes of ours, which each backend writes in a form of its own."""
    rows = {0: torch.export.Dim("rows")}
    with products_as_nodes(linear):
        program = torch.onnx.export(
            linear, (x,), dynamo=True, opset_version=24, dynamic_shapes=(rows,), input_names=["x"],
            custom_translation_table=lowerings(), verbose=False,
        )  # fmt: skip
    return program.model_proto


def lowered(proto: onnx.ModelProto, lower) -> onnx.ModelProto:
    model = ir.from_proto(proto)
    lower(model)
    return ir.to_proto(model)


@cache
def case(method: str, inputs: str) -> tuple[Linear, torch.Tensor, onnx.ModelProto]:
    """Returns a layer, what it is given, and its graph, which takes ten times as long as a form of it."""
    linear, x = quantized_linear(method, INPUTS[inputs]), torch.randn(5, IN, generator=torch.Generator().manual_seed(1))
    return linear, x, nodes_of(linear, x)


def computed(model: onnx.ModelProto, x: torch.Tensor) -> torch.Tensor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if "DequantizeLinear" not in {node.op_type for node in model.graph.node}:  # which is for TensorRT
        options.add_session_config_entry(*EXACT_SUMS)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, disabled_optimizers=AS_WRITTEN)
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def cases():
    for method in METHODS:
        for inputs in INPUTS:
            if inputs == "static" and method not in ("w8a8", "fp8"):
                continue
            takes = ["qdq"] + (["few rows", "many rows"] if method in OnnxRuntimeBackend.quantizations else [])
            yield from ((method, inputs, form) for form in takes)


@pytest.mark.parametrize(("method", "inputs", "form"), list(cases()))
def test_a_node_computes_what_its_layer_does(method, inputs, form):
    linear, x, nodes = case(method, inputs)
    model = lowered(nodes, FORMS[form])
    rounds = form == "many rows" and method == "int8"  # which torch does not
    error = (computed(model, x) - linear(x)).abs().max() / linear(x).abs().max()
    assert error < (2e-2 if rounds else 2e-5)
    assert not [node for node in model.graph.node if node.domain == "vlm"]


def test_rows_do_not_depend_on_what_they_are_batched_with():
    linear, x = quantized_linear("int8", Inputs()), torch.randn(5, IN) * torch.tensor([1, 100, 0, 1e-3, 1])[:, None]
    model = exported(linear, x, FORMS["many rows"])
    together = computed(model, x)
    assert torch.isfinite(together).all()
    assert all(torch.equal(together[i : i + 1], computed(model, x[i : i + 1])) for i in range(5))


@pytest.mark.parametrize(
    ("method", "holds"),
    [("int8", "INT8"), ("int4", "INT4"), ("int4-asymmetric", "INT4"), ("w8a8", "INT8"), ("fp8", "FLOAT8E4M3FN")],
)
def test_weights_keep_their_bits(method, holds):
    """None is kept as a float matrix, and the layer has its method again."""
    linear = quantized_linear(method, Inputs())
    model = exported(linear, torch.randn(3, IN), qdq.lower)
    sizes = {t.name: (onnx.TensorProto.DataType.Name(t.data_type), t.dims) for t in model.graph.initializer}
    matrices = [kind for kind, dims in sizes.values() if tuple(dims) in ((IN, OUT), (OUT, IN))]
    assert matrices == [holds]
    assert type(linear.method) is type(METHODS[method]({}))
