"""What a verb says of an option that other programs have (TensorRT-LLM's examples): how it is called here, or why it
is not needed."""

from __future__ import annotations

from collections.abc import Container, Sequence

ALWAYS = "it is always so here: leave it out"
AT_RUN_TIME = "adapters are given when a model runs, by --lora-dir or --lora: leave it out"
BY_DIVISION = "as many GPUs are taken as --tp-size times --pp-size says: leave it out"
BY_BUILD = "vlm build chooses the computing type, by --dtype: leave it out"
OF_BUILD = "vlm build has it, for the engine that is made: leave it out"
HAS_TOKENIZER = "a checkpoint and an engine hold their tokenizer, a folder its own: leave it out"
OF_INPUTS = "--max-encoder-input-len is for an encoder's text, --max-seq-len for what a decoder reads and writes"
OF_OUTPUTS = "--max-new-tokens is what it is called here"
ON_BUILD = "vlm build quantizes weights, by --quantization int8 or int4: leave it out"

# options that take a model
OF_MODELS = frozenset({"checkpoint-dir", "engine-dir", "hf-model-dir", "model-dir", "weight-dir"})
# what to do in place of others, by the option's name without its dashes, and - for _
OTHER_NAMES = {
    **dict.fromkeys(("output-dir", "out-dir"), "--out is what it is called here"),
    "model-type": "what kind of model it is, its files say: leave it out",
    "engine-name": "an engine is known by its folder: leave it out",
    **dict.fromkeys(("tokenizer-dir", "tokenizer-type", "vocab-file", "model-name"), HAS_TOKENIZER),
    **dict.fromkeys(("dtype", "weight-data-type", "data-type", "storage-type"), BY_BUILD),
    **dict.fromkeys(("inference-tensor-para-size", "tensor-para-size"), "--tp-size is what it is called here"),
    **dict.fromkeys(("tp-size", "pp-size", "encoder-tp-size", "quantization", "group-size"), OF_BUILD),
    **dict.fromkeys(("world-size", "gpus-per-node"), BY_DIVISION),
    "max-beam-width": "a request says its --num-beams, of which an engine takes --max-batch-size in all: leave it out",
    **dict.fromkeys(("max-input-len", "max-input-length"), OF_INPUTS),
    **dict.fromkeys(("max-output-len", "max-new-token", "output-len"), OF_OUTPUTS),
    **dict.fromkeys(("input-text", "input-texts"), "--text is what it is called here"),
    "compare-hf-fp32": "--check-accuracy --reference-dtype float32 does it, of an engine with --against FOLDER",
    **dict.fromkeys(("lora-plugin", "use-lora-plugin", "lora-target-modules", "hf-lora-dir"), AT_RUN_TIME),
    **dict.fromkeys(("use-weight-only", "weight-only-precision", "int8-kv-cache"), ON_BUILD),
    **dict.fromkeys(
        (
            "remove-input-padding",
            "paged-kv-cache",
            "use-paged-kv-cache",
            "use-inflight-batching",
            "context-fmha",
            "enable-context-fmha",
            "use-implicit-relative-attention",
            *(f"{use}{part}-plugin" for use in ("", "use-") for part in
              ("bert-attention", "gpt-attention", "gemm", "rmsnorm", "layernorm", "lookup", "moe")),
        ),
        ALWAYS,
    ),
}  # fmt: skip


def with_known_names(arguments: Sequence[str], flags: Container[str]) -> list[str]:
    """Returns the arguments with options that are there in their own writing: --num-beams=4 for --num_beams=4."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*(_known(word, flags) for word in arguments[:end]), *arguments[end:]]


def _known(word: str, flags: Container[str]) -> str:
    name, equals, value = word.partition("=")
    return f"{_dashed(name)}{equals}{value}" if name not in flags and _dashed(name) in flags else word


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def takes_model(option: str) -> bool:
    """Says whether another program takes a model by this option."""
    return _dashed(option).removeprefix("--") in OF_MODELS


def in_place_of(option: str) -> str | None:
    """Returns what to do in place of an option that a verb lacks; None where it is no other program's."""
    return OTHER_NAMES.get(_dashed(option).removeprefix("--"))
