"""Encodes the first images of a call while the others are prepared: an idle GPU need not wait for all of them."""

from __future__ import annotations

from vlm.engine.engine_loop import EngineLoop
from vlm.engine.llm_engine import LLMEngine
from vlm.requests.image import Image
from vlm.requests.request import Request


class ImagesAhead:
    """Encodes images of requests that an engine, which is idle, will be given together.

    A pass begins when the one before it has ended, with all images that have come by then; or when it is full, or no
    other image is waited for: then it follows that one, and the host has time for what comes next.
    """

    def __init__(self, loop: EngineLoop, engine: LLMEngine, most: int, full: int | None = None):
        """`most`: requests that run at once; `full`: images of a pass that does not wait for others, `most` by default.
        Of more images than the engine keeps none is encoded ahead."""
        self._loop, self._engine, self._most, self._full = loop, engine, most, full or most
        self.begin()

    @classmethod
    def of(cls, loop: EngineLoop, most: int) -> ImagesAhead | None:
        """Returns None for an engine that takes no images or has no device of its own to work on meanwhile, or shares
        its work with ranks."""
        engine = loop.engine
        if not isinstance(engine, LLMEngine) or engine.encoders.visual is None or not engine.executor.asynchronous:
            return None
        return cls(loop, engine, most, engine.encoders.max_encoder_batch_size)

    def begin(self) -> None:
        """Starts anew: the engine is idle."""
        self._requests, self._room = self._most, self._engine.encoders.encoder_cache.capacity
        self._images: list[Image] = []  # of which no pass has begun

    def take(self, request: Request) -> bool:
        """Takes a request that is prepared. Says whether the device is at work and there is room for another one: then
        it costs nothing to wait for others."""
        self._requests, self._room = self._requests - 1, self._room - len(request.images)
        if self._requests < 0 or self._room < 0:
            return False
        self._images += request.images
        if len(self._images) >= self._full or not self._engine.encoders.is_encoding_ahead:
            self.encode()
        return self._engine.encoders.is_encoding_ahead and self._requests > 0 and self._room > 0

    def encode(self) -> None:
        """Begins with the images that have come."""
        images, self._images = self._images, []
        if images and not self._loop.encode_ahead(images):
            self._room = 0
