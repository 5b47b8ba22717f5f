"""What one coroutine waits for of an engine in another thread."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from vlm.errors import OutOfMemoryError
from vlm.executor.memory import FULL
from vlm.requests.request import Request
from vlm.requests.token_update import TokenUpdate


@dataclass(eq=False)
class AsyncCall:
    """Requests, or a function, and what has come of them."""

    requests: list[Request] = field(default_factory=list)
    indices: dict[int, int] = field(default_factory=dict)  # by the engine's id; its thread's own
    # (index of the request, what a step brought for it), or what the function returns, or an Exception
    results: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def result(self) -> Any:
        """Returns the next result. Raises one that is an Exception."""
        result = await self.results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def result_of(self, update: TokenUpdate) -> tuple[int, TokenUpdate] | Exception:
        if update.completion is not None and update.completion.out_of_memory:
            return OutOfMemoryError(FULL)
        return self.indices[update.request_id], update
