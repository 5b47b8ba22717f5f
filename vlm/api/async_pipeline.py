"""Images and text in, text out, for many coroutines at once: the pipeline's text layer over an AsyncEngine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vlm.api.call_options import check_request
from vlm.api.outputs import Encoding, Output, samples_of, text_stream
from vlm.api.pipeline import Pipeline
from vlm.engine.async_call import OnUpdate, ignore
from vlm.engine.async_engine import AsyncEngine
from vlm.engine.step_watch import STEP_SECONDS
from vlm.errors import InputError, counted
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm.processing.media.reading import ImageFile, WarmUp, pixels
from vlm.processing.text.stream import TextStream
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate


@dataclass(frozen=True)
class TextDelta:
    """What a step brought for one output of a request."""

    index: int  # of the output
    text: str  # as decoded, before post-processing; never a part of a character
    update: TokenUpdate | None  # None of a search's outcomes but the best
    output: Output | None  # once it has ended


class AsyncPipeline:
    """A loaded model that serves. It owns its pipeline: nobody else may call that until `close` has returned. In an
    `async with` block it is started, and closed at its end."""

    def __init__(
        self,
        pipeline: Pipeline,
        media: MediaPool | None = None,
        *,
        step_seconds: float = STEP_SECONDS,
        **listeners: Callable[..., None],
    ):
        """`media` reads files of images; None: threads of its own do. `step_seconds`, and `listeners`: on_end,
        on_break, on_step; see AsyncEngine."""
        self.pipeline, self._owns_media = pipeline, media is None
        self.media = MediaPool(MediaConfig()) if media is None else media
        if (source := pipeline.processor.processor_source) is not None:
            self.media.prepare(WarmUp(source))
        self.engine = AsyncEngine(pipeline.llm, step_seconds=step_seconds, **listeners)

    def start(self) -> None:
        """Starts the engine within the event loop that will use it; its pipeline takes no other calls from now on.
        Raises InputError where another one has it."""
        loop = self.pipeline.loop
        if loop.is_lent() and loop.is_lent != self.engine.is_running:
            raise InputError("another AsyncPipeline has this pipeline; ask that one, or load the model again.")
        self.engine.start()
        loop.is_lent = self.engine.is_running

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        try:
            await self.engine.stop()
            if not self.engine.hangs:  # else it would wait for the same
                self.pipeline.close()
        finally:
            if self._owns_media:
                self.media.close()

    async def request(self, source: Any, files: Sequence[ImageFile] = (), **sampling: Any) -> Request:
        """Makes the request of an input of `Pipeline.generate`; `files`: its images, in the order of their places.

        Raises InputError and its kin with one sentence.
        """
        return await asyncio.to_thread(self.pipeline.request, await self._fields(source, files), **sampling)

    async def load_lora(self, name: str, folder: str | Path) -> None:
        """Loads an adapter as `Pipeline.load_lora`, while others are served."""
        adapters = self.pipeline.adapters
        adapter = await asyncio.to_thread(adapters.read, folder)
        await self.engine.run(lambda: adapters.load(name, adapter))

    async def unload_lora(self, name: str) -> None:
        """Unloads an adapter as `Pipeline.unload_lora`."""
        await self.engine.run(lambda: self.pipeline.adapters.unload(name))

    async def stream(
        self, request: Request, *, final_only: bool = False, on_update: OnUpdate = ignore
    ) -> AsyncGenerator[TextDelta, None]:
        """Yields the texts of a request's outputs as they are decoded; leaving the iteration early aborts it.
        `final_only`: each in one piece, when it has ended; `on_update`: as AsyncEngine.generate has it. Raises
        InputError for what is not a Request yet."""
        check_request(request, "await request(INPUT, max_new_tokens=20)")
        requests = samples_of(request)
        texts = [None if final_only else self._text_stream(request) for _ in requests]
        async with aclosing(self.engine.generate(requests, final_only=final_only, on_update=on_update)) as updates:
            async for index, update in updates:
                stream = texts[index]
                output = None if update.completion is None else await self._output(update.completion)
                if stream is None:
                    text = output.raw_text if output else ""
                else:
                    text = stream.push(update.token_ids, last=update.finished)
                yield TextDelta(index, text, update, output)
                for rank, other in enumerate(output.alternatives if output else (), 1):
                    yield TextDelta(rank, other.raw_text, None, other)

    async def generate(self, request: Request) -> list[Output]:
        """Returns a request's outputs: one, or as many as num_return_sequences."""
        async with aclosing(self.stream(request, final_only=True)) as deltas:
            outputs = {delta.index: delta.output async for delta in deltas if delta.output}
        return [outputs[index] for index in sorted(outputs)]

    async def encode(
        self,
        sources: Sequence[Any],
        files: Sequence[Sequence[ImageFile]] | None = None,
        *,
        hidden_states: bool = False,
        attentions: bool = False,
    ) -> list[Encoding]:
        """Encodes a list of inputs as `Pipeline.encode`; `files`: of each input its images, as `request` takes them."""
        if not isinstance(sources, list | tuple):
            raise InputError(f"inputs are encoded as a list, got {type(sources).__name__}; give [INPUT].")
        files = [()] * len(sources) if files is None else files
        if len(files) != len(sources):
            given = f"{counted(len(sources), 'input')} and the files of {len(files)}"
            raise InputError(f"{given} were given; give a list of files for each input, [] where it has none.")
        inputs = [await self._fields(source, own) for source, own in zip(sources, files, strict=True)]
        inputs = [await asyncio.to_thread(self._tokenized, fields) for fields in inputs]
        more = {"hidden_states": hidden_states, "attentions": attentions}
        return await self.engine.run(lambda: self.pipeline.encode(inputs, **more))

    def _tokenized(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns an input with its text as token ids: the engine's thread is for the device."""
        if not {"text", "prompt", "raw_prompt", "messages"} & fields.keys():
            return fields
        request = self.pipeline.request(fields)
        if (ids := request.encoder_input_ids) is None:
            return fields
        rest = {name: fields[name] for name in ("images", "pixel_values", "lora") if name in fields}
        # what a task stands for is among these: a prompt table, or words
        return {**rest, "prompt_table": request.prompt_table, "encoder_input_ids": list(ids)}

    async def _output(self, completion: Completion) -> Output:
        # post-processing a page takes milliseconds, in which the loop serves others
        return await asyncio.to_thread(self.pipeline.outputs.output, completion)

    async def _fields(self, source: Any, files: Sequence[ImageFile]) -> dict[str, Any]:
        """Returns an input's fields, with its images' pixel values."""
        processor = self.pipeline.processor
        if not isinstance(source, dict):
            source = processor.request_builder.named(source)
        if not files:
            return source
        processor.request_builder.check_images(len(files))
        question = processor.drawn_question(source)
        return processor.with_pixels(source, await pixels(self.media, files, processor.image_source, question))

    def _text_stream(self, request: Request) -> TextStream | None:
        tokenizer = self.pipeline.tokenizer
        return text_stream(tokenizer, request.params) if tokenizer else None
