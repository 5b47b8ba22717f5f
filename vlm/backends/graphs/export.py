"""Networks -> ONNX files, for ONNX Runtime and for TensorRT's parser (names and shapes: vlm.backends.graphs.io)."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlm.backends.graphs import qdq, quantized_linear
from vlm.backends.graphs.form import GraphForm
from vlm.backends.graphs.io import GraphIO, Port
from vlm.backends.graphs.networks import GRAPHS
from vlm.backends.graphs.quantized_linear import products_as_nodes
from vlm.errors import ConfigError
from vlm.layers.attention import Attention, MergedAttention
from vlm.ops import add_rms_norm
from vlm.ops.attention import rotary, slot_attention

OPSET = 24  # attention over lengths, writes into caches
TOWER_OPSET = 18  # visual encoders: attention in plain matrix products, which every runtime takes as they are
SHORT, CROSS = 16, 6  # rows of an example's caches
OPERATORS = (slot_attention, rotary, add_rms_norm, quantized_linear)
EXTERNAL_FROM = 2**30  # bytes of weights; a protocol buffer ends at 2 GiB


def export(name: str, network: nn.Module, io: GraphIO, path: Path, form: GraphForm = qdq.FORM) -> None:
    """Writes graph `name` of a network to `path`, large weights to a file beside it. ConfigError for a
    network that graphs cannot express."""
    check_expressible(network)
    # a span of one would be taken for all that there is
    module, inputs = GRAPHS[name](network).eval(), examples(replace(io, max_span=None))
    with _quiet(), torch.no_grad(), products_as_nodes(network):
        program = torch.onnx.export(
            module,
            kwargs={"inputs": inputs},
            dynamo=True,
            opset_version=TOWER_OPSET if name == "visual" else OPSET,
            input_names=[port.name for port in io.inputs],
            output_names=[port.name for port in io.outputs],
            dynamic_shapes={"inputs": {port.name: _dynamic(port) for port in io.inputs}},
            custom_translation_table=_lowerings(),
            optimize=True,
            verbose=False,
        )
    assert program is not None  # dynamo=True returns one
    if name != "visual":
        _add_attention(program.model)
    form.lower(program.model, name)
    constants = [value.const_value for value in program.model.graph.initializers.values()]
    size = sum(value.nbytes for value in constants if value is not None)
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path, external_data=size > EXTERNAL_FROM)


def check_expressible(network: nn.Module) -> None:
    """Raises ConfigError for a network, which may be a skeleton, that graphs cannot express."""
    if why := _inexpressible(network):
        raise ConfigError(
            f"this model {why}, which exported graphs cannot express; build it for backend torch.",
            settings=("backend",),
        )


def _inexpressible(network: nn.Module) -> str | None:
    """Returns what a network does that graphs cannot express; None: nothing."""
    layers = [module for module in network.modules() if isinstance(module, Attention)]
    if any(layer.variant.softcap for layer in layers):
        return "caps its attention scores"
    if any(isinstance(layer, MergedAttention) for layer in layers):
        return "attends to its output and to what it read in one softmax"
    if any(layer.variant.reach_ahead != layer.variant.reach for layer in layers):
        return "looks further to one side than to the other"
    return None


def examples(io: GraphIO, seed: int = 0, batch: int = 2, span: int = 3, rows: int = 4) -> dict[str, Tensor]:
    """Returns random inputs that belong together, ragged where sequences are, with ids of the prompt table where there
    is one; a span that is too long is cut."""
    generator = torch.Generator().manual_seed(seed)
    most = min(io.max_span or SHORT, SHORT)
    span = min(span, most)
    lengths = (span - torch.arange(batch)).clamp(min=1)
    starts = torch.arange(batch).clamp(max=most - span)
    tensors = {"lengths": lengths, "counts": lengths, "starts": starts, "cross_lengths": torch.ones_like(starts)}
    for port in io.inputs:
        shape = port.sized(batch=batch, span=span, rows=rows, cached=most, crossed=CROSS)
        if port.dtype.is_floating_point:
            tensors[port.name] = torch.randn(shape, generator=generator).to(port.dtype)
            if port.name.startswith("cross_k"):
                tensors["cross_lengths"] = torch.arange(batch).remainder(shape[2]) + 1
    ids = torch.randint(0, io.vocab_size or 1, (batch, span), generator=generator)
    if "prompt_table" in tensors:
        ids[:, 0] = io.vocab_size + torch.arange(batch).remainder(rows)
    tensors["token_ids"] = ids
    return {port.name: tensors[port.name] for port in io.inputs}


def _dynamic(port: Port) -> dict[int, Any]:
    return {i: torch.export.Dim(n) for i, n in enumerate(port.shape) if isinstance(n, str)}


def _lowerings() -> dict[Any, Any]:
    return {op: node for ops in OPERATORS for op, node in ops.lowerings().items()}


def _add_attention(model: Any) -> None:
    """Puts the meaning of the attention operator into the file."""
    import onnx_ir

    function = onnx_ir.serde.deserialize_function(slot_attention.attention_function())
    model.functions[function.identifier()] = function
    model.opset_imports[slot_attention.DOMAIN] = 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter but for its errors: it speaks of its own affairs."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
