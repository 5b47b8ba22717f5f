"""T5-Encoder's tensors: token ids, or texts -> hidden states and attentions, padded as the ids are.

https://github.com/triton-inference-server/fastertransformer_backend: docs/t5_guide.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from vlm.errors import InputError, LimitError
from vlm.outputs import Encoding
from vlm_app.server.ft_tensors import without_neutral
from vlm_app.server.infer import Row, cut
from vlm_app.server.model_tensors import ATTENTIONS, ENCODER_IN, ENCODER_TEXT_IN, HIDDEN, Tensors
from vlm_app.server.tensor_specs import checked

if TYPE_CHECKING:
    from vlm_app.server.service import Service

MAX_ATTENTION_BYTES = 2**29  # of a request's attentions: they grow with the square of the length


async def encode_batch(service: Service, inputs: Tensors, wanted: Collection[str] | None) -> Tensors:
    """Returns a batch's outputs; attentions where the flag or `wanted` says so. Raises InputError with one sentence."""
    inputs = without_neutral(inputs)
    by_ids = "input_ids" in inputs
    if not by_ids and "text_input" not in inputs:
        raise InputError("there is nothing to encode; give input_ids, or text_input.")
    size, tensors = checked(inputs, ENCODER_IN if by_ids else (*ENCODER_TEXT_IN, ENCODER_IN[-1]))
    rows = [_source({name: array[i] for name, array in tensors.items()}) for i in range(size)]
    flag = tensors.get("is_return_attentions")
    attentions = ATTENTIONS in (wanted or ()) or (flag is not None and bool(flag.any()))
    width = tensors["input_ids"].shape[1] if by_ids else None
    if attentions:
        _check_size(service, size, width or service.pipeline.llm.max_encoder_len)
    with service.admitted(size):
        encodings = await service.model.encode(rows, [[] for _ in rows], attentions=attentions)
    return _written(service, encodings, width, attentions, wanted)


def _source(row: Row) -> dict[str, Any]:
    if "input_ids" in row:
        return {"input_ids": cut(row, "input_ids", "sequence_length")}
    return {"text": row["text_input"].decode("utf-8", "replace")}


def _check_size(service: Service, rows: int, width: int) -> None:
    config = service.pipeline.frontend.encoder
    size = rows * config.num_layers * config.num_heads * width**2 * 4
    if size > MAX_ATTENTION_BYTES:
        raise LimitError(
            f"the attentions of {rows} rows of {width} tokens take {size >> 20:,} MiB, {MAX_ATTENTION_BYTES >> 20:,} is"
            " allowed; ask for fewer or shorter rows at once."
        )


def _written(
    service: Service, encodings: list[Encoding], width: int | None, attentions: bool, wanted: Collection[str] | None
) -> Tensors:
    width = width or max(len(each.last_hidden_state) for each in encodings)
    states = [each.last_hidden_state.float().numpy() for each in encodings]
    hidden = _padded(states, (width, states[0].shape[-1]))
    own = next(spec.name for spec in service.tensors.outputs if spec.name in HIDDEN)
    found = dict.fromkeys((own, *(name for name in HIDDEN if name in (wanted or ()))), hidden)
    if attentions:
        weights = [np.stack([layer.float().numpy() for layer in each.attentions or ()]) for each in encodings]
        found[ATTENTIONS] = _padded(weights, (*weights[0].shape[:2], width, width))
    datatype = np.float16 if service.tensors.outputs[0].datatype == "FP16" else np.float32
    return {name: array.astype(datatype, copy=False) for name, array in found.items()}


def _padded(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Arrays of these sizes or smaller ones -> [batch, *shape], zeros beyond."""
    whole = np.zeros((len(arrays), *shape), np.float32)
    for row, array in zip(whole, arrays, strict=True):
        row[tuple(slice(n) for n in array.shape)] = array
    return whole
