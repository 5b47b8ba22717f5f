"""FasterTransformer's parameters of a config.pbtxt: honoured, without effect here, or refused by name.

https://github.com/triton-inference-server/fastertransformer_backend: src/libfastertransformer.cc, docs/*_guide.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vlm.errors import listed

BACKEND = "fastertransformer"
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FAMILIES = {"T5": ("t5",), "T5-Encoder": ("t5", "t5-encoder"), "GPT": ("gpt2", "opt")}  # by model_type
ENCODER = "T5-Encoder"
CHECKPOINT = "model_checkpoint_path"
FOLDER = "1-gpu"  # in a version's folder, where neither a path nor a file's name is given
SIZES = {"tensor_para_size": "tp_size", "pipeline_para_size": "pp_size"}  # of ranks -> as a build has them
NAMES = ("model_type", "data_type", CHECKPOINT, *SIZES)  # that say what is loaded, and how

# name -> (values that are taken, what else is to be done)
NEUTRAL = {
    "enable_custom_all_reduce": (("", "0", "1"), "write 0; ranks choose themselves how they add up"),
    "int8_mode": (("", "0"), "write 0; vlm build --backend onnxruntime --quantization int8 makes weights of 8 bits"),
    "is_sparse": (("", "0"), "write 0; sparse weights are not read"),
    "is_remove_padding": (("", "0", "1"), "write 1; padding is never computed"),
    "is_fuse_QKV": (("", "0", "1"), "write 1; Q, K and V are always one product"),
}


def errors(parameters: Mapping[str, str]) -> list[str]:
    """Returns what is wrong with FasterTransformer's parameters among these."""
    reasons = [
        f"{name} is {parameters[name]!r}; {remedy}"
        for name, (values, remedy) in NEUTRAL.items()
        if name in parameters and parameters[name].strip() not in values
    ]
    for name, values in (("data_type", DTYPES), ("model_type", FAMILIES)):
        if parameters.get(name) and parameters[name] not in values:
            reasons.append(f"{name} is {parameters[name]!r}; allowed are {listed(values)}")
    for name in SIZES:
        if (word := parameters.get(name, "").strip()) and not re.fullmatch(r"[1-9][0-9]{0,3}", word):
            reasons.append(f"{name} is {word[:20]!r}; it must be a number of ranks, from 1 on")
    return reasons


def ranks(parameters: Mapping[str, str]) -> dict[str, int]:
    """Returns among how many ranks the model is split, as a build has it, as far as it is said."""
    return {field: int(parameters[name]) for name, field in SIZES.items() if parameters.get(name, "").strip()}


def families_of(parameters: Mapping[str, str], backend: str) -> tuple[str, ...]:
    """Returns the families that the model may be of; (): any."""
    default = "GPT" if backend == BACKEND else ""
    return FAMILIES.get(parameters.get("model_type") or default, ())
