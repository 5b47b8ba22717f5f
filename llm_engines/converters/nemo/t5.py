"""NeMo's T5s, T0s and BARTs. The networks are those of `llm_engines.models.t5`, each side with its own configuration.

Names and layouts: NVIDIA NeMo, token_level_encoder_decoder.py, transformer.py and attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from llm_engines.converters.nemo.roles import Network, converted, known_rows
from llm_engines.converters.nemo.t5_config import Side, head_is_tied, shares_embeddings, sides
from llm_engines.converters.nemo.t5_tokenizer import tokenizer_files as tokenizer_files
from llm_engines.converters.nemo.weights import read_weights
from vlm.artifacts.native.roles import RoleWeights
from vlm.convert.rules import Apply, Fuse, Rename, Tied

FAMILY = "t5"
MODELS = {"encoder": "t5-encoder", "decoder": "t5"}
ROOT = "enc_dec_model"
STACK = f"{ROOT}.{ROOT}.{{}}.model"  # of a side
EMBEDDING = f"{ROOT}.{{}}_embedding.word_embeddings.weight"
POSITIONS = f"{ROOT}.{{}}_embedding.position_embeddings.weight"
BIAS = f"{ROOT}.{{}}_relative_position_embedding.relative_position_embedding.weight"
HEAD = f"{ROOT}.tokens_head"
# a block's parts by side: NeMo's names -> ours
NORMS = {
    "encoder": {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"},
    "decoder": {"input_layernorm": "self_norm", "post_attention_layernorm": "cross_norm",
                "post_inter_attention_layernorm": "ffn_norm"},
}  # fmt: skip
PRODUCTS = {
    "encoder": {"self_attention.dense": "attention.out", "mlp.dense_4h_to_h": "ffn.down"},
    "decoder": {"self_attention.dense": "self_attention.out", "inter_attention.query": "cross_attention.q",
                "inter_attention.dense": "cross_attention.out", "mlp.dense_4h_to_h": "ffn.down"},
}  # fmt: skip
# … that are several in one -> ours, of how many parts
FUSED = {
    "encoder": {"self_attention.query_key_value": ("attention.qkv", 3)},
    "decoder": {"self_attention.query_key_value": ("self_attention.qkv", 3),
                "inter_attention.key_value": ("cross_attention.kv", 2)},
}  # fmt: skip


def roles(folder: Path, config: dict[str, Any], size: int) -> dict[str, RoleWeights]:
    """Returns encoder and decoder of a vocabulary of so many ids. Raises CheckpointError where their weights do not
    fit, ConfigError for what cannot be run exactly."""
    parts = sides(config, size)
    whole = read_weights(folder, config, lambda name: _pieces(parts, name))
    tensors = known_rows(whole, EMBEDDING.format("encoder"), size, folder)
    rules = {name: [*_outer_rules(name, side, config), *_block_rules(name, side)] for name, side in parts.items()}
    # what only the encoder's rules name is no part of the decoder; what none names is missed there
    own = {name: {n for n in tensors if any(rule.matches(n) for rule in rules[name])} for name in parts}
    own["decoder"] |= tensors.keys() - own["encoder"]
    networks = {
        name: Network(MODELS[name], side.network, {n: tensors[n] for n in own[name]}, rules[name])
        for name, side in parts.items()
    }
    return converted(networks, folder)


def _pieces(parts: Mapping[str, Side], name: str) -> int:
    """Returns how many parts lie one after the other in what a rank has of a tensor."""
    side = parts["decoder" if f".{ROOT}.decoder." in name else "encoder"]
    counts = {"dense_h_to_4h": 2} if side.joined_gate else {}
    counts |= {"query_key_value": 3, "key_value": 2} if side.by_part else {}
    return counts.get(name.split(".")[-2], 1)


def _outer_rules(name: str, side: Side, config: Mapping[str, Any]) -> list[Any]:
    """Returns rules for all but the blocks. Embeddings that both sides have are stored for each of them. A head that
    has no weights of its own has those of the encoder's embedding."""
    order = ("encoder", "decoder") if name == "encoder" or shares_embeddings(config) else ("decoder",)
    words, places = ([pattern.format(each) for each in order] for pattern in (EMBEDDING, POSITIONS))
    rules: list[Any] = [Tied(words[0], "embedding.weight", also=tuple(words[1:]))]
    if side.network.learned_positions:
        rules.append(Tied(places[0], "positions.weight", also=tuple(places[1:])))
    else:
        rules.append(Rename(BIAS.format(name), "relative_bias.weight"))
    if name == "decoder" and not side.network.tied:
        rules.append(Rename(EMBEDDING.format("encoder") if head_is_tied(config) else f"{HEAD}.weight", "head.weight"))
    if side.network.logits_bias:
        rules.append(Rename(f"{HEAD}.bias", "logits_bias"))
    return rules


def _block_rules(name: str, side: Side) -> list[Any]:
    """Returns rules for the blocks and the norm after them."""
    stack, network = STACK.format(name), side.network
    layer = f"{stack}.layers.{{}}"
    norms = {f"{layer}.{a}": f"blocks.{{}}.{b}" for a, b in NORMS[name].items()}
    norms[f"{stack}.final_layernorm"] = "final_norm"
    rules = [rule for theirs, ours in norms.items() for rule in _norm_rules(theirs, ours, side)]
    for kind in ("weight", "bias") if network.bias else ("weight",):
        rules += [Rename(f"{layer}.{a}.{kind}", f"blocks.{{}}.{b}.{kind}") for a, b in PRODUCTS[name].items()]
        for theirs, (ours, parts) in FUSED[name].items():
            rules.append(_by_part(f"{layer}.{theirs}.{kind}", f"blocks.{{}}.{ours}.{kind}", parts, side))
        up, halves = f"{layer}.mlp.dense_h_to_4h.{kind}", f"{layer}.mlp.{{dense_h_to_4h,dense_h_to_4h_2}}.{kind}"
        is_apart, ours = network.gated and not side.joined_gate, f"blocks.{{}}.ffn.up.{kind}"
        rules.append(Fuse(halves, ours) if is_apart else Rename(up, ours))
    return rules


def _norm_rules(theirs: str, ours: str, side: Side) -> list[Any]:
    names = f"{theirs}.weight", f"{ours}.weight"
    weight = Apply(*names, lambda x: x + 1, "stored less one") if side.one_less else Rename(*names)
    return [weight, Rename(f"{theirs}.bias", f"{ours}.bias")] if side.network.layer_norm else [weight]


def _by_part(theirs: str, ours: str, parts: int, side: Side) -> Any:
    """Reorders queries, keys and values, of which those of a head lie together: here all queries come first."""
    if side.by_part:
        return Rename(theirs, ours)

    def sort(x: Tensor) -> Tensor:
        by_head = x.view(-1, parts, side.network.d_kv, *x.shape[1:])
        return by_head.transpose(0, 1).reshape(x.shape)

    return Apply(theirs, ours, sort, "queries, keys and values of a head lie together")
