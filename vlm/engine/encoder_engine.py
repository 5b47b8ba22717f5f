"""An engine without its decoder: it encodes, and no request can be queued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vlm.config import EngineLimits, ModelConfig
from vlm.errors import InputError
from vlm.executor.encoding.encoders import Encoders
from vlm.requests.request import Request
from vlm.requests.token_update import TokenUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.layers.adapters.base import Layers
    from vlm.layers.forward_batch import HiddenStateRecorder
    from vlm.requests.image import Image


class EncoderEngine:
    """Stands where an LLMEngine does; it has the encoders alone."""

    has_work = False
    last_batch_size = 0
    eos_token_ids = ()

    def __init__(self, config: ModelConfig, encoders: Encoders, limits: EngineLimits, *, name: str):
        """`config` describes what a request's ids are, `name` is the family's, for sentences."""
        self.config, self.encoders, self.limits, self._name = config, encoders, limits, name

    def add(self, requests: list[Request]) -> list[int]:
        """Raises InputError: there is nothing that could write."""
        raise InputError(
            f"{self._name} is loaded as an encoder alone, which writes no text; ask it for encodings (/v1/embeddings,"
            " output_hidden_states, vlm encode), or load the whole model."
        )

    def abort(self, request_id: int) -> None:
        """Does nothing: no request has an id."""

    def usage(self) -> None:
        """Returns nothing: it holds no sequences."""

    def load_adapter(self, adapter_id: int, adapter: Mapping[str, Layers]) -> None:
        """Loads what an adapter changes of the encoder, under a number that none has had. Raises LimitError where there
        is no room for it."""
        self.encoders.networks.adapters.add(adapter_id, adapter)

    def unload_adapter(self, adapter_id: int) -> None:
        """Takes no more requests for an adapter."""
        self.encoders.networks.adapters.remove(adapter_id)

    def step(self, *, streamed: bool = True) -> list[TokenUpdate]:
        return []

    def rest(self) -> None:
        """Does nothing: it holds no requests."""

    def recover(self) -> list[TokenUpdate]:
        """Recovers after an encoding that ran out of memory."""
        self.free_cached_memory()
        return []

    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None = None) -> list[Tensor]:
        """Returns each request's hidden rows [T, hidden] of the encoder; the recorder takes what else is asked for."""
        self.encoders.networks.adapters.hold({request.adapter_id for request in requests})
        return self.encoders.encode_texts(requests, recorder)

    def encode_images(self, images: list[Image], *, cached: bool) -> list[Tensor]:
        """Returns each image's features [rows, hidden]; `cached`: those that are kept are not computed again."""
        return self.encoders.encode_images(images) if cached else self.encoders.encode_pixels(images)

    def free_cached_memory(self) -> None:
        """Gives back the device memory of what is kept for later."""
        self.encoders.free_cached_memory()
