"""What a tab shows while an answer comes: its text so far, a line of timing; and what it shows of a mistake."""

from __future__ import annotations

import functools
import html
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import gradio as gr

from vlm.errors import VlmError, counted
from vlm_app.core.renamed import flags, renamed
from vlm_app.demo.parts import LABELS

if TYPE_CHECKING:
    from vlm.api.async_pipeline import AsyncPipeline, TextDelta
    from vlm.processing.media.reading import ImageFile

Handler = Callable[..., AsyncGenerator[Any, None]]
log = logging.getLogger("vlm.demo")
ENDINGS = {"length": "it reached the most tokens allowed", "loop": "it began to repeat itself"}


class Clock:
    """Times one answer from when it was asked for."""

    def __init__(self) -> None:
        self._begin = self._first = self._last = time.perf_counter()
        self._tokens = self._early = 0  # in all; of the first delta
        self._ending = ""

    def observe(self, delta: TextDelta) -> None:
        self._last = time.perf_counter()
        if delta.update is not None and not self._tokens:
            self._first, self._early = self._last, len(delta.update.token_ids)
        self._tokens += len(delta.update.token_ids) if delta.update is not None else 0
        if delta.output is not None:
            self._tokens = len(delta.output.token_ids)
            self._ending = ENDINGS.get(delta.output.finish_reason, "")

    @property
    def line(self) -> str:
        total = self._last - self._begin
        parts = [
            f"first token {_seconds(self._first - self._begin)}",
            counted(self._tokens, "token"),
            f"{self._rate(total):,.0f} tokens/s",
            f"total {_seconds(total)}",
            f"ended because {self._ending}" if self._ending else "",
        ]
        return " · ".join(part for part in parts if part)

    def _rate(self, total: float) -> float:
        """Counts tokens a second after the first delta; of the whole where all came at once, as of a beam search."""
        later, since = self._tokens - self._early, self._last - self._first
        return later / since if later > 0 and since > 0 else self._tokens / max(total, 1e-9)


async def answers(
    model: AsyncPipeline, source: dict[str, Any], files: Sequence[ImageFile], sampling: dict[str, Any]
) -> AsyncGenerator[tuple[str, str], None]:
    """Yields (text so far, timing) of one input; leaving it early aborts the request. Raises InputError and its kin."""
    clock, text = Clock(), ""
    request = await model.request(source, files, **sampling)
    async with aclosing(model.stream(request)) as deltas:
        async for delta in deltas:
            clock.observe(delta)
            text = text + delta.text if delta.output is None else delta.output.text
            yield text, clock.line


def show_errors(handler: Handler) -> Handler:
    """Shows a mistake as its one sentence, and of our own ones no more than where to look."""

    @functools.wraps(handler)
    async def shown(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(handler(*args, **kwargs)) as states:
                async for state in states:
                    yield state
        except VlmError as error:
            raise shown_error(_in_the_pages_words(error)) from None
        except Exception:
            log.exception("a request failed")
            raise shown_error("the demo failed; its terminal says where.") from None

    return shown


def _in_the_pages_words(error: VlmError) -> str:
    """Returns an error's sentence in which settings are controls of the page, or options of the verb that shows it."""
    controls = {name: f"'{label}'" for name, label in LABELS.items()}
    return renamed(str(error), error, {**flags.get({}), **controls})


def shown_error(sentence: str) -> gr.Error:
    """Returns what shows a sentence in the page, as HTML, and nothing in its terminal."""
    return gr.Error(html.escape(sentence, quote=False), duration=20, print_exception=False)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
