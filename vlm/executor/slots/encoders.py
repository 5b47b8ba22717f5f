"""The encoders of an engine of compiled graphs."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from vlm.backends.graphs.network import Network
from vlm.config import ModelConfig, VisionConfig
from vlm.errors import InputError
from vlm.executor.adapters import AdapterCache
from vlm.executor.graph_pool import GraphPool
from vlm.executor.inputs.prompt_embeds import Parts
from vlm.executor.networks import required
from vlm.executor.slots.inputs import encode_padded
from vlm.layers.forward_batch import HiddenStateRecorder


class SlotEncoders:
    """Networks whose sequences are right-padded."""

    graphs: GraphPool | None = None
    stream: torch.cuda.Stream | None = None  # their buffers are decoding's, too

    def __init__(
        self,
        visual: Network[VisionConfig] | None,
        encoder: Network[ModelConfig] | None,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.visual, self.encoder, self.device, self.dtype = visual, encoder, device, dtype
        self.adapters = AdapterCache()

    def encode(self, pixel_values: Tensor) -> Tensor:
        outputs = required(self.visual)(pixel_values=pixel_values.to(self.device, self.dtype).contiguous())
        return outputs["features"].clone()  # the next run may overwrite it

    def encode_texts(self, parts: Parts, adapter_ids: Items[int], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        """Encodes texts as they are: such an engine has no adapters."""
        if recorder is not None:
            said = "a compiled engine gives the last hidden states alone; build it with backend torch."
            raise InputError(said, settings=("backend",))
        hidden = encode_padded(required(self.encoder), parts, self.dtype, self.device)
        return [rows[: len(tokens)] for rows, (_, tokens) in zip(hidden, parts, strict=True)]
