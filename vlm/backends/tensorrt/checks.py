"""What TensorRT's parser is known to drop without a word, compared with the graph after every parse.

On the standard `Attention` node it ignores `nonpad_kv_seqlen` and reads `is_causal` as "from the first row of the
cache": the plan builds, and is wrong. `trt::TRT_Attention` keeps both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import EngineError, listed

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

CACHES = ("self_k_", "self_v_", "cross_k_", "cross_v_")
LAST_ROW = "lower_right"  # causal from the cache's last filled row on
UPDATE = "TensorScatter"
INPUTS = {"TRT_Attention": (3, 5), "Attention": (3, 6)}  # where mask and lengths of keys are


@dataclass(frozen=True)
class Attention:
    """One attention, as a graph asks for it or as the parser understood it."""

    name: str
    causal: str  # "none", "upper_left" or "lower_right"
    lengths: bool  # are there per-sequence lengths of the keys?
    mask: bool
    writes: bool = False  # are its keys written by this graph? Known of what is asked for


def check_parsed(network: Any, trt: Any, onnx_file: Path) -> None:
    """Raises EngineError that names every attention and cache update that is not what the graph asks for."""
    import onnx

    graph = onnx.load(str(onnx_file), load_external_data=False).graph
    cached = any(port.name.startswith(CACHES) for port in graph.input)
    wanted, got = asked_attentions(graph, cached), {a.name: a for a in parsed_attentions(network, trt)}
    errors = [reason for attention in wanted for reason in _misread(attention, got, cached)]
    errors += _superfluous({attention.name for attention in wanted}, got)
    errors += _copied_caches(network, trt, sum(node.op_type == UPDATE for node in graph.node))
    if errors:
        raise EngineError(
            f"TensorRT does not read {onnx_file.name} as it was meant, its results would be wrong: {listed(errors)};"
            " export it again with this version of vlm, or use the backend onnxruntime or torch."
        )


def asked_attentions(graph: GraphProto, cached: bool) -> list[Attention]:
    """What the graph's nodes say, by their names. In a graph with caches, causal means from the last row on."""
    written = {node.output[0] for node in graph.node if node.op_type == UPDATE}
    return [_expected(node, cached, node.input[1] in written) for node in graph.node if node.op_type in INPUTS]


def _expected(node: NodeProto, cached: bool, writes: bool) -> Attention:
    attributes = {a.name: _value(a) for a in node.attribute}
    causal = attributes.get("causal_kind")
    if causal is None:
        causal = (LAST_ROW if cached else "upper_left") if attributes.get("is_causal") else "none"
    given = [bool(name) for name in node.input] + [False] * 7
    mask, lengths = INPUTS[node.op_type]
    return Attention(node.name or f"node_of_{node.output[0]}", causal, given[lengths], given[mask], writes)


def _value(attribute: AttributeProto) -> Any:
    from onnx.helper import get_attribute_value

    value = get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def parsed_attentions(network: Any, trt: Any) -> Iterator[Attention]:
    for attention in attention_layers(network, trt):
        causal, lengths = attention.causal_kind.name.lower(), attention.key_value_lengths is not None
        yield Attention(attention.name, causal, lengths, attention.mask is not None)


def attention_layers(network: Any, trt: Any) -> Iterator[Any]:
    """The network's `IAttention`s"""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_OUTPUT:
            layer.__class__ = trt.IAttentionOutputLayer  # the bindings give out the base class
            yield layer.attention


def _misread(wanted: Attention, parsed: dict[str, Attention], cached: bool) -> Iterator[str]:
    got = parsed.get(wanted.name)
    if got is None:
        yield f"attention {wanted.name} is gone"
        return
    if wanted.lengths and not got.lengths:
        yield f"attention {wanted.name} lost the lengths of its keys"
    elif cached and not got.lengths:
        yield f"attention {wanted.name} reads a cache without lengths of its keys"
    if got.causal != wanted.causal:
        yield f"attention {wanted.name} is causal by {got.causal}, not by {wanted.causal}"
    elif cached and got.causal == "upper_left":
        yield f"attention {wanted.name} is causal by upper_left, a cache needs {LAST_ROW}"
    if wanted.mask and not got.mask:
        yield f"attention {wanted.name} lost its mask"
    elif wanted.writes and got.causal == "none" and not got.mask:
        yield f"attention {wanted.name} sees later tokens: it has neither a causal kind nor a mask"


def _superfluous(wanted: set[str], parsed: dict[str, Attention]) -> Iterator[str]:
    yield from (f"attention {name} was added" for name in sorted(parsed.keys() - wanted))


def _copied_caches(network: Any, trt: Any, updates: int) -> Iterator[str]:
    """Only an update straight from an input to an output of the network happens in place."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    kept = [layer for layer in layers if layer.type == trt.LayerType.KV_CACHE_UPDATE]
    if len(kept) != updates:
        yield f"{updates} cache updates became {len(kept)}"
    for layer in kept:
        if not (layer.get_input(0).is_network_input and layer.get_output(0).is_network_output):
            yield f"cache update {layer.name} does not go from an input to an output"
