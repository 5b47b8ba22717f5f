"""An LLMEngine for coroutines: one thread runs its add/step/abort loop, requests and updates cross in queues."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

import torch

from vlm.engine.fair_lock import device_lock
from vlm.engine.llm_engine import LLMEngine
from vlm.errors import EngineError, OutOfMemoryError
from vlm.executor.memory import FULL, memory_errors, suppress_out_of_memory
from vlm.requests.request import Request
from vlm.requests.sequence import Sequence, Update

T = TypeVar("T")


@dataclass(frozen=True)
class Delta:
    """What a burst brought for one of a call's requests. The sequence goes on changing; this does not."""

    index: int  # of the request in its call
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[int, float], ...]  # of each token, where they were asked for
    sequence: Sequence | None  # once it has ended
    at: float  # time.perf_counter() of the engine's thread


class _Call:
    """The requests of one caller, and what has come of them."""

    def __init__(self, requests: list[Request]):
        self.requests = requests
        self.ids: dict[int, int] = {}  # engine's id -> index
        self.known = [0] * len(requests)  # tokens handed over
        self.results: asyncio.Queue[Delta | Exception] = asyncio.Queue()

    def delta(self, update: Update) -> Delta:
        index, sequence = self.ids[update.sequence.id], update.sequence
        begin = self.known[index]
        end = self.known[index] = begin + len(update.new_token_ids)
        top = tuple(sequence.top_logprobs[begin:end]) if sequence.request.params.top_logprobs else ()
        logprobs = tuple(sequence.logprobs[begin:end])
        ended = sequence if update.finished else None
        return Delta(index, update.new_token_ids, logprobs, top, ended, time.perf_counter())


class AsyncEngine:
    """Used from one event loop, that of `start`. Nobody else may touch the engine until `stop` has returned."""

    def __init__(
        self,
        engine: LLMEngine,
        on_end: Callable[[Sequence], None] = lambda sequence: None,
        on_break: Callable[[Exception], None] = lambda error: None,
        on_step: Callable[[int, float], None] = lambda batch_size, seconds: None,
    ):
        """`on_end` is called with every sequence that ends and `on_step` with every step's sequences and duration, in
        the engine's thread; `on_break` once, in the loop, with what the engine cannot recover from."""
        self.engine, self._on_end, self._on_break, self._on_step = engine, on_end, on_break, on_step
        self.error: Exception | None = None  # what has broken the engine
        self._device_lock = device_lock(engine.executor.device)
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._door, self._closed = Lock(), False  # closed: no command is carried out any more
        self._calls: dict[int, _Call] = {}  # by the engine's id; the thread's own
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Ends what still runs, with an EngineError for who waits for it; the pool is full afterwards."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, requests: list[Request]) -> AsyncIterator[Delta]:
        """What comes of requests, as it comes; leaving the iteration early aborts the rest.

        Raises LimitError and InputError for what the engine cannot hold, EngineError when it has broken.
        """
        call, left = _Call(requests), len(requests)
        self._submit(partial(self._add, call))
        try:
            while left:
                result = await call.results.get()
                if isinstance(result, Exception):
                    raise result
                left -= result.sequence is not None
                yield result
        finally:
            if left:
                self._commands.put(partial(self._abort, call))

    async def run(self, function: Callable[[], T]) -> T:
        """Calls a function between two steps, in the engine's thread: the way to its networks."""
        future: Future[T] = Future()
        self._submit(partial(_fulfil, future, function))
        return await asyncio.wrap_future(future)

    def _submit(self, command: Callable[[], None]) -> None:
        with self._door:
            if self._closed:
                raise EngineError("the engine has stopped; start the server again.")
            self._commands.put(command)

    # --- the engine's thread ---
    def _run(self) -> None:
        device = self.engine.executor.device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            try:
                while self._obey():
                    with self._device_lock:
                        updates = self._step()
                    self._hand_over([each for update in updates for each in self._taken(update)])
            except BaseException as error:  # panics of libraries written in Rust are no Exceptions
                self.error = error if isinstance(error, Exception) else EngineError(f"{error}")
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
                    self._loop.call_soon_threadsafe(self._on_break, self.error)
        self._end_all()

    def _step(self) -> list[Update]:
        with suppress_out_of_memory():
            began = time.perf_counter()
            updates = self.engine.step()
            self._on_step(self.engine.last_batch_size, time.perf_counter() - began)
            return updates
        # not within an except clause: the error's frames hold tensors
        return self.engine.recover()

    def _obey(self) -> bool:
        """Carries out what was submitted, waiting for it when there is nothing to do; False: stop."""
        while not self.engine.has_work or not self._commands.empty():
            if (command := self._commands.get()) is None:
                return False
            with self._device_lock:
                command()
        return True

    def _add(self, call: _Call) -> None:
        try:
            for index, request in enumerate(call.requests):
                request_id = self.engine.add(request)
                call.ids[request_id], self._calls[request_id] = index, call
        except Exception as error:
            self._abort(call)
            self._hand_over([(call, error)])

    def _abort(self, call: _Call) -> None:
        for request_id in call.ids:
            self._calls.pop(request_id, None)
            self.engine.abort(request_id)

    def _taken(self, update: Update) -> list[tuple[_Call, Delta | Exception]]:
        if update.finished:
            self._on_end(update.sequence)
        call = (self._calls.pop if update.finished else self._calls.get)(update.sequence.id, None)
        if call is None:
            return []
        return [(call, OutOfMemoryError(FULL) if update.sequence.finish_reason == "memory" else call.delta(update))]

    def _hand_over(self, results: list[tuple[_Call, Delta | Exception]]) -> None:
        def put() -> None:
            for call, result in results:
                call.results.put_nowait(result)

        if results:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
                self._loop.call_soon_threadsafe(put)

    def _end_all(self) -> None:
        with self._door:
            self._closed = True
        while not self._commands.empty():  # who came last is told, too
            if (command := self._commands.get()) is not None:
                command()
        reason = "the server is stopping" if self.error is None else f"the engine has broken: {self.error}"
        calls = list(dict.fromkeys(self._calls.values()))
        self._hand_over([(call, EngineError(f"{reason}; ask again later.")) for call in calls])
        for request_id in list(self._calls):
            self.engine.abort(request_id)
        while self.error is None and self.engine.has_work:
            self.engine.step()


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        with memory_errors():
            future.set_result(function())
    except BaseException as error:
        future.set_exception(error if isinstance(error, Exception) else EngineError(f"{error}"))
