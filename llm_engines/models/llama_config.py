"""Configurations of LLaMA-shaped decoders, as Hugging Face's classes of `llama`, `mistral`, `qwen2`, `qwen3` and of the
text of `qwen2_vl` and `qwen2_5_vl` read them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from vlm.config import ModelConfig
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.errors import ConfigError, cut, shown
from vlm.layers.rotary import AXES, RotaryConfig


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    kv_heads: int
    head_size: int
    ffn_size: int
    rotary: RotaryConfig
    activation: str = "silu"
    norm_eps: float = 1e-6
    tied: bool = False
    attention_bias: bool = False  # of queries, keys and values
    mlp_bias: bool = False
    out_bias: bool | None = None  # of attention's output; None: as of its queries
    qk_norm: bool = False  # of each head's queries and keys
    reach: int | None = None  # how far back attention looks; None: all the way
    whole_layers: tuple[int, ...] = ()  # that look all the way back where others do not

    def __post_init__(self) -> None:
        if self.out_bias is None:
            object.__setattr__(self, "out_bias", self.attention_bias)

    @property
    def head_dim(self) -> int:
        return self.head_size

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads

    @property
    def position_axes(self) -> int:
        return AXES if self.rotary.sections else 1

    @property
    def cross_attention(self) -> bool:
        return False


@dataclass(frozen=True)
class Kind:
    """What a class reads where its configuration says nothing, and what it does not read."""

    vocab: int = 32000
    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    ffn: int = 11008
    kv_heads: int | None = None  # None: as many as of queries
    head_dim: int | None = None  # None: the hidden size, divided among the heads
    positions: int = 2048
    ids: tuple[int, int] = (1, 2)  # that begin and end a text; -1: there is none
    attention_bias: bool | None = None  # None: read
    out_bias: bool | None = None
    mlp_bias: bool | None = False
    qk_norm: bool = False
    norm_eps: float = 1e-6
    sections: tuple[int, ...] = ()  # of frequencies, where positions have several axes


_QWEN_VL = Kind(
    152064, 8192, 80, 64, 29568, 8, ids=(151643, 151645), positions=32768, attention_bias=True, out_bias=False,
    norm_eps=1e-5, sections=(16, 24, 24),
)  # fmt: skip
KINDS = {
    "llama": Kind(mlp_bias=None),
    "mistral": Kind(ffn=14336, kv_heads=8, positions=4096 * 32, attention_bias=False, out_bias=False),
    "qwen2": Kind(151936, ffn=22016, kv_heads=32, positions=32768, ids=(-1, -1), attention_bias=True, out_bias=False),
    "qwen3": Kind(151936, ffn=22016, kv_heads=32, head_dim=128, positions=32768, ids=(-1, -1), qk_norm=True),
    "qwen2_vl": _QWEN_VL,
    "qwen2_5_vl": _QWEN_VL,
}


def parse(hf: dict[str, Any]) -> LlamaConfig:
    """Returns the LlamaConfig of a Hugging Face configuration of these kinds; ConfigError names every key that it
    cannot honour."""
    hf = _whole_text(hf)
    reader = ConfigReader(hf, "LLaMA")
    name = reader.choice("model_type", KINDS, default="llama")
    kind = KINDS.get(name, KINDS["llama"])
    hidden, heads = reader.size("hidden_size", kind.hidden), reader.size("num_attention_heads", kind.heads)
    layers = reader.size("num_hidden_layers", kind.layers)
    head_size = reader.size("head_dim", kind.head_dim or hidden // heads)
    # null stands for as many as of queries, and absence in some classes for a number
    kv_heads = reader.size("num_key_value_heads", heads if "num_key_value_heads" in hf else kind.kv_heads or heads)
    positions = reader.size("max_position_embeddings", kind.positions)
    bias = bool(reader.get("attention_bias", False))
    config = {
        "vocab_size": reader.size("vocab_size", kind.vocab),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "max_positions": positions,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "ffn_size": reader.size("intermediate_size", kind.ffn),
        "rotary": _rotary(hf, head_size, positions, kind.sections),
        "activation": reader.activation("hidden_act", "silu"),
        "norm_eps": reader.get("rms_norm_eps", kind.norm_eps),
        "tied": bool(reader.get("tie_word_embeddings", False)),
        "attention_bias": bias if kind.attention_bias is None else kind.attention_bias,
        "out_bias": bias if kind.out_bias is None else kind.out_bias,
        "mlp_bias": bool(reader.get("mlp_bias", False)) if kind.mlp_bias is None else kind.mlp_bias,
        "qk_norm": kind.qk_norm,
        **_window(reader, name, layers, positions),
        "bos_token_id": token_id(hf, "bos_token_id", kind.ids[0]),
        "eos_token_id": token_id(hf, "eos_token_id", kind.ids[1]),
        "pad_token_id": token_id(hf, "pad_token_id", 0),
        "decoder_start_token_id": token_id(hf, "bos_token_id", kind.ids[0]),
    }
    reader.multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    reader.raise_errors()
    return LlamaConfig(**config)


def _whole_text(hf: dict[str, Any]) -> dict[str, Any]:
    """Returns the text's part of a whole Qwen-VL configuration, which older ones have beside the tower's."""
    if not str(hf.get("model_type")).endswith("_vl"):
        return hf
    text = hf.get("text_config") or hf
    tied = bool(hf.get("tie_word_embeddings") or text.get("tie_word_embeddings"))
    return text | {"model_type": hf["model_type"], "tie_word_embeddings": tied}


def _rotary(hf: dict[str, Any], head_size: int, positions: int, sections: tuple[int, ...]) -> RotaryConfig:
    """Reads rotary positions, of several axes where a class has `sections` by default."""
    if not sections:
        return RotaryConfig.parse(hf, head_size, positions)
    said = dict(hf.get("rope_scaling") or hf.get("rope_parameters") or {})
    if (said.get("rope_type") or said.get("type")) == "mrope":
        said["rope_type"] = "default"
    found = tuple(said.get("mrope_section") or sections)
    if 2 * sum(found) != head_size:
        raise ConfigError(
            f"mrope_section is {shown(list(found))}, which must add up to half of head_dim {cut(head_size)}."
        )
    plain = RotaryConfig.parse(hf | {"rope_scaling": said}, head_size, positions, 1000000.0)
    return dataclasses.replace(plain, sections=found)


def _window(reader: ConfigReader, kind: str, layers: int, positions: int) -> dict[str, Any]:
    """Reads how far back attention looks, and which layers look all the way all the same. A window holds the token
    itself; null is none, and one that holds all positions is as good as none."""
    has_window = kind == "mistral" or (kind.startswith("qwen") and reader.values.get("use_sliding_window"))
    if not has_window or not reader.values.get("sliding_window", 4096):
        return {}
    window = reader.size("sliding_window", 4096)
    slides = (True,) * layers if kind == "mistral" else _sliding_qwen(reader, kind, layers)
    if window >= positions or not any(slides):
        return {}
    return {"reach": window - 1, "whole_layers": tuple(i for i, sliding in enumerate(slides) if not sliding)}


def _sliding_qwen(reader: ConfigReader, kind: str, layers: int) -> tuple[bool, ...]:
    """Reads which layers of a Qwen have its window: as listed, or all but the first ones."""
    default = 80 if kind.endswith("_vl") else 28
    first = 0 if reader.values.get("max_window_layers") == 0 else reader.size("max_window_layers", default)
    return reader.sliding_layers(layers, lambda layer: layer >= first)
