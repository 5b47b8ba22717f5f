"""One request of KServe's protocol, however it came: its tensors -> a model's outputs, whole or as they are decoded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from vlm.api.outputs import Output
from vlm_app.server.core.errors import RequestTimeout
from vlm_app.server.core.setting_names import calling
from vlm_app.server.repository.room import Room
from vlm_app.server.repository.service import Service
from vlm_app.server.tensors.inputs import read_batch, write_batch
from vlm_app.server.tensors.parameters import Parameters, check, with_options
from vlm_app.server.tensors.partial_outputs import PartialOutputs
from vlm_app.server.tensors.settings import streams
from vlm_app.server.tensors.wire import InferRequest

Tensors = dict[str, np.ndarray]
Admission = Callable[[Room, int], Awaitable[None]]  # returns once a model may be asked for so many outputs
WITH_LOGPROBS = ("cum_log_probs", "output_log_probs")


@dataclass(frozen=True)
class Response:
    """One of a request's responses: all tokens, and the text, so far."""

    outputs: Tensors
    last: bool


async def at_once(room: Room, count: int) -> None:
    """Lets a request be refused where there is no room."""


class Inference:
    """A request that has been read for a model. Raises InputError with one sentence."""

    def __init__(self, service: Service, request: InferRequest, stop: tuple[str, ...] = ()):
        """`stop`: strings that end every row's text, beside its tensors'."""
        self.parameters: Parameters = check(request.parameters)
        self._sent_names = request.sent_names
        self._service, self._processor = service, service.pipeline.processor
        inputs = with_options(request.inputs, self.parameters.options)
        self._streams = service.decoupled and streams(inputs)
        self._left_out = _left_out(request, inputs, has_tokenizer=service.pipeline.tokenizer is not None)
        self._cast = partial(service.tensors.cast, inputs=inputs, names=request.outputs)
        rows = read_batch(self._processor, inputs)
        self.items = [replace(row, sampling=_with_stop(row.sampling, stop)) for row in rows]

    async def outputs(self, admitted: Admission = at_once) -> Tensors:
        """Returns what comes of it, when all of it has ended. Raises RequestTimeout and the errors of Service."""
        async with self._within(time.monotonic()):
            await admitted(self._service.room, self._count)
            outputs = await self._service.outputs(self.items)
        return await asyncio.to_thread(self._written, outputs)

    async def responses(self, admitted: Admission = at_once) -> AsyncGenerator[Response, None]:
        """Yields a response a burst where the model is decoupled and the request streams, else one. Raises as
        `outputs`."""
        if not self._streams:
            yield Response(await self.outputs(admitted), last=True)
            return
        began, partial_outputs = time.monotonic(), PartialOutputs(self.items)
        async with self._within(began):
            await admitted(self._service.room, self._count)
        async with aclosing(self._service.stream_bursts(self.items)) as bursts:
            while not partial_outputs.ended:
                async with self._within(began):  # each step has a task of its own
                    burst = await anext(bursts)
                    await asyncio.sleep(0)  # one that was there already may be late, too
                # a response for each row of it would have all rows written so many times
                taken = [partial_outputs.take(number, delta) for number, delta in burst]
                if any(taken):
                    yield Response(self._written(partial_outputs.rows), last=partial_outputs.ended)
            await anext(bursts, None)  # so that it counts as a success

    @property
    def _count(self) -> int:
        return sum(item.count for item in self.items)

    def _written(self, outputs: list[list[Output]]) -> Tensors:
        tensors = write_batch(self._processor, self.items, outputs)
        return self._cast({name: array for name, array in tensors.items() if name not in self._left_out})

    @asynccontextmanager
    async def _within(self, began: float) -> AsyncIterator[None]:
        """Raises RequestTimeout once the request's time, which `began` at this time.monotonic(), is over. Errors call
        settings as the request does."""
        seconds = self.parameters.timeout
        try:
            async with asyncio.timeout(seconds and began + seconds - time.monotonic()) as limit:
                with calling(self._sent_names):
                    yield
        except TimeoutError:
            if seconds is None or not limit.expired():
                raise
            raise RequestTimeout(
                f"the request took longer than its timeout of {seconds * 1e6:.0f} µs; give it more or ask for less."
            ) from None


def _with_stop(sampling: dict[str, Any], stop: tuple[str, ...]) -> dict[str, Any]:
    return {**sampling, "stop": (*sampling.get("stop", ()), *stop)} if stop else sampling


def _left_out(request: InferRequest, inputs: Tensors, *, has_tokenizer: bool) -> set[str]:
    """Returns the outputs that were neither asked for by name nor by a flag, and the text that nobody can decode."""
    by_name = request.outputs is not None
    gives_ids = bool({"input_ids", "pixel_values"} & inputs.keys())
    texts = {"text_output"} if gives_ids and not (by_name and has_tokenizer) else set()
    flag = inputs.get("is_return_log_probs")
    wants_logprobs = by_name or (flag is not None and flag.any())
    return texts if wants_logprobs else texts | set(WITH_LOGPROBS)
