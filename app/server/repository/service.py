"""A served model: how much of it is asked at once, and its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.requests import HTTPConnection

from vlm.api.async_pipeline import AsyncPipeline, TextDelta
from vlm.api.outputs import Encoding, Output
from vlm.api.pipeline import Pipeline
from vlm.engine.step_watch import STEP_SECONDS
from vlm.errors import ModelNotFoundError, listed
from vlm.processing.media.pool import MediaPool
from vlm_app.server.core.errors import Loading
from vlm_app.server.core.generation_input import GenerationInput
from vlm_app.server.core.merge import merge_bursts
from vlm_app.server.core.metrics import Metrics, Stopwatch
from vlm_app.server.core.setting_names import about_input
from vlm_app.server.repository.room import Room, Slot
from vlm_app.server.repository.statistics import RequestTimes, Statistics
from vlm_app.server.tensors.model import ModelTensors

T = TypeVar("T")
ENCODED_TOGETHER = 32  # inputs of one request for an encoder


class Service:
    """One model under its name."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        media: MediaPool,
        metrics: Metrics,
        max_requests: int,
        version: str = "1",
        on_break: Callable[[str, Exception], None] = lambda name, error: None,
        *,
        step_seconds: float = STEP_SECONDS,
        decoupled: bool = True,
        datatypes: Mapping[str, str] | None = None,
    ):
        """`on_break` is told when the engine has broken for good. `decoupled`: streams of KServe's protocol hold a
        response a burst, else one response; `datatypes`: of outputs, as a configuration declares them."""
        self.name, self.version, self._metrics = name, version, metrics
        self.created = int(time.time())
        self.tensors = ModelTensors.from_processor(pipeline.processor, pipeline.engine.build.dtype, datatypes)
        self.room = Room(name, max_requests, metrics.rejections.labels(name).inc)
        self.decoupled = decoupled
        self.statistics = Statistics()
        self.model = AsyncPipeline(
            pipeline,
            media,
            step_seconds=step_seconds,
            on_end=partial(metrics.ended, name),
            on_break=partial(on_break, name),
            on_step=self.statistics.step,
        )

    @property
    def pipeline(self) -> Pipeline:
        return self.model.pipeline

    @property
    def adapters(self) -> list[str]:
        """Returns the names of its adapters, which are asked like models."""
        return list(self.pipeline.adapters)

    @property
    def ready(self) -> bool:
        return self.model.engine.error is None

    async def close(self, drain_seconds: float = 0) -> None:
        """Ends when what runs has ended, or ends it once this time is over."""
        end = time.monotonic() + drain_seconds
        while self.room.held and time.monotonic() < end:
            await asyncio.sleep(0.02)
        await self.model.close()

    async def stream_all(
        self, items: list[GenerationInput], *, final_only: bool = False
    ) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """Yields (number of the input, delta) of a request's inputs as they come; `final_only`: an output's once it has
        ended. Raises Busy and the errors of AsyncPipeline."""
        async with aclosing(self.stream_bursts(items, final_only=final_only)) as bursts:
            async for burst in bursts:
                for numbered_delta in burst:
                    yield numbered_delta

    async def stream_bursts(
        self, items: list[GenerationInput], *, final_only: bool = False
    ) -> AsyncGenerator[list[tuple[int, TextDelta]], None]:
        """Yields the same in lists: all that has come since the last one."""
        with self.statistics.request(len(items)) as times, ExitStack() as held:
            acquired = self.room.acquire([item.count for item in items])  # before any of them is begun
            slots = map(held.enter_context, acquired)  # a stream that never begins leaves none
            streams = [
                self._stream(item, slot, times, final_only=final_only) for item, slot in zip(items, slots, strict=True)
            ]
            async with aclosing(merge_bursts(streams)) as bursts:
                async for burst in bursts:
                    yield burst

    async def _stream(
        self, item: GenerationInput, slot: Slot, times: RequestTimes, *, final_only: bool
    ) -> AsyncGenerator[TextDelta, None]:
        watch = Stopwatch(self._metrics, self.name)
        with slot, about_input():
            request = await self.model.request(item.source, item.files, **item.sampling)
            start = times.prepared()
            stream = self.model.stream(request, final_only=final_only, on_update=watch.observe)
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    if delta.update and delta.update.completion:
                        times.ended(start, delta.update.completion, delta.update.time)
                    yield delta

    async def outputs(self, items: list[GenerationInput]) -> list[list[Output]]:
        """Returns each input's outputs, when all have ended."""
        by_index: list[dict[int, Output]] = [{} for _ in items]
        async with aclosing(self.stream_all(items, final_only=True)) as deltas:
            async for number, delta in deltas:
                if delta.output is not None:
                    by_index[number][delta.index] = delta.output
        return [[outputs[index] for index in sorted(outputs)] for outputs in by_index]

    def encoder_batches(self, inputs: list[T]) -> list[list[T]]:
        """Returns a request's inputs in the parts that `encode` takes."""
        size = min(ENCODED_TOGETHER, self.room.size)
        return [inputs[i : i + size] for i in range(0, len(inputs), size)]

    async def encode(
        self, sources: list[dict[str, Any]], files: list[list[Any]], attentions: bool = False
    ) -> list[Encoding]:
        """Returns what an encoder makes of one of the `encoder_batches` of a request's inputs: between such calls the
        engine goes on with what else it does. Raises Busy and the errors of AsyncPipeline."""
        [slot] = self.room.acquire([len(sources)])
        with slot, about_input():
            return await self.model.encode(sources, files, attentions=attentions)


