"""An engine for coroutines: one thread drives its loop, requests and updates cross in queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

import torch

from vlm.engine.engine_loop import EngineLoop
from vlm.engine.fair_lock import device_lock
from vlm.engine.leading import Engine
from vlm.errors import EngineError, OutOfMemoryError
from vlm.executor.memory import FULL, memory_errors
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate

T = TypeVar("T")
Result = tuple[int, TokenUpdate] | Exception  # the index of a request in its call, and what a step brought for it


@dataclass(eq=False)
class _Call:
    """The requests of one caller, and what has come of them."""

    requests: list[Request]
    indices: dict[int, int] = field(default_factory=dict)  # by the engine's id; the thread's own
    results: asyncio.Queue[Result] = field(default_factory=asyncio.Queue)

    def result(self, update: TokenUpdate) -> Result:
        if update.completion is not None and update.completion.out_of_memory:
            return OutOfMemoryError(FULL)
        return self.indices[update.request_id], update


class AsyncEngine:
    """Used from one event loop, that of `start`. Nobody else may touch the engine until `stop` has returned."""

    def __init__(
        self,
        engine: Engine,
        on_end: Callable[[Completion], None] = lambda completion: None,
        on_break: Callable[[Exception], None] = lambda error: None,
        on_step: Callable[[int, float], None] = lambda batch_size, seconds: None,
    ):
        """`on_end` and `on_step`: see EngineLoop; they are called in the engine's thread. `on_break` is called once, in
        the event loop, with what the engine cannot recover from."""
        self._loop, self._on_break = EngineLoop(engine, on_end, on_step), on_break
        self.error: Exception | None = None  # what has broken the engine
        self._device = engine.encoders.device
        self._device_lock = device_lock(self._device)
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._door, self._closed = Lock(), False  # closed: no command is carried out any more
        self._calls: dict[int, _Call] = {}  # by the engine's id; the thread's own
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Ends what still runs, with an EngineError for who waits for it; the pool is full afterwards."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, requests: list[Request]) -> AsyncGenerator[tuple[int, TokenUpdate], None]:
        """Yields (index of the request, what a step brought for it) as it comes; leaving the iteration early aborts the
        rest.

        Raises LimitError and InputError for what the engine cannot hold, EngineError when it has broken.
        """
        call, num_unfinished = _Call(requests), len(requests)
        self._submit(partial(self._add, call))
        try:
            while num_unfinished:
                result = await call.results.get()
                if isinstance(result, Exception):
                    raise result
                num_unfinished -= result[1].finished
                yield result
        finally:
            if num_unfinished:
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
        device = self._device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            try:
                while self._obey():
                    with self._device_lock:
                        updates = self._loop.step()
                    self._hand_over(self._results(updates))
            except BaseException as error:  # panics of libraries written in Rust are no Exceptions
                self.error = error if isinstance(error, Exception) else EngineError(f"{error}")
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
                    self._event_loop.call_soon_threadsafe(self._on_break, self.error)
        self._end_all()

    def _obey(self) -> bool:
        """Carries out what was submitted, waiting for it when there is nothing to do; False: stop."""
        while not self._loop.has_work or not self._commands.empty():
            if (command := self._commands.get()) is None:
                return False
            with self._device_lock:
                command()
        return True

    def _add(self, call: _Call) -> None:
        try:
            call.indices = {request_id: i for i, request_id in enumerate(self._loop.add(call.requests))}
        except Exception as error:
            self._hand_over([(call, error)])
        self._calls.update(dict.fromkeys(call.indices, call))

    def _abort(self, call: _Call) -> None:
        for request_id in call.indices:
            self._calls.pop(request_id, None)
        self._loop.abort(call.indices)

    def _results(self, updates: list[TokenUpdate]) -> list[tuple[_Call, Result]]:
        calls = ((self._calls.pop if u.finished else self._calls.get)(u.request_id, None) for u in updates)
        return [(call, call.result(update)) for call, update in zip(calls, updates, strict=True) if call is not None]

    def _hand_over(self, results: list[tuple[_Call, Result]]) -> None:
        def put() -> None:
            for call, result in results:
                call.results.put_nowait(result)

        if results:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
                self._event_loop.call_soon_threadsafe(put)

    def _end_all(self) -> None:
        with self._door:
            self._closed = True
        while not self._commands.empty():  # who came last is told, too
            if (command := self._commands.get()) is not None:
                command()
        reason = "the server is stopping" if self.error is None else f"the engine has broken: {self.error}"
        calls = list(dict.fromkeys(self._calls.values()))
        self._hand_over([(call, EngineError(f"{reason}; ask again later.")) for call in calls])
        self._loop.abort(self._calls)
        while self.error is None and self._loop.has_work:
            self._loop.step()


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        with memory_errors():
            future.set_result(function())
    except BaseException as error:
        future.set_exception(error if isinstance(error, Exception) else EngineError(f"{error}"))
