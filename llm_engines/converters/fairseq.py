"""FairSeq's translation transformers (Ott et al., arXiv:1904.01038): a .pt file, dictionaries and BPE codes or a
SentencePiece model, in a folder or a tar archive.

The networks are those of `llm_engines.models.bart`, each side with its own configuration.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from llm_engines.converters.fairseq_file import read_checkpoint, weights_file
from llm_engines.converters.fairseq_languages import MBART, LanguageTokens
from llm_engines.converters.fairseq_tokenizer import (
    CODES,
    SENTENCEPIECE,
    TextFiles,
    languages,
    read_dictionary,
    tokenizer_files,
)
from llm_engines.models.bart import cross_rules, stack_rules
from llm_engines.models.bart_config import BartConfig
from llm_engines.tokenizers.moses import Moses
from vlm.artifacts.archives import unpacked
from vlm.artifacts.native.checkpoint import Check, Checkpoint, write_checkpoint
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.progress import Progress
from vlm.artifacts.weights import TensorSource
from vlm.convert.conversion import apply_rules
from vlm.convert.roles import module_layout
from vlm.convert.rules import Drop, Rename
from vlm.errors import CheckpointError, ConfigError, listed, shown
from vlm.registry.catalogs import model_spec

WANTED = re.compile(rf".+\.pt|dict(\..+)?\.txt|{CODES.pattern}|{SENTENCEPIECE.pattern}")  # of an archive's files
GENERATION = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
MODELS = {"encoder": "bart-encoder", "decoder": "bart"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
# options that change the maths and that nothing here honours, and the values that ask for nothing
UNSUPPORTED = {
    "adaptive_softmax_cutoff": (None,), "adaptive_input": (False, None), "cross_self_attention": (False, None),
    "no_cross_attention": (False, None), "no_token_positional_embeddings": (False, None),
    "layer_wise_attention": (False, None), "base_layers": (0, None), "decoder_adaptive_input": (False, None),
    "quant_noise_pq": (0, None),
}  # fmt: skip
WIDTHS = ("encoder_embed_dim", "decoder_embed_dim", "decoder_output_dim", "decoder_input_dim")  # which are one
# what a decoder that does not say takes from the encoder; all else has a default of its own
INHERITED = ("embed_dim", "ffn_embed_dim")


def convert(
    source: Path,
    out: Path,
    *,
    progress: Progress | None = None,
    check: Check | None = None,
    tokenizer: str | None = None,
) -> Checkpoint:
    """Converts a FairSeq folder, or a tar archive of one, to our checkpoint at `out`, written whole or not at all.

    `check`: see write_checkpoint. `tokenizer` ("moses", "none") overrules what the folder says of its texts. Raises
    CheckpointError for a file that is missing, damaged, unsafe or does not fit, ConfigError that names every option
    which cannot be honoured.
    """
    folder = _unpacked(source) if source.is_file() else source
    weights = weights_file(folder)
    options, state = read_checkpoint(weights)
    check_kind(options, source)
    options |= (pair := languages(folder, options))
    text = TextFiles.from_folder(folder, options, tokenizer)
    Moses.from_config(text.moses)  # says that it is not installed before the work
    tokens = LanguageTokens.from_options(options)
    dictionaries = {side: read_dictionary(folder, options, side, tokens) for side in MODELS}
    state = modern(state)
    configs = {side: parse(options, side, len(dictionaries[side]), version(state, side)) for side in MODELS}
    roles = _convert_roles(state, configs, folder)
    with tempfile.TemporaryDirectory() as scratch:
        return write_checkpoint(
            Path(out),
            family="fairseq",
            roles=roles,
            generation=GENERATION | (tokens.generation(dictionaries["decoder"]) if tokens else {}),
            source=f"{source.resolve().name}, {weights.name}; texts: {text.summary}",
            processor_files=tokenizer_files(
                folder,
                dictionaries["encoder"],
                dictionaries["decoder"],
                out=Path(scratch),
                text=text,
                tokens=tokens,
                pair=pair,
            ),
            check=check,
            progress=progress,
        )


def _unpacked(archive: Path) -> Path:
    """Raises CheckpointError for an archive without a FairSeq model in it."""
    folder = unpacked(archive, lambda name: WANTED.fullmatch(name) is not None)
    if not any(folder.glob("*.pt")) or not any(folder.glob("dict*.txt")):
        raise CheckpointError(
            f"{archive} holds no FairSeq model (a .pt file and dict.<language>.txt); unpack what it holds and give the"
            " model's folder."
        )
    return folder


KINDS = {
    "fconv": "a convolutional network", "lightconv": "a network of light convolutions", "lstm": "a recurrent network",
    "transformer_lm": "a language model", "transformer_pointer": "a pointer-generator", "roberta": "an encoder",
    "camembert": "an encoder", "xlmr": "an encoder", "bart": "which Hugging Face has converted (facebook/bart-large)",
    "mbart": "which Hugging Face has converted (facebook/mbart-large-50-many-to-many-mmt)",
    "wav2vec": "a model of speech", "s2t": "a model of speech", "hubert": "a model of speech",
    "nonautoregressive": "a non-autoregressive model", "levenshtein": "a non-autoregressive model",
}  # fmt: skip


def check_kind(options: dict[str, Any], folder: Path) -> None:
    """Raises ConfigError that names a network which is no translation transformer."""
    arch = str(options.get("arch") or options.get("_name") or "transformer")
    kinds = sorted((name for name in KINDS if arch.startswith(name)), key=len)
    if arch.startswith("mbart") and options.get("task") == MBART:
        return
    if kinds or not arch.startswith("transformer"):
        what = f", {KINDS[kinds[-1]]}" if kinds else ""
        raise ConfigError(
            f"{folder} cannot be run: its arch is {shown(arch)}{what}; supported are translation transformers."
        )


def version(state: Mapping[str, Tensor], side: str) -> float:
    """Returns the version of a side's layout; a file that does not say is of the first."""
    tensor = state.get(f"{side}.version")
    return 1.0 if tensor is None or not tensor.numel() else float(tensor.flatten()[0])


