"""What a verb says of an option that other programs have (TensorRT-LLM's examples): how it is called here, or why it
is not needed."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

ALWAYS = "it is always so here: leave it out"
AT_RUN_TIME = "adapters are given when a model runs, by --lora-dir or --lora: leave it out"
BY_DIVISION = "as many GPUs are taken as --tp-size times --pp-size says: leave it out"
BY_BUILD = "vlm build chooses the computing type, by --dtype: leave it out"
BY_QUANTIZE = "vlm quantize has it, and writes a checkpoint for vlm build: leave it out"
BY_SMOOTHING = (
    "vlm quantize --format smoothquant has it, with a scale a token and a channel unless told otherwise: leave it out"
)
BY_ITSELF = "it is chosen by itself here: leave it out"
OF_BEAMS = "a request says its --num-beams, of which an engine takes --max-batch-size in all: leave it out"
OF_BUILD = "vlm build has it, for the engine that is made: leave it out"
OF_FILES = "what kind of model it is, its files say: leave it out"
OF_REQUESTS = "a request says its --max-new-tokens: leave it out"
OF_RUNS = "vlm run has it, by --check-accuracy --reference-dtype float32: leave it out"
OF_CACHES = "a model that runs has it, by --kv-cache-dtype int8, which needs no calibration: leave it out"
OF_SHAPES = ("--arch takes a config.json that says it, with --random-weights", OF_FILES)
HAS_TOKENIZER = "a checkpoint and an engine hold their tokenizer, a folder or an archive its own: leave it out"
OF_INPUTS = "--max-encoder-input-len is for an encoder's text, --max-seq-len for what a decoder reads and writes"
ON_BUILD = "vlm build quantizes weights, by --quantization int8 or int4: leave it out"
OWN_PROMPTS = "an archive of tuned prompts is converted by itself, and is --prompt-table of what runs: leave it out"
ROOM_FOR_ROWS = "there is room for all rows of images and tuned prompts: leave it out"
SAYS_WHAT_IT_DOES = "what is done is written to stderr, and --debug shows tracebacks: leave it out"


def _is_called(*flags: str) -> tuple[str, ...]:
    return tuple(f"{flag} is what it is called here" for flag in flags)


OF_LENGTHS = (
    *_is_called("--max-new-tokens", "--new-tokens", "--tokens", "--output-len"),
    "--input-output-len says it, behind the tokens that go in",
    OF_REQUESTS,
)
# options that take a model
OF_MODELS = frozenset(
    {
        "checkpoint-dir", "ckpt-path", "engine-dir", "ft-model-location", "hf-model-dir", "in-file", "llm-engine-dir",
        "model-dir", "model-path", "weight-dir",
    }
)  # fmt: skip
# what to do in place of others, by the option's name without its dashes, and - for _; of several, the first that does
# not begin with an option, or begins with one that the verb has
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("output-dir", "out-dir", "saved-dir"), _is_called("--out")),
    **dict.fromkeys(("model-type", "nougat"), (OF_FILES,)),
    **dict.fromkeys(("n-layer", "n-head", "n-embd", "hidden-act", "no-bias", "rotary-pct", "vocab-size"), OF_SHAPES),
    "engine-name": ("an engine is known by its folder: leave it out",),
    "visual-engine-dir": ("a checkpoint and an engine hold their visual network, too: leave it out",),
    "vila-path": ("VILA's own code is not needed: leave it out",),
    **dict.fromkeys(
        (
            "tokenizer", "tokenizer-dir", "tokenizer-type", "tokenizer-model-path", "vocab-file", "vocab-path",
            "model-name",
        ),
        (HAS_TOKENIZER,),
    ),
    "hf-model-location": (*_is_called("--against"), HAS_TOKENIZER),
    **dict.fromkeys(("dtype", "weight-data-type", "data-type", "storage-type"), (*_is_called("--dtype"), BY_BUILD)),
    **dict.fromkeys(
        ("inference-tensor-para-size", "tensor-para-size", "tensor-parallelism", "infer-gpu-num"),
        (*_is_called("--tp-size"), OF_BUILD),
    ),
    "pipeline-para-size": (*_is_called("--pp-size"), OF_BUILD),
    **dict.fromkeys(("tp-size", "pp-size", "encoder-tp-size", "quantization", "group-size"), (OF_BUILD,)),
    **dict.fromkeys(("world-size", "gpus-per-node"), (BY_DIVISION,)),
    "parallel-build": ("--workers says how many ranks' files are written at once", BY_ITSELF),
    "processes": ("one tensor is in memory at a time, so that no more processes are needed: leave it out",),
    "max-beam-width": (OF_BEAMS,),
    **dict.fromkeys(("max-input-len", "max-input-length"), (OF_INPUTS, OF_BUILD)),
    **dict.fromkeys(("max-output-len", "max-new-token", "output-len"), OF_LENGTHS),
    "max-new-tokens": OF_LENGTHS[1:],
    **dict.fromkeys(("max-multimodal-len", "max-prompt-embedding-table-size"), (ROOM_FOR_ROWS,)),
    "batch-size": ("--max-batch-size says how many are computed at once", OF_BUILD),
    **dict.fromkeys(("input-text", "input-texts"), (*_is_called("--text"), "a text stands alone: give it without it")),
    "input-tokens": _is_called("--input-ids"),
    "image-path": _is_called("--image"),
    "streaming": ("--raw writes the text as it is decoded, as a terminal shows it",),
    "compare-hf-fp32": (
        "--check-accuracy --reference-dtype float32 does it, of an engine with --against FOLDER",
        "--compare-hf --reference-dtype float32 does it, of an engine with --against FOLDER",
        OF_RUNS,
    ),
    "test-hf": _is_called("--compare-hf"),
    **dict.fromkeys(("test-trt-llm", "test-ft"), (ALWAYS,)),
    "check-accuracy": ("--rouge1-threshold, --bleu-threshold or --exact-threshold does it",),
    "tensorrt-llm-rouge1-threshold": _is_called("--rouge1-threshold"),
    **dict.fromkeys(
        ("lora-dir", "lora-plugin", "use-lora-plugin", "lora-target-modules", "hf-lora-dir"), (AT_RUN_TIME,)
    ),
    "in-place": ("--merge-lora FOLDER does it, of the folder that vlm convert makes of an archive",),
    **dict.fromkeys(("prompt-in-file", "prompt-saved-dir"), (OWN_PROMPTS,)),
    **dict.fromkeys(("use-weight-only", "weight-only-precision"), ("--quantization int8 or int4 does it", ON_BUILD)),
    **dict.fromkeys(("int8-kv-cache", "calibrate-kv-cache"), ("--kv-cache-dtype int8 does it", OF_CACHES)),
    "qformat": ("--format is what it is called here, and int4_awq is its awq", BY_QUANTIZE),
    "calib-size": (*_is_called("--samples"), BY_QUANTIZE),
    "smoothquant": ("--alpha is what it is called here, with --format smoothquant", BY_SMOOTHING),
    "use-smooth-quant": ("--format smoothquant does it", BY_SMOOTHING),
    **dict.fromkeys(
        ("per-token", "per-channel"),
        ("--static-activations and --per-tensor-weights are for scales that are not: leave it out", BY_SMOOTHING),
    ),
    **dict.fromkeys(
        ("enable-xqa", "use-custom-all-reduce", "use-fused-mlp", "enable-context-fmha-fp32-acc"), (BY_ITSELF,)
    ),
    **dict.fromkeys(("log-level", "log-verbose", "verbose"), (SAYS_WHAT_IT_DOES,)),
    "http-port": _is_called("--port"),
    "http-address": _is_called("--host"),
    "metrics-port": ("/metrics is at the server's --port: leave it out",),
    "model-control-mode": ("--model-control is what its explicit is called here",),
    "exit-on-error": ("the server goes on as long as one model loads: leave it out",),
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
        (ALWAYS,),
    ),
}  # fmt: skip
# what FasterTransformer's converters have in one or two letters behind one dash
OF_ONE_DASH = {"-sq": "smoothquant", "-kv": "calibrate-kv-cache", "-i_g": "infer-gpu-num"}
LETTERS = {"-i": "in-file", "-p": "processes", "-t": "storage-type"}


def with_known_names(arguments: Sequence[str], flags: Container[str]) -> list[str]:
    """Returns the arguments with options that are there in their own writing: --num-beams=4 for --num_beams=4, and with
    two dashes where other programs have one: --in_file for -in_file."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*(_known(word, flags) for word in arguments[:end]), *arguments[end:]]


