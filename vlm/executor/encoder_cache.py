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
        self._features: OrderedDict[bytes, Tensor] = OrderedDict()

    def features(
        self,
        images: Items[Image],
        encode: Callable[[list[Image]], Items[Tensor]],
        *,
        adapter_id: int = NO_ADAPTER,
    ) -> dict[bytes, Tensor]:
        """Returns each image's features by its key; those that are not there are encoded, each once. Another adapter
        makes other features."""
        distinct, before = {image.key: image for image in images}, adapter_key(adapter_id)
        by_key = {key: self._features[before + key] for key in distinct if before + key in self._features}
        missing = [image for key, image in distinct.items() if key not in by_key]
        self.hits, self.misses = self.hits + len(images) - len(missing), self.misses + len(missing)
        if missing:
            results = encode(missing)
            by_key |= {image.key: features for image, features in zip(missing, results, strict=True)}
        for key in distinct:
            self._keep(before + key, by_key[key])
        return by_key

    def clear(self) -> None:
        self._features.clear()

    def _keep(self, key: bytes, features: torch.Tensor) -> None:
        if not self.capacity:
            return
        self._features[key] = features
        self._features.move_to_end(key)
        while len(self._features) > self.capacity:
            self._features.popitem(last=False)