def parse(options: dict[str, Any], side: str, vocab_size: int, version: float) -> BartConfig:
    """Returns one side's configuration; what is not said is as in FairSeq's base architecture."""

    def own(name: str, default: Any) -> Any:
        default = options.get(f"encoder_{name}", default) if name in INHERITED else default
        return options.get(f"{side}_{name}", default)

    width, heads = own("embed_dim", 512), own("attention_heads", 8)
    activation = options.get("activation_fn", "relu")
    if errors := _option_errors(options, width, activation):
        raise ConfigError(f"this FairSeq {side} cannot be run exactly: {'; '.join(errors)}.")
    pre_norm = bool(own("normalize_before", False))
    # the first releases did not normalize after the last layer
    final_norm = pre_norm and version >= (2 if side == "encoder" else 3)
    shared = options.get("share_all_embeddings") or options.get("share_decoder_input_output_embed")
    limit = options.get("max_source_positions" if side == "encoder" else "max_target_positions") or 1024
    return BartConfig(
        vocab_size=vocab_size, hidden_size=width, num_layers=own("layers", 6), num_heads=heads, max_positions=limit,
        bos_token_id=0, eos_token_id=2, pad_token_id=1, decoder_start_token_id=2, ffn_size=own("ffn_embed_dim", 2048),
        activation=ACTIVATIONS[activation], scale_embedding=not options.get("no_scale_embedding", False),
        tied=bool(shared), pre_norm=pre_norm,
        final_norm=final_norm and not (side == "decoder" and options.get("no_decoder_final_norm")),
        embedding_norm=bool(options.get("layernorm_embedding")), sinusoidal=not options.get(f"{side}_learned_pos"),
    )  # fmt: skip


