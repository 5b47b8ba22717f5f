"""Features of images are computed once each, and once more for each adapter."""

from __future__ import annotations

import torch

from vlm.executor.encoder_cache import EncoderCache
from vlm.requests.image import Image


def test_each_content_is_encoded_once_an_adapter():
    cat, again, dog = (Image(torch.full((3, 2, 2), value), rows=2) for value in (1.0, 1.0, 2.0))
    cache, encoded = EncoderCache(8), []

    def encode(images: list[Image]) -> list[torch.Tensor]:
        encoded.extend(float(image.pixels.mean()) for image in images)
        return [torch.full((2, 4), float(len(encoded))) for _ in images]

    first = cache.features([cat, again, dog], encode)
    assert encoded == [1.0, 2.0] and set(first) == {cat.key, dog.key}
    assert cache.features([again], encode)[cat.key] is first[cat.key] and len(encoded) == 2
    own = cache.features([cat], encode, adapter_id=3)
    assert len(encoded) == 3 and own[cat.key] is not first[cat.key]
    assert cache.features([cat], encode, adapter_id=3)[cat.key] is own[cat.key] and len(encoded) == 3
    assert (cache.hits, cache.misses) == (3, 3)
