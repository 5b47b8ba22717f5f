"""NeMo's configuration of a GPT (`model_config.yaml`) -> the fields of GPT2Config.

NVIDIA NeMo, megatron_gpt_model.py. Most of such a configuration is about training; what changes the maths is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vlm.errors import ConfigError, shown
from vlm.layers.rotary import RotaryConfig

GATED = {"swiglu": "silu", "fast-swiglu": "silu", "geglu": "gelu", "fast-geglu": "gelu", "reglu": "relu",
         "fast-reglu": "relu"}  # fmt: skip
ACTIVATIONS = {"gelu": "gelu", "relu": "relu"} | GATED
# fields that change the maths and that nothing here honours -> the values that ask for nothing
UNSUPPORTED = {
    "attn_logit_softcapping": (None, 0), "attention_type": (None, "multihead"), "headscale": (None, False),
    "mcore_gpt": (None, False), "megatron_legacy": (None, False), "multi_query_attention": (None, False),
    "normalization": (None, "layernorm", "layernorm1p", "rmsnorm"), "num_moe_experts": (None, 0, 1),
    "position_embedding_type": (None, "learned_absolute", "rope"), "qk_layernorm": (None, False),
    "rotary_interleaved": (None, False), "scale_positional_embedding": (None, False),
    "transformer_block_type": (None, "pre_ln"), "use_emha": (None, False),
    "window_size": (None,),
}  # fmt: skip


@dataclass
class Numbers:
    """Reads numbers of a configuration and collects what is wrong with them."""

    values: dict[str, Any]
    errors: list[str] = field(default_factory=list)

    def __call__(self, name: str, default: Any = None, kind: type = int) -> Any:
        """Reads a number above 0. PyYAML reads 1e-5 as a text."""
        value = default if self.values.get(name) is None else self.values[name]
        try:
            number = kind(value)
        except (TypeError, ValueError):
            number = 0
        if number > 0:
            return number
        self.errors.append(f"{name} is missing" if value is None else f"{name} is {shown(value)}")
        return 1


def nemo_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Fields of GPT2Config but for the token ids; ConfigError names every field that is missing or not supported."""
    errors = [
        f"{name} is {shown(config[name])}" for name, neutral in UNSUPPORTED.items() if config.get(name) not in neutral
    ]
    if (activation := config.get("activation", "gelu")) not in ACTIVATIONS:
        errors.append(f"activation is {shown(activation)}")
    number = Numbers(config, errors)
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    if hidden % heads or number("kv_channels", hidden // heads) != hidden // heads:
        errors.append(
            f"kv_channels is {shown(config.get('kv_channels'))}, hidden_size {hidden}, num_attention_heads {heads}"
        )
    limit = number("encoder_seq_length", 2048)
    fields = {
        "vocab_size": number("vocab_size"), "hidden_size": hidden, "num_layers": number("num_layers"),
        "num_heads": heads, "max_positions": number("max_position_embeddings", limit),
        "ffn_size": number("ffn_hidden_size", 4 * hidden), "kv_heads": number("num_query_groups", heads),
        "activation": _function(config, activation), "gated": activation in GATED,
        "bias": bool(config.get("bias", True)), "norm_eps": number("layernorm_epsilon", 1e-5, float),
        "rms_norm": config.get("normalization") == "rmsnorm",
        "tied": bool(config.get("share_embeddings_and_output_weights", True)),
        "scaled": bool(config.get("normalize_attention_scores", True)),
        "rotary": _rotary(config, number, hidden // heads),
        "source": ("nemo", config.get("normalization") or "layernorm", _layout(activation)),
    }  # fmt: skip
    if errors:
        raise ConfigError(f"this NeMo GPT configuration cannot be run exactly: {'; '.join(errors)}.")
    return fields


def _function(config: dict[str, Any], activation: str) -> str:
    """Returns the activation by our name. With biases NeMo fuses them into GELU, unless it is told not to, and that is
    the one by tanh."""
    is_fused = config.get("bias_activation_fusion", config.get("bias_gelu_fusion", config.get("bias", True)))
    name = ACTIVATIONS.get(activation, "gelu")
    by_tanh = bool(config.get("openai_gelu")) or bool(is_fused and config.get("bias", True))
    return "gelu_new" if name == "gelu" and by_tanh else name


def _layout(activation: str) -> str:
    """Returns how a gate and what it gates are kept."""
    return "joined" if str(activation).startswith("fast") else "apart"


def _rotary(config: dict[str, Any], number: Numbers, head_dim: int) -> RotaryConfig | None:
    if config.get("position_embedding_type") != "rope":
        return None
    share = number("rotary_percentage", 1.0, float)
    rotary_dim = int(head_dim * share) if share < 1 else head_dim
    stretch = number("seq_len_interpolation_factor", 1.0, float)
    base = number("rotary_base", 10000.0, float)
    return RotaryConfig(base, rotary_dim) if stretch == 1 else RotaryConfig(base, rotary_dim, "linear", stretch)