class Services:
    """The models of a server, as they are now."""

    def __init__(self) -> None:
        self.by_name: dict[str, Service] = {}
        self.expected: set[str] = set()  # names of what is being loaded

    def start(self) -> None:
        """Starts the models within the event loop that will ask them."""
        for service in self:
            service.model.start()

    def add(self, service: Service) -> None:
        self.by_name[service.name] = service

    def remove(self, name: str) -> Service:
        """Takes a model away: it is asked no more. Raises ModelNotFoundError."""
        return self.by_name.pop(self[name].name)

    @contextmanager
    def expecting(self, *names: str) -> Iterator[None]:
        """Has who asks for a model that is being loaded, or an adapter of it, told so."""
        self.expected.update(names)
        try:
            yield
        finally:
            self.expected.difference_update(names)

    def __getitem__(self, name: str) -> Service:
        if name not in self.by_name:
            if (owner := self._owner(name)) is not None:
                number = owner.pipeline.adapters[name]
                raise ModelNotFoundError(
                    f"{name!r} is an adapter, not a model; ask {owner.name}, with lora_task_uids {number} (KServe)."
                )
            if name in self.expected:
                raise Loading(f"{name!r} is being loaded; ask again later.")
            names = [each for service in self for each in (service.name, *service.adapters)]
            others = listed(names) or "none now: POST /v2/repository/models/NAME/load loads one"
            raise ModelNotFoundError(f"model {name!r} is not served here; there is {others}.")
        return self.by_name[name]

    def asked(self, name: str) -> tuple[Service, dict[str, str]]:
        """Returns the model of a name, or the one that has an adapter of this name, and what the name adds to the
        options of a request. Raises ModelNotFoundError, Loading."""
        owner = self._owner(name)
        return (self[name], {}) if owner is None or name in self.by_name else (owner, {"lora": name})

    def _owner(self, adapter: str) -> Service | None:
        return next((service for service in self if adapter in service.adapters), None)

    def __iter__(self) -> Iterator[Service]:
        return iter(list(self.by_name.values()))


def services_of(http: HTTPConnection) -> Services:
    """Returns the models of the server that a request came to."""
    return http.app.state.services
