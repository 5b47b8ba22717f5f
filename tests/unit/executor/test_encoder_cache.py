"""Features of images are computed once each, and once more for each adapter."""

from __future__ import annotations

import torch

from vlm.executor.encoding.cache import EncoderCache
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


def test_images_that_a_glance_says_are_new_are_encoded_before_they_have_keys():
    cat, dog, again, other = (Image(torch.full((3, 2, 2), value), rows=2) for value in (1.0, 2.0, 1.0, 3.0))
    cache, with_keys = EncoderCache(8), []

    def encode(images: list[Image]) -> list[torch.Tensor]:
        with_keys.append(["key" in vars(image) for image in images])
        return [image.pixels for image in images]

    assert set(cache.features([cat, dog], encode)) == {cat.key, dog.key}
    cache.features([other, again], encode)  # one of them may be there: keys say so
    assert with_keys == [[False, False], [True]] and (cache.hits, cache.misses) == (1, 3)


def test_images_alike_at_a_glance_are_told_apart():
    one = torch.zeros(3, 64, 64)
    two = one.clone()
    two[0, 0, 1] = 1.0  # not of those that a glance takes
    first, second = Image(one, rows=2), Image(two, rows=2)
    assert first.glance == second.glance and first.key != second.key
    cache = EncoderCache(1)
    for images in ([first, second], [first], [second]):
        features = cache.features(images, lambda images: [image.pixels for image in images])
        assert all(features[image.key] is image.pixels for image in images)
    cache.clear()
    assert not cache._kept
