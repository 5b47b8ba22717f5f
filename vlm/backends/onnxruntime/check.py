"""Is an exported graph what the network is? Its attentions are looked at, and its numbers compared."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlm.backends.graphs.bf16_to_fp32 import bf16_to_fp32
from vlm.backends.graphs.export import examples
from vlm.backends.graphs.io import GraphIO
from vlm.backends.graphs.networks import GRAPHS
from vlm.backends.onnxruntime.session import OnnxGraph
from vlm.errors import EngineError, listed
from vlm.ops.attention.slot_attention import ATTENTION

# of the largest value of an output; what a graph in 16 bits holds as constants is rounded
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
ROUGH = 0.2  # where what weights meet is rounded: tells a wrong graph from a rough one
ROUGH_SEEDS = 3  # a row of random inputs may be near a step of the rounding; a wrong graph is off on all inputs
SIZES = ({"batch": 2, "span": 5}, {"batch": 1, "span": 1, "rows": 1}, {"batch": 3, "span": 1})


def check(
    name: str, network: nn.Module, io: GraphIO, path: Path, rough: bool = False, *, whole_numbers: bool = False
) -> None:
    """Raises EngineError with every reason why the graph at `path` cannot be trusted. `rough`: it rounds what its
    weights meet; `whole_numbers`: see GraphForm."""
    tolerance = ROUGH if rough else None
    errors = structure(path, name) + numbers(name, network, io, path, tolerance, whole_numbers=whole_numbers)
    if errors:
        raise EngineError(
            f"the exported {name} graph is not what the model computes: {listed(errors)}; please report it."
        )


def structure(path: Path, name: str) -> list[str]:
    """Returns what is wrong with the graph's attentions: each must have its lengths, and those over a cache that is
    written must see no later keys, by their kind or by a mask."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    updates = {out for node in graph.node if node.op_type == "TensorScatter" for out in node.output}
    attentions = [node for node in graph.node if node.op_type == ATTENTION]
    if name in ("encoder", "decoder") and not attentions:
        return ["it has no attention"]
    return [reason for node in attentions for reason in _errors(node, updates)]


def _errors(node: Any, updates: set[str]) -> list[str]:
    inputs = [*node.input, *[""] * 6]
    kind = next(a.s.decode() for a in node.attribute if a.name == "causal_kind")
    has_cache, has_mask, errors = inputs[1] in updates, bool(inputs[3]), []
    if not inputs[5]:
        errors.append(f"{node.name} lacks the lengths of its keys")
    if kind not in ("none", "lower_right") or (kind == "lower_right") != (has_cache and not has_mask):
        errors.append(f"{node.name} over {'its' if has_cache else 'another'} cache has causal kind {kind}")
    return errors


def numbers(
    name: str,
    network: nn.Module,
    io: GraphIO,
    path: Path,
    tolerance: float | None = None,
    *,
    whole_numbers: bool = False,
) -> list[str]:
    """Names outputs that differ from the network's on random inputs of several sizes; of bfloat16 in float32.
    `tolerance` None: the type's; otherwise an output differs if it does on the inputs of every seed."""
    dtype = next(port.dtype for port in io.inputs if port.dtype.is_floating_point)
    bound, seeds = (TOLERANCE[dtype], 1) if tolerance is None else (tolerance, ROUGH_SEEDS)
    if dtype != torch.bfloat16:
        return _numbers(name, network, OnnxGraph(path, io, whole_numbers=whole_numbers), bound, seeds)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        bf16_to_fp32(path, fp32_file := Path(folder) / path.name)
        graph = OnnxGraph(fp32_file, io.to(torch.float32), whole_numbers=whole_numbers)
        return _numbers(name, copy.deepcopy(network).float(), graph, bound, seeds)


@torch.inference_mode()
def _numbers(name: str, network: nn.Module, graph: OnnxGraph, tolerance: float, seeds: int) -> list[str]:
    module, reasons = GRAPHS[name](network), []
    for sizes in SIZES:
        errors = [_errors_of_outputs(module, graph, examples(graph.io, seed, **sizes)) for seed in range(seeds)]
        reasons += [
            f"{output} differs by {error:.2g} of its largest value at {sizes}"
            for output, error in zip(errors[0], torch.tensor([[*e.values()] for e in errors]).amin(0), strict=True)
            if not error <= tolerance
        ]
    return reasons


def _errors_of_outputs(module: nn.Module, graph: OnnxGraph, inputs: dict[str, Tensor]) -> dict[str, float]:
    reference = {output: tensor.clone() for output, tensor in module(inputs).items()}
    actual = graph.bind(inputs, {output: inputs[source] for output, source in graph.io.in_place.items()})()
    return {output: _error(actual[output], reference[output]) for output in reference}


def _error(actual: Tensor, reference: Tensor) -> float:
    actual, reference = actual.float(), reference.float()
    return float((actual - reference).abs().max() / reference.abs().max().clamp(min=1e-6))
