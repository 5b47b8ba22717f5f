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
    has_caches = any(port.name.startswith(CACHES) for port in graph.input)
    attentions = graph_attentions(graph, has_caches=has_caches)
    layers = {attention.name: attention for attention in network_attentions(network, trt)}
    errors = [reason for attention in attentions for reason in _misread(attention, layers, has_caches=has_caches)]
    errors += _superfluous({attention.name for attention in attentions}, layers)
    errors += _copied_caches(network, trt, sum(node.op_type == UPDATE for node in graph.node))
    if errors:
        raise EngineError(
            f"TensorRT does not read {onnx_file.name} as it was meant, its results would be wrong: {listed(errors)};"
            " export it again with this version of vlm, or use the backend onnxruntime or torch."
        )


def graph_attentions(graph: GraphProto, *, has_caches: bool) -> list[Attention]:
    """Returns the attentions as the graph's nodes say them, by their names. In a graph with caches, causal means from
    the last row on."""
    updates = {node.output[0] for node in graph.node if node.op_type == UPDATE}
    nodes = [node for node in graph.node if node.op_type in INPUTS]
    return [_expected(node, has_caches=has_caches, writes=node.input[1] in updates) for node in nodes]


def _expected(node: NodeProto, *, has_caches: bool, writes: bool) -> Attention:
    attributes = {a.name: _value(a) for a in node.attribute}
    causal = attributes.get("causal_kind")
    if causal is None:
        causal = (LAST_ROW if has_caches else "upper_left") if attributes.get("is_causal") else "none"
    present = [bool(name) for name in node.input] + [False] * 7
    mask, lengths = INPUTS[node.op_type]
    return Attention(node.name or f"node_of_{node.output[0]}", causal, present[lengths], present[mask], writes)


def _value(attribute: AttributeProto) -> Any:
    from onnx.helper import get_attribute_value

    value = get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def network_attentions(network: Any, trt: Any) -> Iterator[Attention]:
    for attention in attention_layers(network, trt):
        causal, lengths = attention.causal_kind.name.lower(), attention.key_value_lengths is not None
        yield Attention(attention.name, causal, lengths, attention.mask is not None)


def attention_layers(network: Any, trt: Any) -> Iterator[Any]:
    """Yields the network's `IAttention`s."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_OUTPUT:
            layer.__class__ = trt.IAttentionOutputLayer  # the bindings give out the base class
            yield layer.attention


def _misread(attention: Attention, layers: dict[str, Attention], *, has_caches: bool) -> Iterator[str]:
    layer = layers.get(attention.name)
    if layer is None:
        yield f"attention {attention.name} is gone"
        return
    if attention.lengths and not layer.lengths:
        yield f"attention {attention.name} lost the lengths of its keys"
    elif has_caches and not layer.lengths:
        yield f"attention {attention.name} reads a cache without lengths of its keys"
    if layer.causal != attention.causal:
        yield f"attention {attention.name} is causal by {layer.causal}, not by {attention.causal}"
    elif has_caches and layer.causal == "upper_left":
        yield f"attention {attention.name} is causal by upper_left, a cache needs {LAST_ROW}"
    if attention.mask and not layer.mask:
        yield f"attention {attention.name} lost its mask"
    elif attention.writes and layer.causal == "none" and not layer.mask:
        yield f"attention {attention.name} sees later tokens: it has neither a causal kind nor a mask"


def _superfluous(names: set[str], layers: dict[str, Attention]) -> Iterator[str]:
    yield from (f"attention {name} was added" for name in sorted(layers.keys() - names))


def _copied_caches(network: Any, trt: Any, updates: int) -> Iterator[str]:
    """Yields errors of cache updates: only one straight from an input to an output of the network happens in place."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    update_layers = [layer for layer in layers if layer.type == trt.LayerType.KV_CACHE_UPDATE]
    if len(update_layers) != updates:
        yield f"{updates} cache updates became {len(update_layers)}"
    for layer in update_layers:
        if not (layer.get_input(0).is_network_input and layer.get_output(0).is_network_output):
            yield f"cache update {layer.name} does not go from an input to an output"
