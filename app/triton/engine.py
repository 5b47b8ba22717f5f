"""The engine as a model of Triton's Python backend: FasterTransformer's tensors in and out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

from vlm.api.async_pipeline import AsyncPipeline, TextDelta
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.core.generation_input import GenerationInput
from vlm_app.server.core.merge import merge_bursts
from vlm_app.server.repository.triton_options import PARAMETERS, options_from_words
from vlm_app.server.tensors.inputs import read_batch, write_batch
from vlm_app.server.tensors.partial_outputs import PartialOutputs
from vlm_app.server.tensors.settings import streams
from vlm_app.triton.backend import Loop, Tensors, config_of, engine_of, failure, inputs_of, response, utils


class Engine:
    """All requests that Triton hands over are in flight together, their rows too.

    In streaming (Triton's decoupled) mode every response holds all tokens so far, and the next call of `execute` joins
    what runs; else a call returns when all of its requests have ended.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = config_of(args)
        self._streams = utils().using_decoupled_model_transaction_policy(self._config)
        gpu = args["model_instance_kind"] == "GPU"
        device = f"cuda:{args['model_instance_device_id']}" if gpu else "cpu"
        options = self._options(device).with_adapters_at(lambda folder: Path(args["model_repository"], folder))
        pipeline = options.load(engine_of(args))
        self._loop, self._processor = Loop(), pipeline.processor
        self._model = AsyncPipeline(pipeline, MediaPool(MediaConfig()))
        self._loop.submit(_call(self._model.start)).result()

    def _options(self, device: str) -> LoadOptions:
        """Returns what the model's configuration says of its loading."""
        parameters = self._config.get("parameters", {})
        written = {name: parameters[name]["string_value"] for name in PARAMETERS if name in parameters}
        limit = self._config["max_batch_size"]
        own = LoadOptions({"max_batch_size": limit} if limit else {}, {"device": device})
        return options_from_words(written).overridden_by(own)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if self._streams:
            for request in requests:
                self._loop.submit(self._send(request, request.get_response_sender()))
            return None
        answers = [self._loop.submit(self._answer(request)) for request in requests]
        return [_result(answer) for answer in answers]

    def finalize(self) -> None:
        self._loop.submit(self._model.close()).result()
        self._loop.close()

    # --- in the loop ---
    async def _answer(self, request: Any) -> Any:
        async for tensors in self._tensors(inputs_of(request), every=False):
            return response(tensors, self._config)

    async def _send(self, request: Any, sender: Any) -> None:
        final = utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            inputs = inputs_of(request)
            async with aclosing(self._tensors(inputs, every=streams(inputs))) as answers:
                async for tensors in answers:
                    if sender.is_cancelled():
                        break
                    sender.send(response(tensors, self._config))
        except Exception as error:
            sender.send(failure(error))
        sender.send(flags=final)

    async def _tensors(self, inputs: Tensors, every: bool) -> AsyncGenerator[Tensors, None]:
        """Yields a request's outputs: all of them when they have ended, or at every step the ones so far."""
        items = read_batch(self._processor, inputs)
        outputs = PartialOutputs(items)
        async with aclosing(merge_bursts([self._stream(each, final_only=not every) for each in items])) as bursts:
            async for burst in bursts:
                taken = [outputs.take(n, delta) for n, delta in burst]
                if every and any(taken):
                    yield write_batch(self._processor, items, outputs.rows)
        if not every:
            yield write_batch(self._processor, items, outputs.rows)

    async def _stream(self, item: GenerationInput, *, final_only: bool) -> AsyncGenerator[TextDelta, None]:
        request = await self._model.request(item.source, item.files, **item.sampling)
        async with aclosing(self._model.stream(request, final_only=final_only)) as deltas:
            async for delta in deltas:
                yield delta


async def _call(function: Any) -> None:
    function()


def _result(answer: Future[Any]) -> Any:
    try:
        return answer.result()
    except Exception as error:
        return failure(error)
