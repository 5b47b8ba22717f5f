"""An engine for coroutines: one thread drives its loop, requests and updates cross in queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

import torch

from vlm.engine.async_call import AsyncCall, OnUpdate, ignore
from vlm.engine.engine_loop import EngineLoop
from vlm.engine.fair_lock import device_lock
from vlm.engine.leading import Engine
from vlm.engine.step_watch import STEP_SECONDS, StepWatch
from vlm.errors import EngineError, VlmError
from vlm.executor.memory import memory_errors
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, TokenUpdate

T = TypeVar("T")


class AsyncEngine:
    """Used from one event loop, that of `start`. Nobody else may touch the engine until `stop` has returned."""

    def __init__(
        self,
        engine: Engine,
        on_end: Callable[[Completion], None] = lambda completion: None,
        on_break: Callable[[Exception], None] = lambda error: None,
        on_step: Callable[[int, float], None] = lambda batch_size, seconds: None,
        step_seconds: float = STEP_SECONDS,
    ):
        """`on_end` and `on_step`: see EngineLoop; they are called in the engine's thread. `on_break` is called once, in
        the event loop, with what the engine cannot recover from, as is a step of more than `step_seconds`."""
        self._loop, self._on_break = EngineLoop(engine, on_end, on_step), on_break
        self.error: Exception | None = None  # what has broken the engine
        self.hangs = False  # that is so, and its thread may never return
        self._watch = StepWatch(step_seconds)
        self._device = engine.encoders.device
        self._device_lock = device_lock(self._device)
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._door, self._closed = Lock(), False  # closed: no command is carried out any more
        self._calls: dict[int, AsyncCall] = {}  # by the engine's id; the thread's own
        self._waiting: set[AsyncCall] = set()  # those of callers; the event loop's own
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts its thread, once. Raises EngineError the second time."""
        if self._thread.ident is not None:
            raise EngineError("the engine was started before, and is started once; load the model again.")
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()
        self._watching = asyncio.create_task(self._break_when_it_hangs())

    def is_running(self) -> bool:
        """Says whether its thread has the engine."""
        return self._thread.is_alive()

    async def stop(self) -> None:
        """Ends what still runs, with an EngineError for who waits for it; the pool is full afterwards. A thread that
        hangs is left behind."""
        if self._thread.ident is None:
            return
        self._commands.put(None)
        while self._thread.is_alive() and not self.hangs:
            await asyncio.to_thread(self._thread.join, 1)
        self._watching.cancel()

    async def generate(
        self,
        requests: list[Request],
        *,
        final_only: bool = False,
        on_update: OnUpdate = ignore,
    ) -> AsyncGenerator[tuple[int, TokenUpdate], None]:
        """Yields (index of the request, what steps brought for it) as it comes, or `final_only` once, when the request
        has ended; leaving the iteration early aborts the rest. `on_update` is called in the event loop with the same
        of every step, as soon as it is there.

        Raises LimitError and InputError for what the engine cannot hold, EngineError when it has broken.
        """
        call, num_unfinished = AsyncCall(requests, final_only, on_update), len(requests)
        with self._submitted(call, partial(self._add, call)):
            try:
                while num_unfinished:
                    for index, update in (await call.updates()).items():
                        num_unfinished -= update.finished
                        yield index, update
            finally:
                if num_unfinished:
                    self._commands.put(partial(self._abort, call))

    async def run(self, function: Callable[[], T]) -> T:
        """Calls a function between two steps, in the engine's thread: the way to its networks."""
        call = AsyncCall()
        with self._submitted(call, partial(self._call, call, function)):
            return await call.result()

    @contextlib.contextmanager
    def _submitted(self, call: AsyncCall, command: Callable[[], None]) -> Iterator[None]:
        """Lets the thread carry out a command, for whose results a caller waits meanwhile."""
        self._waiting.add(call)
        try:
            with self._door:
                if self._thread.ident is None:
                    raise EngineError("the engine was not started; call start() first, within the event loop.")
                if self._closed:
                    raise EngineError("the engine has stopped; load the model again.")
                if self._event_loop is not asyncio.get_running_loop():
                    raise EngineError(
                        "the engine serves the event loop in which start() was called; ask it in that one."
                    )
                self._commands.put(command)
            yield
        finally:
            self._waiting.discard(call)

    async def _break_when_it_hangs(self) -> None:
        """Tells all who wait, once a step takes too long."""
        await self._watch.overrun()
        self.hangs = True
        self.error = EngineError(
            f"a step has taken longer than {self._watch.seconds:g} s, so its device or another rank hangs; raise"
            " step_seconds for a model that is so slow"
        )
        with self._door:
            self._closed = True
        for call in self._waiting:
            call.results.put_nowait(self._end_of_calls())
        self._on_break(self.error)

    # --- the engine's thread ---
    def _run(self) -> None:
        device = self._device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            try:
                while not self.hangs and self._obey():
                    self._hand_over(self._results(self._step()))
            except BaseException as error:  # panics of libraries written in Rust are no Exceptions
                if not self.hangs:
                    self.error = error if isinstance(error, Exception) else EngineError(f"{error}")
                    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
                        self._event_loop.call_soon_threadsafe(self._on_break, self.error)
            if not self.hangs:  # else all have been told
                self._end_all()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Holds the device, under watch: a step, a command and what ends them alike may capture, allocate and hang."""
        with self._watch.step(), self._device_lock:
            yield

    def _obey(self) -> bool:
        """Carries out what was submitted, waiting for it when there is nothing to do; False: stop."""
        while not self._loop.has_work or not self._commands.empty():
            if self._commands.empty():
                self._loop.engine.rest()
            if (command := self._commands.get()) is None:
                return False
            with self._at_work():
                command()
        return True

    def _step(self) -> list[TokenUpdate]:
        with self._at_work():  # apart from what waits for commands, which would hold what a step brought
            return self._loop.step()

    def _call(self, call: AsyncCall, function: Callable[[], object]) -> None:
        if call not in self._waiting:  # its caller has gone
            return
        try:
            with memory_errors():
                result = function()
        except BaseException as error:
            result = error if isinstance(error, Exception) else EngineError(f"{error}")
        self._hand_over([(call, result)])

    def _add(self, call: AsyncCall) -> None:
        try:
            call.indices = {request_id: i for i, request_id in enumerate(self._loop.add(call.requests))}
        except Exception as error:
            self._hand_over([(call, error)])
        self._calls.update(dict.fromkeys(call.indices, call))

    def _abort(self, call: AsyncCall) -> None:
        for request_id in call.indices:
            self._calls.pop(request_id, None)
        self._loop.abort(call.indices)

    def _results(self, updates: list[TokenUpdate]) -> list[tuple[AsyncCall, object]]:
        calls = ((self._calls.pop if u.finished else self._calls.get)(u.request_id, None) for u in updates)
        return [(call, call.result_of(update)) for call, update in zip(calls, updates, strict=True) if call is not None]

    def _hand_over(self, results: list[tuple[AsyncCall, object]]) -> None:
        def put() -> None:
            for call, result in results:
                call.take(result)

        if results:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
                self._event_loop.call_soon_threadsafe(put)

    def _end_all(self) -> None:
        with self._door:
            self._closed = True
        while not self._commands.empty():  # who came last is told, too
            if (command := self._commands.get()) is not None:
                with self._at_work():
                    command()
        calls = list(dict.fromkeys(self._calls.values()))
        self._hand_over([(call, self._end_of_calls()) for call in calls])
        self._loop.abort(self._calls)
        while self.error is None and self._loop.has_work:
            with self._at_work():
                self._loop.step()

    def _end_of_calls(self) -> EngineError:
        """Returns what all are told. What an error of anything but ours says may be of one request."""
        if self.error is None:
            return EngineError("the engine is stopping; ask again later.")
        said = self.error if isinstance(self.error, VlmError) else type(self.error).__name__
        error = EngineError(f"the engine has broken: {said}; ask again later.")
        error.__cause__ = self.error
        return error
