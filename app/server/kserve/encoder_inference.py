"""One request for an encoder alone: T5-Encoder's tensors, token ids, or texts -> hidden states and attentions.

https://github.com/triton-inference-server/fastertransformer_backend: docs/t5_guide.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import numpy as np

from vlm.api.outputs import Encoding
from vlm.errors import InputError, LimitError
from vlm_app.server.kserve.inference import Admission, Inference, Response, at_once
from vlm_app.server.repository.service import Service
from vlm_app.server.tensors.aliases import by_own_names
from vlm_app.server.tensors.ft_tensors import without_neutral
from vlm_app.server.tensors.inputs import Row, without_padding
from vlm_app.server.tensors.model import ATTENTIONS, ENCODER_IN, ENCODER_TEXT_IN, HIDDEN, Tensors
from vlm_app.server.tensors.parameters import check, with_options
from vlm_app.server.tensors.settings import adapter_of
from vlm_app.server.tensors.specs import check_names, check_tensors
from vlm_app.server.tensors.values import DTYPES, as_bf16, text_of
from vlm_app.server.tensors.wire import InferRequest

MAX_ATTENTION_BYTES = 2**29  # of a request's attentions: they grow with the square of the length
MAX_STATE_BYTES = 2**31  # of its hidden states, padding included: a message of gRPC holds no more


class EncoderInference(Inference):
    """A request that has been read. Raises InputError with one sentence."""

    def __init__(self, service: Service, request: InferRequest, stop: tuple[str, ...] = ()):
        if stop:
            raise InputError("stop is for models that write, this one is an encoder alone; leave it out.")
        self.parameters, self._service = check(request.parameters), service
        self._sent_names = request.sent_names
        inputs = without_neutral(with_options(request.inputs, self.parameters.options))
        self._output_names = request.outputs or {}
        tensors = _checked(inputs)
        self._width = tensors["input_ids"].shape[1] if "input_ids" in tensors else None
        count = len(next(iter(tensors.values())))
        self._rows = [_source({name: array[i] for name, array in tensors.items()}) for i in range(count)]
        flag = tensors.get("is_return_attentions")
        self._attentions = ATTENTIONS in self._output_names or (flag is not None and bool(flag.any()))
        self._check_states(self._width or 0)
        if self._attentions:
            _check_attentions(service, count, self._width or service.pipeline.capabilities.max_encoder_input_len)

    async def outputs(self, admitted: Admission = at_once) -> Tensors:
        """Returns the states, padded as the ids are, and attentions where the flag or their name asks for them."""
        encodings: list[Encoding] = []
        with self._service.statistics.request(len(self._rows)):
            async with self._within(time.monotonic()):
                for rows in self._service.encoder_batches(self._rows):
                    await admitted(self._service.room, len(rows))
                    encodings += await self._service.encode(rows, [[] for _ in rows], self._attentions)
                    self._check_states(max(len(each.last_hidden_state) for each in encodings))
        return await asyncio.to_thread(self._padded, encodings)

    async def responses(self, admitted: Admission = at_once) -> AsyncGenerator[Response, None]:
        """Yields the one response that there is."""
        yield Response(await self.outputs(admitted), last=True)

    def _check_states(self, width: int) -> None:
        """Raises LimitError for more hidden states than are given at once: a few ids may say that they are padded to
        any width."""
        size = len(self._rows) * width * self._service.pipeline.processor.config.hidden_size * 4
        _check_size("hidden states", len(self._rows), width, size=size, most=MAX_STATE_BYTES)

    def _padded(self, encodings: list[Encoding]) -> Tensors:
        specs = self._service.tensors.outputs
        to_type = partial(_padded, dtype=specs[0].datatype)
        width = self._width or max(len(each.last_hidden_state) for each in encodings)
        states = [each.last_hidden_state.float().numpy() for each in encodings]
        hidden = to_type(states, (width, states[0].shape[-1]))
        tensors = dict.fromkeys((specs[0].name, *(name for name in HIDDEN if name in self._output_names)), hidden)
        if self._attentions:
            weights = [np.stack([layer.float().numpy() for layer in each.attentions or ()]) for each in encodings]
            tensors[ATTENTIONS] = to_type(weights, (*weights[0].shape[:2], width, width))
        return tensors


def _checked(inputs: Tensors) -> Tensors:
    if "input_ids" in inputs:
        return check_tensors(inputs, ENCODER_IN)[1]
    if "text_input" not in inputs:
        check_names(by_own_names(inputs.items()), (*ENCODER_IN, *ENCODER_TEXT_IN))
        raise InputError("there is nothing to encode; give input_ids, or text_input.")
    return check_tensors(inputs, ENCODER_TEXT_IN)[1]


def _source(row: Row) -> dict[str, Any]:
    if "input_ids" in row:
        return {"input_ids": without_padding(row, "input_ids", "sequence_length"), **adapter_of(row)}
    return {"text": text_of("text_input", row["text_input"]), **adapter_of(row)}


def _check_attentions(service: Service, rows: int, width: int) -> None:
    config = service.pipeline.processor.config
    size = rows * config.num_layers * config.num_heads * width**2 * 4
    _check_size("attentions", rows, width, size=size, most=MAX_ATTENTION_BYTES)


def _check_size(what: str, rows: int, width: int, *, size: int, most: int) -> None:
    if size > most:
        raise LimitError(
            f"the {what} of {rows} rows of {width} tokens take {size >> 20:,} MiB, {most >> 20:,} is allowed; ask for"
            " fewer or shorter rows at once."
        )


def _padded(arrays: list[np.ndarray], shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns float32 arrays of these sizes or smaller ones as [batch, *shape] of a datatype, zeros beyond."""
    whole = np.zeros((len(arrays), *shape), np.float32 if dtype == "BF16" else DTYPES[dtype])
    for row, array in zip(whole, arrays, strict=True):
        row[tuple(slice(n) for n in array.shape)] = array
    return as_bf16(whole) if dtype == "BF16" else whole
