"""The networks before the decoder: what runs them, and their features of images, each computed once."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor

from vlm.config import RuntimeConfig
from vlm.executor.encoder_cache import EncoderCache
from vlm.executor.graph_pool import GraphPool
from vlm.executor.packing import PackedTexts, batched
from vlm.executor.prompt_embeds import gather_prompt_embeds
from vlm.executor.timing import DeviceTimer
from vlm.layers.attention_metadata import PackedMetadata
from vlm.layers.forward_batch import ForwardBatch, HiddenStateRecorder
from vlm.requests.image import Image
from vlm.requests.request import Request

MAX_GRAPH_SHAPES = 16  # of images whose passes are CUDA graphs; those of further ones run as they are


class Encoders(ABC):
    """`visual` and `encoder`: an engine's networks but its decoder, anything with a `config`, or None."""

    def __init__(self, visual: Any, encoder: Any, device: torch.device, dtype: torch.dtype, runtime: RuntimeConfig):
        self.visual, self.encoder = visual, encoder
        self.device, self.dtype = device, dtype
        self.max_encoder_batch_size = runtime.max_encoder_batch_size
        self.max_encoder_tokens = runtime.max_encoder_tokens
        self.asynchronous = device.type == "cuda"
        self.encoder_cache = EncoderCache(runtime.encoder_cache_size)
        self.timer = DeviceTimer(device)

    # --- what a subclass does ---
    @abstractmethod
    def encode(self, pixel_values: Tensor) -> Tensor:
        """[n, C, H, W] -> features [n, rows, hidden] in the engine's type."""

    @abstractmethod
    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        """Returns each request's hidden rows [T, hidden] of the encoder; the recorder takes what else is asked for."""

    # --- calls ---
    @torch.inference_mode()
    def encode_images(self, images: Items[Image]) -> list[Tensor]:
        """Returns each image's features [rows, hidden], from the cache where they are there."""
        features = self.encoder_cache.features(images, self.encode_pixels)
        return [features[image.key] for image in images]

    @torch.inference_mode()
    def encode_pixels(self, pixels: Items[Tensor]) -> list[Tensor]:
        """[C, H, W] each -> features [rows, hidden] each; images of one shape share passes."""
        found: dict[int, Tensor] = {}
        for numbers in numbers_by_shape(pixels):
            for part in batched(numbers, self.max_encoder_batch_size):
                # a graph's output is overwritten by its next run
                features = self.encode(torch.stack([pixels[i] for i in part])).clone()
                found |= zip(part, features, strict=True)
        return [found[i] for i in range(len(pixels))]

    def free_cached_memory(self) -> None:
        """Waits for the device and gives back the memory of what is kept for later."""
        self.encoder_cache.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def tables(self, requests: list[Request]) -> list[Tensor | None]:
        """Returns each request's prompt table [n, hidden]: the given rows, then its images' features."""
        features = iter(self.encode_images([image for request in requests for image in request.images]))
        given = [r.prompt_table.rows.to(self.device, self.dtype) if r.prompt_table else None for r in requests]
        parts = [[*([g] if g is not None else []), *itertools.islice(features, len(r.images))]
                 for r, g in zip(requests, given, strict=True)]  # fmt: skip
        return [torch.cat(rows) if rows else None for rows in parts]


def numbers_by_shape(pixels: Items[Tensor]) -> list[list[int]]:
    """Returns the numbers of the images of each shape, in the order in which the shapes come first."""
    found: dict[torch.Size, list[int]] = {}
    for number, image in enumerate(pixels):
        found.setdefault(image.shape, []).append(number)
    return list(found.values())


class TorchEncoders(Encoders):
    """Modules of torch; with `graphs` passes over images are CUDA graphs."""

    def __init__(
        self,
        visual: Any,
        encoder: Any,
        device: torch.device,
        dtype: torch.dtype,
        runtime: RuntimeConfig,
        graphs: GraphPool | None = None,
    ):
        super().__init__(visual, encoder, device, dtype, runtime)
        self.graphs = graphs
        self._graph_shapes: set[torch.Size] = set()

    def encode(self, pixel_values: Tensor) -> Tensor:
        """[n, C, H, W] -> features [n, rows, hidden] in the engine's type."""
        assert self.visual is not None
        pixels = pixel_values.to(self.device, self.dtype, non_blocking=True)
        if self.graphs is None or not self._has_graphs(pixels.shape[1:]):
            return self.visual(pixels)
        key = ("encode", *pixels.shape)
        if key not in self.graphs:
            self.graphs.capture(key, self.visual, pixels)
        return self.graphs.run(key, pixels)

    def _has_graphs(self, shape: torch.Size) -> bool:
        """Says whether passes over images of a shape are CUDA graphs: those of the first shapes that come."""
        if len(self._graph_shapes) < MAX_GRAPH_SHAPES:
            self._graph_shapes.add(shape)
        return shape in self._graph_shapes

    @torch.inference_mode()
    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        """Returns each request's hidden rows [T, hidden] of the encoder; the recorder takes what else is asked for."""
        texts = [request.encoder_input_ids for request in requests]
        packed_texts = PackedTexts.from_texts(texts, [0] * len(texts))
        token_ids, positions, _, tiles = packed_texts.tensors(self.device)
        prompt_embeds = gather_prompt_embeds(
            list(zip(self.tables(requests), texts, strict=True)), self.encoder.config.vocab_size, self.device
        )
        batch = ForwardBatch(positions, PackedMetadata(tiles), prompt_embeds, recorder=recorder)
        return list(self.encoder(token_ids, batch).split(packed_texts.lengths))
