"""Inputs that run through an engine together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from vlm.api.ahead.images_ahead import ImagesAhead
from vlm.api.ahead.pooled import Outcome, PooledMap
from vlm.api.ahead.prefetch import Prefetch
from vlm.api.ahead.texts_ahead import TextsAhead
from vlm.api.outputs import Output, OutputReader, samples_of
from vlm.engine.engine_loop import EngineLoop
from vlm.errors import VlmError
from vlm.garbage import without_collections
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate

Input = tuple[int, Outcome[Request]]  # an input's index, and the request that it has become
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
        self._is_stopped = False
        # to decode and post-process a page takes milliseconds, which the engine's thread has not
        self._outputs = PooledMap[list[Completion], Output](
            pool, outputs.merged, inputs.most, partial(outputs.clock, "post-process")
        )

    def results(self) -> Iterator[Result]:
        """Yields an output or error an input, as they come."""
        while not self._is_stopped and (self._waiting or self._outputs.num_under_way or self._inputs.more):
            self._inputs.fill()  # the source may be long in giving the next one: outside of what is undisturbed
            with self._undisturbed():
                errors = self._added()
                updates = self._loop.step_for(self._waiting, streamed=False) if self._waiting and not errors else []
            yield from errors
            yield from self._taken(updates)
            self._outputs.begin(self._ended, awaited=not self._waiting)
            self._ended = []
            if self._waiting:
                self._outputs.work_beside()
            yield from self._read()

    def stop(self) -> None:
        """Ends `results` with the step under way; any thread may call it."""
        self._is_stopped = True

    def close(self) -> None:
        """Drops what has not ended."""
        self._inputs.close()
        self._loop.clear(self._waiting)

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and not self._outputs.num_under_way

    def _undisturbed(self) -> AbstractContextManager[None]:
        """Has no garbage collected where an idle device waits for short work, of which that would be a good part; what
        is yet to come may be long in coming."""
        is_short = self._is_idle and self._inputs.most > 1 and not self._inputs.num_awaited
        return without_collections() if is_short else nullcontext()

    def _added(self) -> list[Result]:
        """Queues the inputs that are prepared; returns the errors of those that cannot be."""
        errors: list[Result] = []
        if self._is_idle:
            self._queue_to_idle(errors)
        else:
            self._queue(self._inputs.ready(block=False), errors)
        return errors

    def _queue_to_idle(self, errors: list[Result]) -> None:
        """Waits for inputs, and queues them as they come; the device begins with the first of them."""
        alone = not self._loop.has_work  # no other call has requests in it
        images, texts = (self._images_ahead, self._texts_ahead) if alone else (None, None)
        for ahead in filter(None, (images, texts)):
            ahead.begin()
        for inputs in self._inputs.coming(block=True, use=images and images.take):
            requests = self._queue(inputs, errors)
            if texts is not None and requests:
                texts.take(requests)
        if texts is not None:
            texts.end()
        if images is not None:
            images.encode()

    def _queue(self, inputs: list[Input], errors: list[Result]) -> list[Request]:
        """Queues the requests of inputs, which it returns; puts what is wrong with an input to the `errors`."""
        try:
            return self._add(inputs) if inputs else []
        except VlmError as error:
            if len(inputs) > 1:  # of one of them, which alone is refused
                return [request for one in inputs for request in self._queue([one], errors)]
            self._inputs.done()
            errors.append((inputs[0][0], error))
            return []

    def _add(self, inputs: list[Input]) -> list[Request]:
        """Queues the requests of inputs, all or none, and returns them."""
        samples = [samples_of(request.result()) for _, request in inputs]
        added = [*itertools.chain.from_iterable(samples)]
        ids = iter(self._loop.add(added))
        for (index, _), requests in zip(inputs, samples, strict=True):
            own = _Samples(index, [*itertools.islice(ids, len(requests))])
            for request_id in own.ids:
                self._waiting[request_id] = own
        return added

    def _taken(self, updates: list[TokenUpdate]) -> Iterator[Result]:
        """Takes over what a step has ended; yields the errors of what is lost."""
        for request_id, completion in [(u.request_id, u.completion) for u in updates if u.completion is not None]:
            if (samples := self._waiting.pop(request_id, None)) is None:
                continue
            if completion.out_of_memory:
                self._give_up(samples)
                yield samples.index, self._loop.memory_error()
                continue
            self._on_completion(completion)
            samples.completions[request_id] = completion
            if len(samples.completions) == len(samples.ids):
                self._ended.append((samples.index, [samples.completions[i] for i in samples.ids]))

    def _read(self) -> Iterator[Result]:
        """Yields the outputs that are made; waits for one when there is nothing else to do."""
        block = not self._waiting
        while self._outputs.num_ready or (block and self._outputs.num_under_way):
            block = False
            for index, outcome in self._outputs.take():
                self._inputs.done()
                yield index, outcome.result()

    def _give_up(self, samples: _Samples) -> None:
        """Aborts the samples of an input of which one is lost."""
        self._inputs.done()
        for request_id in samples.ids:
            self._waiting.pop(request_id, None)
        self._loop.abort(samples.ids)
