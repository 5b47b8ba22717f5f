"""The networks before the decoder, and their features of images, each computed once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Sequence as Items
from typing import Any, Protocol

import torch
from torch import Tensor

from vlm.config import RuntimeConfig
from vlm.executor.adapters import AdapterCache
from vlm.executor.encoding.cache import EncoderCache
from vlm.executor.encoding.packed_images import PatchEncoder
from vlm.executor.graph_pool import GraphPool
from vlm.executor.inputs.packing import batched, largest_power_of_two
from vlm.executor.inputs.prompt_embeds import Parts, joined
from vlm.executor.inputs.upload import kind_of, upload_images
from vlm.executor.timing import DeviceTimer
from vlm.layers.forward_batch import HiddenStateRecorder
from vlm.layers.images.patches import PatchedVisionConfig
from vlm.layers.images.tiles import TiledVisionConfig, cut_tiles
from vlm.parallel.collectives import ALONE, Ranks
from vlm.requests.image import Image
from vlm.requests.request import Request

PASS_PIXELS = 1 << 19  # of a batch-invariant pass: one over fewer takes a GPU about as long


class EncoderNetworks(Protocol):
    """An engine's networks but its decoder, of one layout: `visual` and `encoder`, with a `config`, or None."""

    visual: Any
    encoder: Any
    device: torch.device
    dtype: torch.dtype
    adapters: AdapterCache
    graphs: GraphPool | None  # of passes over images
    stream: torch.cuda.Stream | None  # on which passes over images may run beside decoding

    def encode(self, pixel_values: Tensor) -> Tensor:
        """Encodes [n, C, H, W] -> features [n, rows, hidden] in the engine's type; what follows them is of no image."""
        ...

    def encode_texts(self, parts: Parts, adapter_ids: Items[int], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        """Returns the hidden rows [T, hidden] of each text, by its prompt table and adapter; the recorder takes what
        else is asked for. Raises InputError where there is no more than the last hidden states."""
        ...


class Encoders:
    """Batches what is to be encoded, and keeps the features of images by their content.

    `ranks` that run an engine together have the whole visual network each: every one encodes its share of the images.
    """

    def __init__(self, networks: EncoderNetworks, runtime: RuntimeConfig, ranks: Ranks = ALONE):
        self.ranks = ranks
        self.networks, self.visual, self.encoder = networks, networks.visual, networks.encoder
        self.device, self.dtype = networks.device, networks.dtype
        self.max_encoder_batch_size = runtime.max_encoder_batch_size
        self.max_encoder_tokens = runtime.max_encoder_tokens
        self.batch_invariant = runtime.batch_invariant
        self.asynchronous = self.device.type == "cuda"
        self.encoder_cache = EncoderCache(runtime.encoder_cache_size)
        self.patch_encoder = patch_encoder(networks, runtime)
        self.timer = DeviceTimer(self.device)
        self._ahead: torch.cuda.Event | None = None  # the end of what was encoded ahead

    @torch.inference_mode()
    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        """Returns each request's hidden rows [T, hidden] of the encoder; the recorder takes what else is asked for."""
        texts = [request.source_ids for request in requests]
        parts = list(zip(self.prompt_embeds(requests), texts, strict=True))
        return self.networks.encode_texts(parts, [request.adapter_id for request in requests], recorder)

    @torch.inference_mode()
    def encode_images(self, images: Items[Image]) -> list[Tensor]:
        """Returns each image's features [rows, hidden], from the cache where they are there."""
        features = self.encoder_cache.features(images, self.encode_pixels)
        return [features[image.key] for image in images]

    def encode_ahead(self, images: Items[Image]) -> None:
        """Begins with images whose requests are to come, for the cache. Decoding that was begun would be waited for."""
        with self.timer("encode"):
            self.encode_images(images)
        if self.device.type == "cuda":
            self._ahead = torch.cuda.Event()
            self._ahead.record()

    @property
    def is_encoding_ahead(self) -> bool:
        """Says whether the device is encoding images ahead."""
        return self._ahead is not None and not self._ahead.query()

    @torch.inference_mode()
    def encode_pixels(self, images: Items[Image]) -> list[Tensor]:
        """Returns each image's features [rows, hidden], computed now; images of one shape share passes, and those of
        any where a network takes patches."""
        with self._beside_decoding() as handed_on:
            return [handed_on(features) for features in self._features_of(images)]

    @torch.inference_mode()
    def encode_beside(self, images: Items[Image]) -> tuple[list[Tensor], torch.cuda.Event]:
        """Begins with images on a stream that the networks have for it, for which nothing waits that is under way;
        returns each one's features [rows, hidden], and what says when they are there."""
        ready = torch.cuda.Event()
        with torch.cuda.stream(self.networks.stream), self.timer("encode"):
            features = self._features_of(images)
            ready.record()
        return features, ready

    def _features_of(self, images: Items[Image]) -> list[Tensor]:
        if self.patch_encoder is not None:
            shared = self._encoding_ranks(len(images)) > 1
            return self.patch_encoder.encode_share(images, self.ranks) if shared else self.patch_encoder.encode(images)
        config = getattr(self.visual, "config", None)
        if not isinstance(config, TiledVisionConfig):
            return self._features_by_shape(images)
        tiles = [_tiles(image, config) for image in images]
        features = iter(self._features_by_shape([tile for each in tiles for tile in each]))
        return [torch.cat(list(itertools.islice(features, len(each)))) for each in tiles]

    def _features_by_shape(self, images: Items[Image]) -> list[Tensor]:
        """Returns the features of images, or tiles, of which those of one shape share passes."""
        by_number: dict[int, Tensor] = {}
        for numbers in numbers_by_kind(images):
            size = self._pass_size(images[numbers[0]].pixels)
            for part in batched(numbers, size * self._encoding_ranks(len(numbers))):
                by_number |= zip(part, self._encoded([images[i] for i in part], size), strict=True)
        return [by_number[i] for i in range(len(images))]

    def _encoding_ranks(self, count: int) -> int:
        """Returns how many ranks share so many images: what one of them encodes alone need not be sent."""
        return self.ranks.size if count > 1 and not self.batch_invariant else 1

    def _encoded(self, images: Items[Image], size: int) -> Tensor:
        """Returns the features [n, rows, hidden] of images of one shape, of which each rank takes a part of at most
        `size`."""
        if self._encoding_ranks(len(images)) == 1:
            return self.networks.encode(self._values(images, size))[: len(images)]
        share = -(-len(images) // self.ranks.size)
        own = images[self.ranks.rank * share : (self.ranks.rank + 1) * share]
        own = [*own, *[images[0]] * (share - len(own))]  # all ranks send as much
        features = self.networks.encode(self._values(own, size))[:share]
        gathered = self.ranks.all.all_gather(features.flatten(1))  # [share, ranks · rows · hidden]
        by_rank = gathered.view(share, self.ranks.size, *features.shape[1:]).transpose(0, 1)
        return by_rank.flatten(0, 1)[: len(images)]

    @contextlib.contextmanager
    def _beside_decoding(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Runs passes over images on a stream of their own: they wait for no burst that is under way. What comes after
        waits for them; tensors that it takes are handed on."""
        if (stream := self.networks.stream) is None:
            yield lambda tensor: tensor
            return
        following = torch.cuda.current_stream(self.device)

        def handed_on(tensor: Tensor) -> Tensor:
            tensor.record_stream(following)
            return tensor

        with torch.cuda.stream(stream):
            yield handed_on
        following.wait_stream(stream)

    def _pass_size(self, pixels: Tensor) -> int:
        """Returns how many images [C, H, W] of a shape are encoded in one pass: at most, or always."""
        if not self.batch_invariant:
            return self.max_encoder_batch_size
        # a power of two is one pass, whatever else: see TorchEncoders.encode
        return largest_power_of_two(min(self.max_encoder_batch_size, max(1, PASS_PIXELS // pixels[0].numel())))

    def _values(self, images: Items[Image], size: int) -> Tensor:
        """Returns pixel values [n, C, H, W] of images of one kind on the device. The batch-invariant pass has `size`
        images, whatever there are."""
        values = upload_images(images, self.device, self.dtype)
        if not self.batch_invariant:
            return values
        return torch.cat((values, values[:1].expand(size - len(values), -1, -1, -1)))

    def free_cached_memory(self) -> None:
        """Waits for the device and gives back the memory of what is kept for later."""
        self.encoder_cache.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def prompt_embeds(self, requests: list[Request]) -> list[Tensor | None]:
        """Returns each request's prompt embeddings [n, hidden]: its table's rows, then its images' features."""
        features = iter(self.encode_images([image for request in requests for image in request.images]))
        tables = [r.prompt_table.rows.to(self.device, self.dtype) if r.prompt_table else None for r in requests]
        parts = [[*([g] if g is not None else []), *itertools.islice(features, len(r.images))]
                 for r, g in zip(requests, tables, strict=True)]  # fmt: skip
        return [joined(rows) if rows else None for rows in parts]


def patch_encoder(networks: EncoderNetworks, runtime: RuntimeConfig) -> PatchEncoder | None:
    """Returns what packs the images of a network that takes patches; None for any other."""
    if not isinstance(getattr(networks.visual, "config", None), PatchedVisionConfig):
        return None
    limits = {"most": runtime.max_encoder_batch_size, "most_patches": runtime.max_encoder_tokens}
    return PatchEncoder(networks.visual, networks.device, networks.dtype, **limits, graphs=networks.graphs)


def _tiles(image: Image, config: TiledVisionConfig) -> list[Image]:
    """Returns the tiles of an image, each as one of its own."""
    tiles = cut_tiles(image.pixels, config.tile_size)
    return [Image(tile, config.tile_rows, normalization=image.normalization) for tile in tiles]


def numbers_by_kind(images: Items[Image]) -> list[list[int]]:
    """Returns the numbers of the images of each kind, in the order in which these come first."""
    groups: dict[Hashable, list[int]] = {}
    for number, image in enumerate(images):
        groups.setdefault(kind_of(image), []).append(number)
    return list(groups.values())
