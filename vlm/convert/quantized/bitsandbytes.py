"""Folders of bitsandbytes, as transformers writes them: LLM.int8's rows, and blocks of nf4 or fp4.

weight int8 [out, in]  SCB [out]
weight uint8 [out · in / 2, 1]  weight.absmax  weight.quant_map [16]  weight.quant_state.bitsandbytes__nf4 (JSON)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlm.convert.quantized.layer import Scheme, SourceLayer, check_shape
from vlm.errors import CheckpointError, ConfigError

STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
MOST = 127


def scheme(settings: Mapping[str, Any]) -> Scheme:
    """Returns what a configuration says. Raises ConfigError for what is not read."""
    if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
        note = "its int8 weights are kept, what they meet stays in the computing type (LLM.int8 rounds most of it)"
        parts = ("weight", "SCB", "weight_format")
        return Scheme("bitsandbytes int8", "int8", parts=parts, required=parts[:2], read=_read_int8, notes=(note,))
    if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
        kind = settings.get("bnb_4bit_quant_type", "fp4")
        note = f"its weights of {kind} are rounded again, to int8 with a scale for each channel"
        parts = ("weight", "weight.absmax", "weight.quant_map", *NESTED, *STATES)
        required, name = parts[:3], f"bitsandbytes {kind}"
        return Scheme(name, "int8", parts=parts, required=required, read=_read_4bit, exact=False, notes=(note,))
    raise ConfigError(
        "this model is quantized by bitsandbytes in neither 8 nor 4 bits (load_in_8bit, load_in_4bit); give the"
        " unquantized model."
    )


def _read_int8(name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
    weight, scale = tensors["weight"], tensors["SCB"]
    if weight.dtype != torch.int8 or weight.dim() != 2:
        raise CheckpointError(
            f"{name}.weight is {weight.dtype} of shape {list(weight.shape)}, its quantization needs a matrix of"
            " torch.int8; fetch the folder again."
        )
    check_shape(name, "SCB", scale, (len(weight),))
    if "weight_format" in tensors and tensors["weight_format"].any():
        raise CheckpointError(
            f"{name} is not stored row by row (weight_format); save the model again with transformers."
        )
    readers = {"weight": lambda: weight, "weight_scale": lambda: scale.float()[:, None] / MOST}
    return SourceLayer(name, (weight.shape[0], weight.shape[1]), readers)


def _read_4bit(name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
    state = _state(name, tensors)
    out, in_features = state["shape"]
    blocks = -(-out * in_features // state["blocksize"])
    check_shape(name, "weight.absmax", tensors["weight.absmax"], (blocks,))
    check_shape(name, "weight.quant_map", tensors["weight.quant_map"], (16,))
    if NESTED[0] in tensors:
        check_shape(name, NESTED[0], tensors[NESTED[0]], (-(-blocks // state["nested_blocksize"]),))
    if tensors["weight"].nbytes * 2 != out * in_features:
        raise CheckpointError(f"{name}.weight does not hold {out} x {in_features} values; fetch the folder again.")

    def weight() -> Tensor:
        data = tensors["weight"].reshape(-1).view(torch.uint8)
        levels = torch.stack((data >> 4, data & 15), 1).flatten()
        values = tensors["weight.quant_map"].float()[levels.long()]
        scales = _repeated(_absmax(tensors, state), state["blocksize"], len(values))
        return (values * scales).view(out, in_features)

    return SourceLayer(name, (out, in_features), {"weight": weight})


def _state(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    stored = next((tensors[key] for key in STATES if key in tensors), None)
    if stored is None:
        raise CheckpointError(f"{name} lacks its weight.quant_state; fetch the folder again.")
    try:
        state = json.loads(bytes(stored.tolist()))
        sizes = [*state["shape"], state["blocksize"], state["nested_blocksize"] if NESTED[0] in tensors else 1]
        is_valid = len(sizes) == 4 and all(type(size) is int and size > 0 for size in sizes)
    except (ValueError, TypeError, LookupError, RecursionError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"{name} has an invalid weight.quant_state; fetch the folder again.")
    return state


def _repeated(values: Tensor, times: int, count: int) -> Tensor:
    """Returns each value so many times in a row, and of that the first `count`."""
    return values.repeat_interleave(min(times, count))[:count]


def _absmax(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Tensor:
    """Returns the blocks' largest values float32, which may be quantized themselves."""
    absmax = tensors["weight.absmax"]
    if NESTED[0] not in tensors:
        return absmax.float()
    scales = _repeated(tensors[NESTED[0]].float(), state["nested_blocksize"], len(absmax))
    return tensors[NESTED[1]].float()[absmax.long()] * scales + state["nested_offset"]
