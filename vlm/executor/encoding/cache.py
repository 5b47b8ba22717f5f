"""Features of images, kept by content: what a request brings again is not encoded again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from vlm.requests.adapters import NO_ADAPTER, adapter_key
from vlm.requests.image import Image


class EncoderCache:
    """Features of images by content, on the device; the longest unused give way."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.hits = self.misses = 0
        self._kept: OrderedDict[bytes, tuple[Tensor, bytes]] = OrderedDict()  # features and the image's glance, by key

    def features(
        self,
        images: Items[Image],
        encode: Callable[[list[Image]], Items[Tensor]],
        *,
        adapter_id: int = NO_ADAPTER,
    ) -> dict[bytes, Tensor]:
        """Returns each image's features by its key; those that are not there are encoded, each once. Another adapter
        makes other features."""
        before = adapter_key(adapter_id)
        # a key takes milliseconds, in which the device is at work already where a glance says that all are new
        encoded = encode([*images]) if images and self._are_new(images) else None
        distinct = {image.key: image for image in images}
        by_key = {key: self._kept[before + key][0] for key in distinct if before + key in self._kept}
        missing = [image for key, image in distinct.items() if key not in by_key]
        self.hits, self.misses = self.hits + len(images) - len(missing), self.misses + len(missing)
        if missing:
            results = encode(missing) if encoded is None else encoded
            by_key |= {image.key: features for image, features in zip(missing, results, strict=True)}
        for key, image in distinct.items():
            self._keep(before + key, by_key[key], image.glance)
        return by_key

    def clear(self) -> None:
        self._kept.clear()

    def _are_new(self, images: Items[Image]) -> bool:
        """Says whether no image is equal to another one or to one whose features are kept, for what a glance sees."""
        glances = {image.glance for image in images}
        return len(glances) == len(images) and glances.isdisjoint(glance for _, glance in self._kept.values())

    def _keep(self, key: bytes, features: torch.Tensor, glance: bytes) -> None:
        if not self.capacity:
            return
        self._kept[key] = features, glance
        self._kept.move_to_end(key)
        while len(self._kept) > self.capacity:
            self._kept.popitem(last=False)
