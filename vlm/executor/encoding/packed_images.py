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
from vlm.executor.inputs.packing import batched, batched_by_size, largest_power_of_two
from vlm.executor.inputs.upload import kind_of, upload_images
from vlm.executor.memory import suppress_out_of_memory
from vlm.executor.networks import rounding_ahead
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.images.patches import PatchedVisionConfig, PatchLayout
from vlm.layers.metadata.packed import PackedMetadata
from vlm.ops.attention.packed_attention import tiles_of
from vlm.ops.layouts.tiles import TILE_ROWS
from vlm.parallel.collectives import Ranks
from vlm.requests.image import Image


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
        self.device, self.dtype = device, dtype
        self.graphs, self._graph_shapes = graphs, GraphShapes(after=1)
        self.config: PatchedVisionConfig = visual.config
        self._pass = rounding_ahead(visual, device)
        self.most, self.most_patches = most, most_patches

    def encode(self, images: Items[Image]) -> list[Tensor]:
        """Returns each image's features [rows, hidden]."""
        return [
            features
            for few in batched(list(images), self.most)
            for part in batched_by_size(few, self.most_patches, self._num_patches)
            for some in self._passes(part)
            for features in self._encode_pass(some).split([image.rows for image in some])
        ]

    def _passes(self, images: Items[Image]) -> Iterator[Items[Image]]:
        """Yields the images of each pass: of one size powers of two, so that passes come again and are graphs."""
        are_alike = self.graphs is not None and len({image.pixels.shape for image in images}) == 1
        while images:
            count = largest_power_of_two(len(images)) if are_alike else len(images)
            yield images[:count]
            images = images[count:]

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
        stacks = (list(alike) for _, alike in itertools.groupby(images, kind_of))
        values = [upload_images(alike, self.device, self.dtype) for alike in stacks]
        key = "patches", *(each.shape for each in values)
        # the memory of a graph stays taken: a larger image goes without
        is_usual = sum(map(self._num_patches, images)) <= self.most_patches
        if self.graphs is None or not is_usual or not self._graph_shapes.chooses(key):
            return self._pass_over(images)(*values)
        if key not in self.graphs:
            with suppress_out_of_memory():
                self.graphs.capture(key, self._pass_over(images), *values)
        if key not in self.graphs:
            self._graph_shapes.refuse(key)
            return self._pass_over(images)(*values)
        return self.graphs.run(key, *values)

    def _pass_over(self, images: Items[Image]) -> Callable[..., Tensor]:
        """Returns the pass over images of these sizes: their values, [n, C, H, W] of some that follow each other ->
        features."""
        layout = PatchLayout.of([image.pixels for image in images], self.config, self.device)
        batch = ForwardBatch(layout.positions, self._attention(layout.counts))
        within = [replace(batch, attention=self._attention(layout.windows))] if layout.windows else []

        def encode(*values: Tensor) -> Tensor:
            patches = layout.packed(itertools.chain.from_iterable(values), self.config)
            return self._pass(patches, layout.squares, batch, *within)

        return encode

    def _attention(self, counts: list[int]) -> PackedMetadata:
        """Returns attention among so many rows each, one after the other."""
        tiles = tiles_of(counts, TILE_ROWS if self.device.type == "cuda" else None)
        return PackedMetadata(torch.tensor(tiles, dtype=torch.int32).to(self.device, non_blocking=True))