def _option_errors(options: Mapping[str, Any], width: int, activation: str) -> list[str]:
    """Returns what keeps a side from being run exactly."""
    errors = [f"{n} is {shown(options[n])}" for n, neutral in UNSUPPORTED.items() if options.get(n) not in neutral]
    widths = {options.get(name, width) for name in WIDTHS} - {None}
    if len(widths) > 1:
        errors.append(f"encoder and decoder differ in width ({listed(sorted(widths))})")
    if activation not in ACTIVATIONS:
        errors.append(f"activation_fn is {shown(activation)}, supported are {listed(ACTIVATIONS)}")
    return errors


def modern(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors under the names of today's releases, projections apart."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for old, new in RENAMED:
            name = old.sub(new, name)
        if name.endswith(("in_proj_weight", "in_proj_bias")):
            stem, _, kind = name.rpartition("in_proj_")
            tensors |= {f"{stem}{part}_proj.{kind}": x for part, x in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            tensors[name] = tensor
    return tensors


RENAMED = [
    (re.compile(r"(encoder\.layers\.\d+)\.layer_norms\.0\."), r"\1.self_attn_layer_norm."),
    (re.compile(r"(encoder\.layers\.\d+)\.layer_norms\.1\."), r"\1.final_layer_norm."),
    (re.compile(r"(decoder\.layers\.\d+)\.layer_norms\.0\."), r"\1.self_attn_layer_norm."),
    (re.compile(r"(decoder\.layers\.\d+)\.layer_norms\.1\."), r"\1.encoder_attn_layer_norm."),
    (re.compile(r"(decoder\.layers\.\d+)\.layer_norms\.2\."), r"\1.final_layer_norm."),
    (re.compile(r"^decoder\.embed_out$"), "decoder.output_projection.weight"),
]


def rules(config: BartConfig, side: str) -> list[Any]:
    """Returns weight rules of one side."""
    ours = "attention" if side == "encoder" else "self_attention"
    weight_rules = [
        Rename(f"{side}.embed_tokens.weight", "embedding.weight"),
        Drop(f"{side}.version", "a number of FairSeq's own", optional=True),
        Drop(f"{side}.embed_positions._float_tensor", "empty: it marks a type", optional=True),
        *([Drop(f"{side}.embed_positions.weights", "computed", optional=True)] if config.sinusoidal else []),
        *stack_rules(f"{side}.", {"self_attn": ours}, config),
    ]
    if side == "encoder":
        return weight_rules
    head, table = "decoder.output_projection.weight", "decoder.embed_tokens.weight"
    tied = Drop(head, "tied to the embedding", same_as=table, optional=True)
    return [*weight_rules, *cross_rules("decoder."), tied if config.tied else Rename(head, "head.weight")]


def _convert_roles(
    state: Mapping[str, Tensor], configs: Mapping[str, BartConfig], folder: Path
) -> dict[str, RoleWeights]:
    reasons, roles = [], {}
    if strays := [name for name in state if not name.startswith(tuple(f"{side}." for side in configs))]:
        reasons.append(f"unexpected tensors {listed(strays)}")
    for side, config in configs.items():
        tensors = {name: x for name, x in state.items() if name.startswith(f"{side}.")}
        _check_dictionary(tensors.get(f"{side}.embed_tokens.weight"), config, side)
        targets = {name: shape for name, (_, shape) in module_layout(model_spec(MODELS[side]), config).items()}
        outcome = apply_rules(tensors, rules(config, side), targets)
        reasons += outcome.reasons
        roles[side] = RoleWeights(MODELS[side], config.to_dict(), TensorSource.from_tensors(outcome.tensors))
    if reasons:
        raise CheckpointError(f"the weights in {folder} do not fit its options: {'; '.join(reasons)}.")
    return roles


def _check_dictionary(table: Tensor | None, config: BartConfig, side: str) -> None:
    if table is not None and len(table) != config.vocab_size:
        raise CheckpointError(
            f"the {side}'s dictionary has {config.vocab_size} entries with the four special ones, its embedding"
            f" {len(table)} rows; they must be of one training."
        )