def _known(word: str, flags: Container[str]) -> str:
    name, equals, value = word.partition("=")
    name = _with_two_dashes(name)
    return f"{_dashed(name) if name not in flags and _dashed(name) in flags else name}{equals}{value}"


def _with_two_dashes(name: str) -> str:
    if name in OF_ONE_DASH:
        return f"--{OF_ONE_DASH[name]}"
    is_known = "_" in name and _dashed(name)[1:] in OTHER_NAMES.keys() | OF_MODELS
    return f"-{name}" if is_known and name.startswith("-") else name


def of_letter(option: str) -> str:
    """Returns the option that FasterTransformer's converters call by this letter; others as they are."""
    return f"--{LETTERS[option]}" if option in LETTERS else option


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def takes_model(option: str) -> bool:
    """Says whether another program takes a model by this option."""
    return _dashed(option).removeprefix("--") in OF_MODELS


def in_place_of(option: str, flags: Container[str]) -> str | None:
    """Returns what to do in place of an option that a verb with these flags lacks; None where it is no other
    program's, or nothing of the verb's does what it did."""
    name = _dashed(option).removeprefix("--")
    return next((words for words in OTHER_NAMES.get(name, ()) if _is_of(words, flags)), None)


def _is_of(words: str, flags: Container[str]) -> bool:
    flag = re.match(r"--[\w-]+", words)
    return flag is None or flag[0] in flags
