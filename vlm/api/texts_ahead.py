"""Encodes the first texts of a call while the others are prepared: an idle GPU need not wait for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from vlm.engine.engine_loop import EngineLoop
from vlm.engine.llm_engine import LLMEngine
from vlm.requests.request import Request


class TextsAhead:
    """Has requests admitted that an engine, which is idle, is given together, as soon as their texts are half a pass:
    the device is at it for longer than the host prepares as many."""

    def __init__(self, loop: EngineLoop, least: int):
        """`least`: tokens of texts that are worth an admission of their own."""
        self._loop, self._least = loop, least
        self.begin()

    @classmethod
    def of(cls, loop: EngineLoop) -> TextsAhead | None:
        """Returns None for an engine that has no encoder of texts or no device of its own, that shares its work with
        ranks, or that has a pass for each text."""
        engine = loop.engine
        if not isinstance(engine, LLMEngine) or engine.encoders.encoder is None or not engine.executor.asynchronous:
            return None
        return None if engine.encoders.batch_invariant else cls(loop, engine.encoders.max_encoder_tokens // 2)

    def begin(self) -> None:
        """Starts anew: the engine is idle."""
        self._tokens = 0  # of texts that no admission has begun with

    def take(self, requests: Iterable[Request]) -> None:
        """Takes requests that were added."""
        self._tokens += sum(len(request.encoder_input_ids or ()) for request in requests)
        if self._tokens >= self._least:
            self._tokens = 0
            self._loop.admit()
