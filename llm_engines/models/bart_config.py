"""What BART-shaped networks are: their configuration, and how each of Hugging Face's classes reads a config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlm.config import ModelConfig
from vlm.convert.config_reader import ConfigReader, token_id


@dataclass(frozen=True)
class BartConfig(ModelConfig):
    """Holds the sizes of the encoder or of the decoder. The defaults are mBART's."""

    ffn_size: int
    activation: str = "gelu"
    scale_embedding: bool = True
    tied: bool = True
    layer_norm_eps: float = 1e-5
    pre_norm: bool = True  # norms before the sublayers, else after
    final_norm: bool = True
    embedding_norm: bool = True
    position_offset: int = 2  # the row of the first position: those before it are relics of fairseq's padding index
    sinusoidal: bool = False  # positions
    sine_endpoint: bool = True  # do the frequencies fall to 1/10000, or end one step before it?
    logits_bias: bool = False
    shared_embeddings: bool = True  # have encoder and decoder one?
    cross_size: int | None = None  # width of the encoder's rows; None: the decoder's own
    head_name: str = "lm_head"  # of its head's tensors

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.hidden_size) if self.scale_embedding else 1.0

    @property
    def encoder_size(self) -> int:
        return self.cross_size or self.hidden_size


@dataclass(frozen=True)
class _Class:
    """What follows from a model_type alone, and what a key means that is absent."""

    layout: Mapping[str, Any] = field(default_factory=dict)  # fields of BartConfig; `normalize_before` is read by none
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they differ from BART's
    after_padding: bool = False  # are sines counted from the padding's id on?
    reads: Callable[[ConfigReader], Mapping[str, Any]] = lambda reader: {}  # fields that its own keys decide
    base: str = "encoder"  # the side whose sizes have names of all models, too


def _trocr_fields(reader: ConfigReader) -> dict[str, Any]:
    """Reads the two forms of TrOCR's decoder, RoBERTa's and FairSeq's, and its encoder's width."""
    cross = reader.values.get("cross_attention_hidden_size")
    return {
        "sinusoidal": not reader.get("use_learned_position_embeddings", True),
        "embedding_norm": bool(reader.get("layernorm_embedding", True)),
        "cross_size": None if cross is None else reader.size("cross_attention_hidden_size"),
    }


_BART = {"vocab_size": 50265, "max_position_embeddings": 1024, "activation_function": "gelu", "scale_embedding": False,
         "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}  # fmt: skip
_POST_NORM = _Class({"pre_norm": False, "final_norm": False})
# transformers' configuration and modeling files of these names
CLASSES = {
    "bart": _POST_NORM,
    "florence2_language": _POST_NORM,  # BART, in the code that Microsoft publishes beside Florence-2
    "mbart": _Class({"pre_norm": True, "final_norm": True}, {"decoder_start_token_id": None}),
    "m2m_100": _Class(
        {"pre_norm": True, "final_norm": True, "embedding_norm": False, "sinusoidal": True},
        {"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
        after_padding=True,
    ),
    "marian": _Class(
        {"pre_norm": False, "final_norm": False, "embedding_norm": False, "sinusoidal": True, "sine_endpoint": False,
         "position_offset": 0},
        {"vocab_size": 58101, "bos_token_id": 0, "pad_token_id": 58100, "eos_token_id": 0,
         "decoder_start_token_id": 58100},
    ),
    "pegasus": _Class(
        {"pre_norm": True, "final_norm": True, "embedding_norm": False, "sinusoidal": True, "sine_endpoint": False,
         "position_offset": 0},
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    ),
    "trocr": _Class(
        {"pre_norm": False, "final_norm": False, "head_name": "output_projection"},
        {"max_position_embeddings": 512},
        after_padding=True,
        reads=_trocr_fields,
        base="decoder",
    ),
}  # fmt: skip


def parse_decoder(hf: dict[str, Any]) -> BartConfig:
    """Returns the BartConfig of a Hugging Face configuration of one of CLASSES; ConfigError names every key that it
    cannot honour."""
    return _parse(hf, "decoder")


def parse_encoder(hf: dict[str, Any]) -> BartConfig:
    """Reads the encoder's configuration as `parse_decoder` does the decoder's."""
    return _parse(hf, "encoder")


def _parse(hf: dict[str, Any], side: str) -> BartConfig:
    hf = {"model_type": "bart"} | hf  # a part of a configuration may leave it out
    known = CLASSES.get(hf["model_type"], _Class())
    aliases = {"num_attention_heads": f"{known.base}_attention_heads", "num_hidden_layers": f"{known.base}_layers"}
    reader = ConfigReader(hf, f"BART {side}", {"hidden_size": "d_model", **aliases})
    reader.choice("model_type", CLASSES)
    default = _BART | dict(known.defaults)
    config = {
        "hidden_size": reader.size("d_model", 1024),
        "num_layers": reader.size(f"{side}_layers", 12),
        "num_heads": reader.size(f"{side}_attention_heads", 16),
        "max_positions": reader.size("max_position_embeddings", default["max_position_embeddings"]),
        "ffn_size": reader.size(f"{side}_ffn_dim", 4096),
        "activation": reader.activation("activation_function", default["activation_function"]),
        "scale_embedding": bool(reader.get("scale_embedding", default["scale_embedding"])),
        "tied": bool(reader.get("tie_word_embeddings", True)),
        **_vocabulary(reader, side, default["vocab_size"]),
        **_token_ids(hf, default),
        **known.layout,
        **known.reads(reader),
    }
    reader.multiple("d_model", config["hidden_size"], f"{side}_attention_heads", config["num_heads"])
    reader.raise_errors()
    if known.after_padding and config["sinusoidal"]:
        config["position_offset"] = config["pad_token_id"] + 1
    return BartConfig(**config)


def _token_ids(hf: dict[str, Any], default: Mapping[str, Any]) -> dict[str, int]:
    """Reads the special tokens; an output starts from `bos` where neither the file nor the class says."""
    names = ("bos_token_id", "pad_token_id", "eos_token_id")
    ids = {name: token_id(hf, name, default[name]) for name in names}
    start = default["decoder_start_token_id"]
    return ids | {
        "decoder_start_token_id": token_id(
            hf, "decoder_start_token_id", ids["bos_token_id"] if start is None else start
        )
    }


def _vocabulary(reader: ConfigReader, side: str, default: int) -> dict[str, Any]:
    """Reads the size of a side's vocabulary: of Marian's models some have two."""
    size = reader.size("vocab_size", default)
    is_marian = reader.values.get("model_type") == "marian"
    shared = not is_marian or bool(reader.get("share_encoder_decoder_embeddings", True))
    if side == "decoder" and not shared:
        size = reader.size("decoder_vocab_size", size)
    return {"vocab_size": size, "shared_embeddings": shared}
