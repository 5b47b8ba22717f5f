"""Encodes the first texts of a call while the others are prepared: an idle GPU need not wait for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from vlm.engine.engine_loop import EngineLoop
from vlm.engine.llm_engine import LLMEngine
from vlm.requests.request import Request


class TextsAhead:
    """Has requests admitted that an engine, which is idle, is given together: first as soon as their texts are half a
    pass, for which the device takes longer than the host for the next ones, then by whole passes."""

    def __init__(self, loop: EngineLoop, most: int):
        """`most`: tokens of a pass."""
        self._loop, self._most = loop, most
        self.begin()

    @classmethod
    def of(cls, loop: EngineLoop) -> TextsAhead | None:
        """Returns None for an engine that has no encoder of texts or no device of its own, that shares its work with
        ranks, or that has a pass for each text."""
        engine = loop.engine
        if not isinstance(engine, LLMEngine) or engine.encoders.encoder is None or not engine.executor.asynchronous:
            return None
        return None if engine.encoders.batch_invariant else cls(loop, engine.encoders.max_encoder_tokens)

    def begin(self) -> None:
        """Starts anew: the engine is idle."""
        self._room = self._most // 2  # of the next pass
        self._tokens = self._longest = 0  # of texts that no pass has begun with

    def take(self, requests: Iterable[Request]) -> None:
        """Takes requests that were added."""
        lengths = [len(request.encoder_input_ids or ()) for request in requests]
        self._tokens, self._longest = self._tokens + sum(lengths), max(self._longest, *lengths)
        if self._tokens + self._longest > self._room:  # the next one might not fit
            self._pass()

    def end(self) -> None:
        """Begins with the last texts: their pass need not wait until the step is planned."""
        if self._tokens:
            self._pass()

    def _pass(self) -> None:
        self._room, self._tokens = self._most, 0
        self._loop.admit()
