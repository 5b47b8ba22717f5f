"""Images of any size, several of them packed into one pass of a network that takes patches."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vlm.executor.packing import batched, batched_by_tokens
from vlm.executor.upload import upload_stacked
from vlm.layers.attention_metadata import PackedMetadata
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.patches import PatchedVisionConfig, pack
from vlm.ops.packed_attention import tiles_of
from vlm.ops.tiles import TILE_ROWS
from vlm.parallel.collectives import Ranks
from vlm.requests.image import Image
from vlm.requests.pixels import pixel_values


class PatchEncoder:
    """Encodes images with a network of patches; passes have `most` images and so many patches at most, one that has
    more of them alone."""

    def __init__(self, visual: Any, device: torch.device, dtype: torch.dtype, *, most: int, most_patches: int):
        self.visual, self.device, self.dtype = visual, device, dtype
        self.config: PatchedVisionConfig = visual.config
        self.most, self.most_patches = most, most_patches

    def encode(self, images: Items[Image]) -> list[Tensor]:
        """Returns each image's features [rows, hidden]."""
        return [
            features
            for few in batched(list(images), self.most)
            for part in batched_by_tokens(few, self.most_patches, self._num_patches)
            for features in self._encode_pass(part).split([image.rows for image in part])
        ]

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
        packed = pack([self._values(image) for image in images], self.config)
        batch = ForwardBatch(packed.positions, self._attention(packed.counts))
        if not packed.windows:
            return self.visual(packed.patches, packed.squares, batch)
        within = replace(batch, attention=self._attention(packed.windows))
        return self.visual(packed.patches, packed.squares, batch, within)

    def _attention(self, counts: list[int]) -> PackedMetadata:
        """Returns attention among so many rows each, one after the other."""
        tiles = tiles_of(counts, TILE_ROWS if self.device.type == "cuda" else None)
        return PackedMetadata(torch.tensor(tiles, dtype=torch.int32).to(self.device, non_blocking=True))

    def _values(self, image: Image) -> Tensor:
        """Returns pixel values on the device: levels, a quarter of the bytes, are normalized there."""
        [pixels] = upload_stacked([image.pixels], self.device)
        return pixel_values(pixels, image.normalization).to(self.dtype)
