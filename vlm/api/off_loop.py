"""Where a coroutine computes: off the event loop, which serves others meanwhile, unless the work is short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vlm.requests.token_update import Completion

T = TypeVar("T")
# what takes a fifth of a millisecond or so; a thread takes 20 to 50 µs, and more while others compute
SHORT_BODY, SHORT_TEXT, SHORT_OUTPUT = 2048, 512, 256  # bytes, characters, tokens


async def off_loop(is_short: bool, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Calls a function in a thread; one whose work is short where it is."""
    return function(*args, **kwargs) if is_short else await asyncio.to_thread(function, *args, **kwargs)


def is_short_input(*parts: Mapping[str, Any]) -> bool:
    """Says whether an input and its settings are numbers and a short text."""
    values = [value for part in parts for value in part.values()]
    length = sum(len(value) for value in values if isinstance(value, str))
    return length <= SHORT_TEXT and all(value is None or isinstance(value, str | int | float) for value in values)


def is_short_output(completion: Completion) -> bool:
    """Says whether a request has come to few tokens."""
    prompt = completion.request.decoder_prompt_token_ids  # some models' outputs are read with it
    return not completion.hypotheses and len(completion.token_ids) + len(prompt) <= SHORT_OUTPUT
