"""The loop under every way to ask an engine: what is added, stepped, recovered and aborted goes through here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from vlm.engine.leading import Engine
from vlm.engine.llm_engine import LLMEngine
from vlm.executor.memory import FULL, suppress_out_of_memory
from vlm.requests.image import Image
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate


class EngineLoop:
    """Drives an engine, inline or in a thread of its own; it is used by one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        on_end: Callable[[Completion], None] = lambda completion: None,
        on_step: Callable[[int, float], None] = lambda batch_size, seconds: None,
    ):
        """`on_end` is called with what each request has come to, an aborted one's too; `on_step` with every step's
        sequences and duration."""
        self.engine, self._on_end, self._on_step = engine, on_end, on_step
        self.memory_sentence = FULL  # what was said when memory ran out last
        self._lost: list[TokenUpdate] = []  # of requests that memory ran out for ahead of a step

    @property
    def has_work(self) -> bool:
        return self.engine.has_work or bool(self._lost)

    def add(self, requests: Iterable[Request]) -> list[int]:
        """Queues requests, all or none; their ids name them in `step`'s updates. Raises LimitError and InputError for
        what the engine cannot hold."""
        requests, ids = list(requests), list[int]()
        self.engine.expect(requests)
        try:
            for request in requests:
                ids.append(self.engine.add(request))
        except Exception:
            self.abort(ids)
            raise
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
        self.memory_sentence = memory.sentence
        self._lost += self.engine.recover()

    def abort(self, request_ids: Iterable[int]) -> None:
        """Ends requests at the next step, with finish reason `abort`; ended ones are left alone."""
        for request_id in request_ids:
            self.engine.abort(request_id)

    def step(self) -> list[TokenUpdate]:
        """Returns what the engine's next step brings. Where memory runs out, the requests that it worked on end with
        finish reason `memory`, and the others go on."""
        lost, self._lost = self._lost, []
        updates = lost + self._step()
        for update in updates:
            if update.completion is not None:
                self._on_end(update.completion)
        return updates

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        """Returns what each request comes to, when all have ended."""
        ids, completions = self.add(requests), {}
        while self.has_work:
            completions |= {u.request_id: u.completion for u in self.step() if u.completion is not None}
        return [completions[request_id] for request_id in ids]

    def clear(self, request_ids: Iterable[int]) -> None:
        """Aborts what is left when a caller stops early, so that the next one finds the engine empty."""
        self.abort(request_ids)
        while self.has_work:
            self.step()

    def _step(self) -> list[TokenUpdate]:
        with suppress_out_of_memory() as memory:
            began = time.perf_counter()
            updates = self.engine.step()
            self._on_step(self.engine.last_batch_size, time.perf_counter() - began)
            return updates
        # not within an except clause: the error's frames hold tensors
        self.memory_sentence = memory.sentence
        return self.engine.recover()
