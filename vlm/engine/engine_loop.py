"""The loop under every way to ask an engine: what is added, stepped, recovered and aborted goes through here."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from vlm.engine.leading import Engine
from vlm.engine.llm_engine import LLMEngine
from vlm.errors import InputError, OutOfMemoryError
from vlm.executor.memory import full, suppress_out_of_memory
from vlm.requests.image import Image
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate


class EngineLoop:
    """Drives an engine, inline or in a thread of its own. One thread at a time uses it, whose calls may be open beside
    each other, such as a stream that is read on later: what comes for one's requests is kept for it."""

    def __init__(
        self,
        engine: Engine,
        on_end: Callable[[Completion], None] = lambda completion: None,
        on_step: Callable[[int, float], None] = lambda batch_size, seconds: None,
    ):
        """`on_end` is called with what each request has come to, an aborted one's too; `on_step` with every step's
        sequences and duration."""
        self.engine, self._on_end, self._on_step = engine, on_end, on_step
        self.is_lent: Callable[[], bool] = lambda: False  # does another loop have the engine meanwhile?
        self._memory_error = full()
        self._lost: list[TokenUpdate] = []  # of requests that memory ran out for ahead of a step
        self._open: set[int] = set()  # requests that have not ended
        self._aborted: set[int] = set()  # those of them that nobody asks for any more
        self._kept: list[TokenUpdate] = []  # what came while others were asked for
        self._in_use = Lock()

    @property
    def has_work(self) -> bool:
        return self.engine.has_work or bool(self._lost)

    def memory_error(self) -> OutOfMemoryError:
        """Returns an error that says what was said when memory ran out last."""
        return copy.copy(self._memory_error)

    def add(self, requests: Iterable[Request]) -> list[int]:
        """Queues requests, all or none; their ids name them in `step`'s updates. Raises LimitError and InputError for
        what the engine cannot hold, and where another thread is using it, or has it (`is_lent`)."""
        with self._one_thread():
            ids = self.engine.add(list(requests))
        self._open.update(ids)
        return ids

    def encode_ahead(self, images: list[Image]) -> bool:
        """Begins with images whose requests are to come. Says False where memory runs out: they will be encoded with
        their requests, fewer at once."""
        with suppress_out_of_memory():
            self.engine.encoders.encode_ahead(images)
            return True
        self.engine.free_cached_memory()
        return False

    def admit(self) -> None:
        """Begins with requests that were added, ahead of the step that has them decode: others are to come."""
        assert isinstance(self.engine, LLMEngine)  # of one rank: several do the same step by step
        with suppress_out_of_memory() as memory:
            self.engine.admit()
            return
        self._memory_error = memory.error
        self._lost += self.engine.recover()

    def abort(self, request_ids: Iterable[int]) -> None:
        """Ends requests at the next step, with finish reason `abort`, of which `step` says nothing; ended ones are left
        alone."""
        ids = dict.fromkeys(request_ids)
        for request_id in ids:
            self.engine.abort(request_id)
        self._aborted |= self._open & ids.keys()
        self._kept = [update for update in self._kept if update.request_id not in ids]

    def step(self, *, streamed: bool = True) -> list[TokenUpdate]:
        """Returns what the engine's next step brings, `streamed` as LLMEngine has it. Where memory runs out, the
        requests that it worked on end with finish reason `memory`, and the others go on. InputError where another
        thread is using it."""
        with self._one_thread():
            lost, self._lost = self._lost, []
            updates = lost + self._step(streamed)
        wanted = [u for u in updates if u.request_id not in self._aborted] if self._aborted else updates
        for update in updates:
            if update.completion is not None:
                self._open.discard(update.request_id)
                self._aborted.discard(update.request_id)
                self._on_end(update.completion)
        return wanted

    def step_for(self, request_ids: Container[int], *, streamed: bool = True) -> list[TokenUpdate]:
        """Returns what has come for these requests while others were asked for, or what the next step brings for them;
        what it brings for others is kept for who asks for those."""
        if not any(update.request_id in request_ids for update in self._kept):
            self._kept += self.step(streamed=streamed)
        updates, self._kept = self._kept, [u for u in self._kept if u.request_id not in request_ids]
        return [update for update in updates if update.request_id in request_ids]

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        """Returns what each request comes to, when all have ended."""
        ids = self.add(requests)
        waiting, completions = set(ids), {}
        while waiting:
            updates = self.step_for(waiting, streamed=False)
            completions |= {u.request_id: u.completion for u in updates if u.completion is not None}
            waiting -= completions.keys()
        return [completions[request_id] for request_id in ids]

    def clear(self, request_ids: Iterable[int]) -> None:
        """Aborts what is left when a caller stops early; the engine is empty where nobody else has requests in it."""
        ids = set(request_ids)
        self.abort(ids)
        while self.has_work and (ids & self._open or self._open <= self._aborted):
            self._kept += self.step()

    def rest(self) -> None:
        """Has the engine let go of requests that have ended, where nobody has others in it."""
        if not self._open:
            self.engine.rest()

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        if self.is_lent() or not self._in_use.acquire(blocking=False):
            raise InputError(
                "another thread is using this pipeline, which is for one at a time; let the threads take turns, give"
                " generate() a list of inputs, or ask an AsyncPipeline."
            )
        try:
            yield
        finally:
            self._in_use.release()

    def _step(self, streamed: bool) -> list[TokenUpdate]:
        with suppress_out_of_memory() as memory:
            began = time.perf_counter()
            updates = self.engine.step(streamed=streamed)
            self._on_step(self.engine.last_batch_size, time.perf_counter() - began)
            return updates
        # not within an except clause: the error's frames hold tensors
        self._memory_error = memory.error
        return self.engine.recover()
