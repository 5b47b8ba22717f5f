"""What one coroutine waits for of an engine in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vlm.executor.memory import full
from vlm.requests.request import Request
from vlm.requests.token_update import TokenUpdate

OnUpdate = Callable[[int, TokenUpdate], None]  # of a request's index and what a step brought for it


def ignore(index: int, update: TokenUpdate) -> None:
    """Does nothing with an update: nobody listens."""


@dataclass(eq=False)
class AsyncCall:
    """Requests, or a function, and what has come of them."""

    requests: list[Request] = field(default_factory=list)
    final_only: bool = False  # an output is waited for until it has ended
    on_update: OnUpdate = ignore  # called in the event loop, with every step's
    indices: dict[int, int] = field(default_factory=dict)  # by the engine's id; its thread's own
    # (index of the request, what a step brought for it), or what the function returns, or an Exception
    results: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def take(self, result: Any) -> None:
        """Takes what has come for it over, within the event loop, and wakes who waits for that: with what `on_update`
        raises, too, which is no other call's."""
        if self.requests and not isinstance(result, Exception):
            index, update = result
            try:
                self.on_update(index, update)
            except Exception as error:
                self.results.put_nowait(error)
                return
            if self.final_only:
                if not update.finished:
                    return
                result = index, update.whole()
        self.results.put_nowait(result)

    async def result(self) -> Any:
        """Returns the next result. Raises one that is an Exception."""
        result = await self.results.get()
        if isinstance(result, Exception):
            raise result
        return result

    async def updates(self) -> dict[int, TokenUpdate]:
        """Returns what has come since the last call, of each request in one piece: who is behind is not told step by
        step. Raises a result that is an Exception, after those before it."""
        index, update = await self.result()
        updates = {index: update}
        while not self.results.empty():
            if isinstance(result := self.results.get_nowait(), Exception):
                self.results.put_nowait(result)
                break
            index, update = result
            updates[index] = updates[index].followed_by(update) if index in updates else update
        return updates

    def result_of(self, update: TokenUpdate) -> tuple[int, TokenUpdate] | Exception:
        if update.completion is not None and update.completion.out_of_memory:
            return full()
        return self.indices[update.request_id], update
