"""What this package brings to the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.artifacts.model_files import ModelFiles
from vlm.registry.spec import ConverterRef, FamilySpec, ModelRef, PromptFormat, Role
from vlm.registry.unsupported import Unsupported

MODELS = (
    ModelRef("bart", "llm_engines.models.bart:SPEC"),
    ModelRef("bart-encoder", "llm_engines.models.bart:ENCODER_SPEC"),
    ModelRef("gpt2", "llm_engines.models.gpt2:SPEC"),
    ModelRef("llama", "llm_engines.models.llama:SPEC"),
    ModelRef("opt", "llm_engines.models.opt:SPEC"),
    ModelRef("t5", "llm_engines.models.t5:SPEC"),
    ModelRef("t5-encoder", "llm_engines.models.t5:ENCODER_SPEC"),
)


TAR_ENDINGS = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tbz", ".tbz2", ".tgz", ".txz")


def _is_fairseq(path: Path) -> bool:
    if path.is_file():
        return path.name.lower().endswith(TAR_ENDINGS)
    has_dictionary = (path / "dict.txt").is_file() or any(path.glob("dict.*.txt"))
    return has_dictionary and any(path.glob("*.pt")) and not (path / "config.json").exists()


def _is_nemo(path: Path) -> bool:
    if path.is_file():
        return path.suffix == ".nemo"
    return (path / "model_config.yaml").is_file() and not (path / "config.json").exists()


CONVERTERS = (
    ConverterRef("fairseq", "llm_engines.converters.fairseq:convert", _is_fairseq, options=("tokenizer",)),
    ConverterRef("nemo", "llm_engines.converters.nemo:convert", _is_nemo),
)


def _is_half(ending: str, *model_types: str) -> Any:
    """Matches a configuration whose every architecture is one side of an encoder-decoder model."""

    def matches(model: ModelFiles) -> bool:
        names = model.architectures
        known = model.config.get("model_type") in model_types
        return known and bool(names) and all(name.endswith(ending) for name in names)

    return matches


UNSUPPORTED = (
    Unsupported(_is_half("ForCausalLM", "bart", "mbart", "plbart", "marian", "pegasus", "m2m_100", "blenderbot",
                         "blenderbot-small"),
                lambda m: f"is the decoder of an encoder-decoder model alone ({m.architectures[0]}); give the whole"
                          f" model (architectures: {m.architectures[0].replace('CausalLM', 'ConditionalGeneration')})"),
)  # fmt: skip


def _is(*model_types: str) -> Any:
    """Encoder-decoder models as a whole: a decoder alone is a part of something else."""
    return lambda config: config.get("model_type") in model_types and config.get("is_encoder_decoder", True)


def _t5(d_model: int, d_ff: int, layers: int, heads: int, v1_1: bool) -> dict[str, Any]:
    """The published shapes of google-t5/t5-* and google/flan-t5-*."""
    return {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": 32128,
        "d_model": d_model,
        "d_kv": 64,
        "d_ff": d_ff,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "feed_forward_proj": "gated-gelu" if v1_1 else "relu",
        "tie_word_embeddings": not v1_1,
        "n_positions": 512,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _bart(model_type: str, vocab_size: int, **fields: Any) -> dict[str, Any]:
    """The published shapes of facebook/bart-large-cnn and facebook/mbart-large-50-*."""
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder")
             for name, n in (("layers", 12), ("ffn_dim", 4096), ("attention_heads", 16))}  # fmt: skip
    return sides | {
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "d_model": 1024,
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        **fields,
    }


def _llama(hidden: int, ffn: int, layers: int, heads: int, **fields: Any) -> dict[str, Any]:
    """The published shapes of lmsys/vicuna-* and mistralai/*."""
    return {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | fields


def _opt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    """The published shapes of facebook/opt-*."""
    return {
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2048,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }


def _gpt2(hidden: int, layers: int, heads: int, **fields: Any) -> dict[str, Any]:
    """The published shapes of openai-community/gpt2-* and bigcode/*."""
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 1024,
        "bos_token_id": 0 if fields else 50256,
        "eos_token_id": 0 if fields else 50256,
    } | fields


def _gpt_next() -> dict[str, Any]:
    """The published shape of nvidia/GPT-2B-001, as NeMo's configuration names it."""
    return {
        "model_type": "nemo_gpt",
        "vocab_size": 256000,
        "hidden_size": 2048,
        "ffn_hidden_size": 5440,
        "num_layers": 24,
        "num_attention_heads": 16,
        "encoder_seq_length": 4096,
        "position_embedding_type": "rope",
        "rotary_percentage": 0.5,
        "activation": "fast-swiglu",
        "normalization": "layernorm1p",
        "bias": False,
        "share_embeddings_and_output_weights": False,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }


def _is_t5_encoder(config: dict[str, Any]) -> bool:
    """Says whether the architectures name the encoder of a T5, and no other class."""
    if config.get("model_type") not in ("t5", "mt5") or not isinstance(names := config.get("architectures"), list):
        return False
    return bool(names) and all(name in ("T5EncoderModel", "MT5EncoderModel") for name in names)


FAMILIES = (
    FamilySpec(
        name="t5-encoder",
        summary="Text to hidden states: encoders of T5, T5 v1.1, mT5 saved alone (T5EncoderModel)",
        roles={"encoder": Role("t5-encoder", weight_prefix="encoder.", shared_tensors=("shared.weight",))},
        matches=_is_t5_encoder,
        inputs=("text",),
    ),
    FamilySpec(
        name="t5",
        summary="Text to text: T5, T5 v1.1, Flan-T5, mT5, ByT5, UL2 (google-t5/t5-*, google/flan-t5-*, …)",
        roles={
            "encoder": Role(
                "t5-encoder",
                weight_prefix="encoder.",
                shared_tensors=("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
            ),
            "decoder": Role("t5", shared_tensors=("encoder.embed_tokens.weight",)),
        },
        matches=_is("t5", "mt5"),
        inputs=("text",),
        architectures={
            "t5-small": lambda: _t5(512, 2048, 6, 8, v1_1=False),
            "t5-base": lambda: _t5(768, 3072, 12, 12, v1_1=False),
            "flan-t5-base": lambda: _t5(768, 2048, 12, 12, v1_1=True),
            "flan-t5-large": lambda: _t5(1024, 2816, 24, 16, v1_1=True),
            "flan-t5-xl": lambda: _t5(2048, 5120, 24, 32, v1_1=True),
        },
    ),
    FamilySpec(
        name="bart",
        summary="Text to text: BART, mBART, mBART-50 (facebook/bart-*, facebook/mbart-large-*)",
        roles={
            "encoder": Role(
                "bart-encoder",
                weight_prefix="model.encoder.",
                shared_tensors=("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
            ),
            "decoder": Role("bart", shared_tensors=("model.encoder.embed_tokens.weight",)),
        },
        matches=_is("bart", "mbart"),
        inputs=("text",),
        base_prefixes=("model.",),
        architectures={
            "bart-large-cnn": lambda: _bart("bart", 50264, forced_eos_token_id=2),
            "mbart-large-50": lambda: _bart("mbart", 250054, scale_embedding=True, forced_eos_token_id=2),
        },
    ),
    FamilySpec(
        name="fairseq",
        summary="Translation: FairSeq's transformers, archives or folders (.pt, dict.*.txt, BPE or SentencePiece)",
        roles={"encoder": Role("bart-encoder"), "decoder": Role("bart")},
        matches=lambda config: False,  # its folders have no config.json
        inputs=("text",),
    ),
    FamilySpec(
        name="llama",
        summary="Text: LLaMA, Vicuna and Mistral decoders (meta-llama/*, lmsys/vicuna-*, mistralai/*)",
        roles={"decoder": Role("llama")},
        matches=lambda config: config.get("model_type") in ("llama", "mistral"),
        inputs=("text",),
        base_prefixes=("model.",),
        prompt=PromptFormat(),
        architectures={
            "vicuna-7b": lambda: _llama(4096, 11008, 32, 32),
            "mistral-7b": lambda: _llama(
                4096,
                14336,
                32,
                32,
                model_type="mistral",
                num_key_value_heads=8,
                max_position_embeddings=32768,
                sliding_window=4096,
            ),
        },
    ),
    FamilySpec(
        name="opt",
        summary="Text: OPT decoders (facebook/opt-*)",
        roles={"decoder": Role("opt")},
        matches=lambda config: config.get("model_type") == "opt",
        inputs=("text",),
        base_prefixes=("model.",),
        prompt=PromptFormat(),
        architectures={"opt-2.7b": lambda: _opt(2560, 32, 32), "opt-6.7b": lambda: _opt(4096, 32, 32)},
    ),
    FamilySpec(
        name="gpt2",
        summary="Text, code: GPT-2, SantaCoder, StarCoder, NeMo decoders (openai-community/gpt2*, bigcode/*, .nemo)",
        roles={"decoder": Role("gpt2")},
        matches=lambda config: config.get("model_type") in ("gpt2", "gpt_bigcode", "nemo_gpt"),
        inputs=("text",),
        base_prefixes=("transformer.", "model.language_model."),  # Hugging Face's, NeMo's
        prompt=PromptFormat(),
        architectures={
            "gpt2-medium": lambda: _gpt2(1024, 24, 16),
            "santacoder": lambda: _gpt2(2048, 24, 16, model_type="gpt_bigcode", vocab_size=49280, n_positions=2048),
            "starcoder": lambda: _gpt2(6144, 40, 48, model_type="gpt_bigcode", vocab_size=49152, n_positions=8192),
            "gpt-next-2b": _gpt_next,
        },
    ),
)
