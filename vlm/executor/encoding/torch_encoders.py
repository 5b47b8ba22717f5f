"""The encoders of an engine of torch modules."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.executor.adapters import AdapterCache
from vlm.executor.graph_pool import GraphPool, GraphShapes
from vlm.executor.inputs.packing import PackedTexts, pass_sizes
from vlm.executor.inputs.prompt_embeds import Parts, gather_prompt_embeds
from vlm.executor.networks import required, rounding_ahead
from vlm.layers.forward_batch import ForwardBatch, HiddenStateRecorder
from vlm.layers.metadata.packed import PackedMetadata
from vlm.requests.adapters import NO_ADAPTER


class TorchEncoders:
    """Modules of torch; with `graphs` passes over images are CUDA graphs."""

    def __init__(
        self,
        visual: Any,
        encoder: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_batch_size: int,
        graphs: GraphPool | None = None,
        adapters: AdapterCache | None = None,
    ):
        """`max_batch_size`: of images in a pass."""
        self.adapters = adapters or AdapterCache()
        self.visual, self.encoder, self.device, self.dtype, self.graphs = visual, encoder, device, dtype, graphs
        self._max_batch_size = max_batch_size
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._graph_shapes = GraphShapes()
        self._visual_pass = None if visual is None else rounding_ahead(visual, device)
        self._text_pass = None if encoder is None else rounding_ahead(encoder, device)

    def encode(self, pixel_values: Tensor) -> Tensor:
        visual = required(self._visual_pass)
        pixels = pixel_values.to(self.device, self.dtype, non_blocking=True)
        if self.graphs is None or not self._graph_shapes.chooses(pixels.shape[1:]):
            return visual(pixels)
        # what number of images comes together is chance, and to capture a graph for each would halt the work as often
        sizes = pass_sizes(len(pixels), self._max_batch_size)
        if missing := sum(sizes) - len(pixels):
            pixels = F.pad(pixels, (0, 0) * (pixels.ndim - 1) + (0, missing))
        parts = [self.graphs.replay(("encode", *part.shape), visual, part) for part in pixels.split(sizes)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def encode_texts(self, parts: Parts, adapter_ids: Items[int], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        texts = [tokens for _, tokens in parts]
        packed_texts = PackedTexts.from_texts(texts, [self.adapters[i] for i in adapter_ids])  # slots of banks
        inputs = packed_texts.to_device(self.device)
        prompt_embeds = gather_prompt_embeds(parts, self.encoder.config.vocab_size, self.device)
        rows_adapters = inputs.slots if any(i != NO_ADAPTER for i in adapter_ids) else None
        batch = ForwardBatch(
            inputs.positions, PackedMetadata(inputs.tiles), prompt_embeds, rows_adapters, recorder=recorder
        )
        return list(required(self._text_pass)(inputs.token_ids, batch).split(packed_texts.lengths))
