"""Names and shapes of the graphs that an engine of slot networks is made of.

visual   pixel_values [batch, C, H, W] -> features [batch, n, hidden]
encoder  token_ids [batch, span], lengths [batch], prompt_table [rows, width] -> hidden [batch, span, hidden]
cross    hidden [batch, span, hidden] -> cross_k_i, cross_v_i [batch, heads, span, head_dim] of each layer
decoder  token_ids [batch, span], starts [batch], counts [batch] and
         - of a decoder alone: prompt_table [rows, width]
         - of one that looks at an encoder: cross_lengths [batch], cross_k_i, cross_v_i
         - self_k_i, self_v_i [batch, kv_heads, max_seq_len, head_dim]
         -> logits [batch, vocab] float32, self_k_i_out, self_v_i_out

`span` tokens of each sequence are right-padded; `counts` of them count, and logits are of the last of these. They are
written into the caches from row `starts` on (starts + span <= max_seq_len), padding too: the next span overwrites it.
Ids from the vocabulary's size on are rows of `prompt_table`, which has at least one. An `_out` is its input's memory,
updated. The caches of an encoder's output hold max_encoder_input_len rows. For a runtime that takes any size both may
have fewer rows (`cached`, `crossed`), since shorter ones are looked through faster. Integers are int64. `batch` is any
run of slots: sequences that wait take part with what they would do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from vlm.config import EngineLimits, ModelConfig, VisionConfig
from vlm.registry.role_configs import RoleConfigs

BATCH, SPAN, ROWS = "batch", "span", "rows"
CACHED, CROSSED = "cached", "crossed"


@dataclass(frozen=True)
class Port:
    """An input or output; a dimension that varies has a name."""

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype

    def sized(self, **sizes: int) -> tuple[int, ...]:
        return tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)


@dataclass(frozen=True)
class GraphIO:
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)  # output -> the input whose memory it is
    vocab_size: int = 0  # of its token ids; those from here on are rows of the prompt table
    max_span: int | None = None  # rows of a sequence, earlier ones included

    def to(self, dtype: torch.dtype) -> GraphIO:
        """Returns the same graph with its floating tensors in another type."""
        cast = lambda port: replace(port, dtype=dtype if port.dtype.is_floating_point else port.dtype)  # noqa: E731
        return replace(self, inputs=tuple(map(cast, self.inputs)), outputs=tuple(map(cast, self.outputs)))


def role_of(graph: str) -> str:
    """Returns the role whose weights a graph holds."""
    return "decoder" if graph == "cross" else graph


def caches(kind: str, layers: int) -> list[str]:
    """Returns the names of all keys and values of a kind, `self` or `cross`, a layer after the other."""
    return [f"{kind}_{part}_{layer}" for layer in range(layers) for part in "kv"]


def updated(name: str) -> str:
    """Returns the name of the output that an updated cache has."""
    return f"{name}_out"


def graphs_of(
    configs: RoleConfigs, limits: EngineLimits, dtype: torch.dtype, *, caches_grow: bool
) -> dict[str, GraphIO]:
    """Returns the graphs by name, in the order in which a request meets them. `caches_grow`: the decoder takes caches
    of any number of rows."""
    visual, encoder, decoder = configs.visual, configs.encoder, configs.decoder
    graphs = {}
    if visual is not None:
        graphs["visual"] = visual_io(visual, dtype)
    if encoder is not None:
        graphs["encoder"] = encoder_io(encoder, limits, dtype)
    if decoder is not None and decoder.cross_attention:
        graphs["cross"] = cross_io(decoder, limits, dtype)
    if decoder is not None:
        graphs["decoder"] = decoder_io(decoder, limits, dtype, caches_grow=caches_grow)
    return graphs


def visual_io(config: VisionConfig, dtype: torch.dtype) -> GraphIO:
    size = config.network_size or config.image_size
    pixels = Port("pixel_values", (BATCH, config.num_channels, *size), dtype)
    return GraphIO((pixels,), (Port("features", (BATCH, config.network_rows, config.hidden_size), dtype),))


def encoder_io(config: ModelConfig, limits: EngineLimits, dtype: torch.dtype) -> GraphIO:
    inputs = (_token_ids(), _integers("lengths"), _prompt_table(config, dtype))
    outputs = (Port("hidden", (BATCH, SPAN, config.hidden_size), dtype),)
    return GraphIO(inputs, outputs, {}, config.vocab_size, limits.max_encoder_input_len)


def cross_io(config: ModelConfig, limits: EngineLimits, dtype: torch.dtype) -> GraphIO:
    shape = (BATCH, config.num_heads, SPAN, config.head_dim)
    outputs = tuple(Port(name, shape, dtype) for name in caches("cross", config.num_layers))
    inputs = (Port("hidden", (BATCH, SPAN, config.encoder_size), dtype),)
    return GraphIO(inputs, outputs, max_span=limits.max_encoder_input_len)


def decoder_io(config: ModelConfig, limits: EngineLimits, dtype: torch.dtype, *, caches_grow: bool) -> GraphIO:
    rows = (CACHED, CROSSED) if caches_grow else (limits.max_seq_len, limits.max_encoder_input_len)
    own = (BATCH, config.num_kv_heads, rows[0], config.head_dim)
    cache_ports = [Port(name, own, dtype) for name in caches("self", config.num_layers)]
    inputs = [_token_ids(), _integers("starts"), _integers("counts")]
    if config.cross_attention:
        theirs = (BATCH, config.num_heads, rows[1], config.head_dim)
        inputs += [_integers("cross_lengths"), *cache_ports]
        inputs += [Port(name, theirs, dtype) for name in caches("cross", config.num_layers)]
    else:
        inputs += [_prompt_table(config, dtype), *cache_ports]
    outputs = [Port("logits", (BATCH, config.vocab_size), torch.float32)]
    outputs += [Port(updated(port.name), port.shape, dtype) for port in cache_ports]
    in_place = {updated(port.name): port.name for port in cache_ports}
    return GraphIO(tuple(inputs), tuple(outputs), in_place, config.vocab_size, limits.max_seq_len)


def _token_ids() -> Port:
    return Port("token_ids", (BATCH, SPAN), torch.int64)


def _integers(name: str) -> Port:
    return Port(name, (BATCH,), torch.int64)


def _prompt_table(config: ModelConfig, dtype: torch.dtype) -> Port:
    return Port("prompt_table", (ROWS, config.embedding_size), dtype)
