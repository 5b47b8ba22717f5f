"""Inputs that run through an engine together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from vlm.api.images_ahead import ImagesAhead
from vlm.api.outputs import Output, OutputReader, samples_of
from vlm.api.pooled import PooledMap
from vlm.api.prefetch import Prefetch
from vlm.api.texts_ahead import TextsAhead
from vlm.engine.engine_loop import EngineLoop
from vlm.errors import OutOfMemoryError, VlmError
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate

Result = tuple[int, Output | VlmError]  # of the input of this index


@dataclass(eq=False, slots=True)
class _Samples:
    """The requests that one input has become."""

    index: int
    ids: list[int]
    completions: dict[int, Completion] = field(default_factory=dict)


class Job:
    """Gives inputs to an engine as room arises, and reads what becomes of them."""

    def __init__(
        self,
        loop: EngineLoop,
        inputs: Prefetch,
        outputs: OutputReader,
        *,
        pool: ThreadPoolExecutor,
        on_completion: Callable[[Completion], None],
        images_ahead: ImagesAhead | None = None,
        texts_ahead: TextsAhead | None = None,
    ):
        """`pool` makes texts of tokens; `on_completion` is called with what each request has come to, but those that
        are lost or aborted; `images_ahead` and `texts_ahead` have the first of those encoded that an idle engine is
        given, while the others are prepared."""
        self._loop, self._inputs, self._on_completion = loop, inputs, on_completion
        self._images_ahead, self._texts_ahead = images_ahead, texts_ahead
        self._waiting: dict[int, _Samples] = {}  # by the engine's id
        self._ended: list[tuple[int, list[Completion]]] = []  # in the last step
        # to decode and post-process a page takes milliseconds, which the engine's thread has not
        self._outputs = PooledMap[list[Completion], Output](
            pool, outputs.merged, inputs.most, partial(outputs.clock, "post-process")
        )

    def results(self) -> Iterator[Result]:
        """Yields an output or error an input, as they come."""
        while self._waiting or self._outputs.num_under_way or self._inputs.more:
            yield from self._added()
            for update in self._loop.step() if self._waiting else ():
                yield from self._taken(update)
            self._outputs.begin(self._ended, awaited=not self._waiting)
            self._ended = []
            yield from self._read()

    def close(self) -> None:
        """Drops what has not ended."""
        self._inputs.close()
        self._loop.clear(self._waiting)

    def _added(self) -> Iterator[Result]:
        """Queues the inputs that are prepared; yields the errors of those that cannot be."""
        if not self._waiting and not self._outputs.num_under_way:
            yield from self._added_to_idle()
            return
        for index, request in self._inputs.ready(block=False):
            try:
                self._add(index, samples_of(request.result()))
            except VlmError as error:
                self._inputs.done()
                yield index, error

    def _added_to_idle(self) -> Iterator[Result]:
        """Does the same of inputs that an idle engine waits for; the device begins with the first of them."""
        images, texts, errors = self._images_ahead, self._texts_ahead, list[Result]()
        for ahead in filter(None, (images, texts)):
            ahead.begin()
        for index, request in self._inputs.coming(block=True, use=images and images.take):
            try:
                requests = samples_of(request.result())
                self._add(index, requests)
            except VlmError as error:
                self._inputs.done()
                errors.append((index, error))
            else:
                if texts is not None:
                    texts.take(requests)
        if images is not None:
            images.encode()
        yield from errors

    def _add(self, index: int, requests: list[Request]) -> None:
        ids = self._loop.add(requests)
        self._waiting |= dict.fromkeys(ids, _Samples(index, ids))

    def _taken(self, update: TokenUpdate) -> Iterator[Result]:
        if update.completion is None or (samples := self._waiting.pop(update.request_id, None)) is None:
            return
        if update.completion.out_of_memory:
            self._give_up(samples)
            yield samples.index, OutOfMemoryError(self._loop.memory_sentence)
            return
        self._on_completion(update.completion)
        samples.completions[update.request_id] = update.completion
        if len(samples.completions) == len(samples.ids):
            self._ended.append((samples.index, [samples.completions[i] for i in samples.ids]))

    def _read(self) -> Iterator[Result]:
        """Yields the outputs that are made; waits for one when there is nothing else to do."""
        block = not self._waiting
        while self._outputs.num_ready or (block and self._outputs.num_under_way):
            index, outcome = self._outputs.take()
            self._inputs.done()
            block = False
            yield index, outcome.result()

    def _give_up(self, samples: _Samples) -> None:
        """Aborts the samples of an input of which one is lost."""
        self._inputs.done()
        for request_id in samples.ids:
            self._waiting.pop(request_id, None)
        self._loop.abort(samples.ids)
