"""Images of any size, several of them packed into one pass of a network that takes patches.

A pass has some three hundred kernels, which a host launches in 15 to 25 ms: as long as a GPU takes for a page. Passes
over images of sizes that come again are CUDA graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vlm.executor.graph_pool import GraphPool, GraphShapes
from vlm.executor.packing import batched, batched_by_tokens
from vlm.executor.upload import upload_stacked
from vlm.layers.attention_metadata import PackedMetadata
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.patches import PatchedVisionConfig, PatchLayout
from vlm.ops.packed_attention import tiles_of
from vlm.ops.tiles import TILE_ROWS
from vlm.parallel.collectives import Ranks
from vlm.requests.image import Image
from vlm.requests.pixels import Normalization, pixel_values


class PatchEncoder:
    """Encodes images with a network of patches; passes have `most` images and so many patches at most, one that has
    more of them alone. With `graphs` they are graphs where their sizes are met again."""

    def __init__(
        self,
        visual: Any,
        device: torch.device,
        dtype: torch.dtype,
        *,
        most: int,
        most_patches: int,
        graphs: GraphPool | None = None,
    ):
        self.visual, self.device, self.dtype = visual, device, dtype
        self.graphs, self._graph_shapes = graphs, GraphShapes(after=1)
        self.config: PatchedVisionConfig = visual.config
        self.most, self.most_patches = most, most_patches

    def encode(self, images: Items[Image]) -> list[Tensor]:
        """Returns each image's features [rows, hidden]."""
        return [
            features
            for few in batched(list(images), self.most)
            for part in batched_by_tokens(few, self.most_patches, self._num_patches)
            for number in self._pass_sizes(part)
            for features in self._encode_pass(part[number]).split([image.rows for image in part[number]])
        ]

    def _pass_sizes(self, images: Items[Image]) -> Iterator[slice]:
        """Yields the images of each pass: of one size powers of two, so that passes come again and are graphs."""
        is_alike = self.graphs is not None and len({image.pixels.shape for image in images}) == 1
        first = 0
        while first < len(images):
            rest = len(images) - first
            count = 1 << (rest.bit_length() - 1) if is_alike else rest
            yield slice(first, first + count)
            first += count

    def encode_share(self, images: Items[Image], ranks: Ranks) -> list[Tensor]:
        """Does the same, of which each rank encodes a share."""
        shares = [images[rank :: ranks.size] for rank in range(ranks.size)]
        most = max(sum(image.rows for image in share) for share in shares)
        own = torch.zeros(most, self.config.hidden_size, dtype=self.dtype, device=self.device)
        if shares[ranks.rank]:
            encoded = torch.cat(self.encode(shares[ranks.rank]))
            own[: len(encoded)] = encoded
        by_rank = ranks.all.all_gather(own).view(most, ranks.size, -1).unbind(1)
        rows = [[image.rows for image in share] for share in shares]
        parts = [iter(each[: sum(n)].split(n)) for each, n in zip(by_rank, rows, strict=True)]
        return [next(parts[i % ranks.size]) for i in range(len(images))]

    def _num_patches(self, image: Image) -> int:
        rows, columns = self.config.patches_of(*image.pixels.shape[1:])
        return rows * columns

    def _encode_pass(self, images: Items[Image]) -> Tensor:
        """Returns the features [sum of rows, hidden] of images."""
        stacks = [(kind, list(some)) for kind, some in itertools.groupby(images, _kind)]
        # levels, a quarter of the bytes, are normalized on the device
        pixels = [upload_stacked([image.pixels for image in some], self.device) for _, some in stacks]
        key = "patches", *((kind, len(some)) for kind, some in stacks)
        # the memory of a graph stays taken: a larger image goes without
        is_usual = sum(map(self._num_patches, images)) <= self.most_patches
        if self.graphs is None or not is_usual or not self._graph_shapes.chooses(key):
            return self._pass_over(images)(*pixels)
        if key not in self.graphs:
            self.graphs.capture(key, self._pass_over(images), *pixels)
        return self.graphs.run(key, *pixels).clone()  # its next run overwrites it

    def _pass_over(self, images: Items[Image]) -> Callable[..., Tensor]:
        """Returns the pass over images of these sizes: their pixels on the device, [n, C, H, W] of those of one kind
        that follow each other -> features."""
        layout = PatchLayout.of([image.pixels for image in images], self.config, self.device)
        batch = ForwardBatch(layout.positions, self._attention(layout.counts))
        within = [replace(batch, attention=self._attention(layout.windows))] if layout.windows else []
        normalizations = [normalization for (_, _, normalization), _ in itertools.groupby(images, _kind)]

        def encode(*pixels: Tensor) -> Tensor:
            stacks = (pixel_values(*pair).to(self.dtype) for pair in zip(pixels, normalizations, strict=True))
            patches = layout.packed(itertools.chain.from_iterable(stacks), self.config)
            return self.visual(patches, layout.squares, batch, *within)

        return encode

    def _attention(self, counts: list[int]) -> PackedMetadata:
        """Returns attention among so many rows each, one after the other."""
        tiles = tiles_of(counts, TILE_ROWS if self.device.type == "cuda" else None)
        return PackedMetadata(torch.tensor(tiles, dtype=torch.int32).to(self.device, non_blocking=True))


def _kind(image: Image) -> tuple[torch.Size, torch.dtype, Normalization | None]:
    """Returns what images have in common that are stacked."""
    return image.pixels.shape, image.pixels.dtype, image.normalization
