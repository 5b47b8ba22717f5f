"""Images of sequences that wait: in passes that follow each other, in bounded memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vlm.executor.encoding.waiting_images import WaitingImages
from vlm.requests.image import Image


class _Device:
    """Stands where encoders do: a pass of three images ends when it is told so."""

    max_encoder_batch_size = 3

    def __init__(self) -> None:
        self.passes: list[list[Image]] = []
        self.ended = self.full = False
        self.waits = 0

    def encode_beside(self, images: list[Image]) -> tuple[list[torch.Tensor], Any]:
        if self.full:
            raise torch.OutOfMemoryError("out of memory")
        self.passes.append(images)
        self.ended = False
        ready = SimpleNamespace(query=lambda: self.ended, wait=self._wait)
        return [image.pixels[0] for image in images], ready

    def _wait(self) -> None:
        self.waits += 1


def _sequence(number: int, *, has_image: bool = True) -> Any:
    image = Image(torch.full((1, 2, 4), float(number)), rows=2) if has_image else None
    return SimpleNamespace(id=number, request=SimpleNamespace(encoder_image=image))


@pytest.fixture
def device(monkeypatch) -> _Device:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return _Device()


def test_passes_follow_each_other_over_those_that_have_waited_longest(device):
    images, waiting = WaitingImages(device, 1 << 20), [_sequence(i, has_image=i != 1) for i in range(6)]
    images.encode(waiting)
    images.encode(waiting)  # the first pass is under way
    device.ended = True
    images.encode(waiting)
    device.ended = True
    images.encode(waiting)  # all have theirs
    numbers = [[int(image.pixels[0, 0, 0]) for image in each] for each in device.passes]
    assert numbers == [[0, 2, 3], [4, 5]]
    taken = images.take(waiting[4])
    assert taken is not None and torch.equal(taken, torch.full((2, 4), 4.0)) and device.waits == 1
    assert images.take(waiting[4]) is None and images.take(waiting[1]) is None and device.waits == 1


def test_no_pass_begins_beyond_the_memory_there_is(device):
    size = torch.zeros(2, 4).nbytes
    images, waiting = WaitingImages(device, 2 * size), [_sequence(i) for i in range(9)]
    for _ in range(3):
        images.encode(waiting)
        device.ended = True
    assert len(device.passes) == 1 and images.num_bytes == 3 * size
    images.drop(waiting[:1])  # it was aborted
    images.take(waiting[1])
    images.encode(waiting[1:])
    assert len(device.passes) == 2
    images.clear()
    assert images.num_bytes == 0
    none = WaitingImages(device, 0)
    none.encode(waiting)
    assert len(device.passes) == 2 and none.num_bytes == 0


def test_where_memory_runs_out_they_are_encoded_once_they_are_admitted(device):
    images, device.full = WaitingImages(device, 1 << 20), True
    images.encode([_sequence(0)])
    device.full = False
    images.encode([_sequence(0)])
    assert not device.passes and images.num_bytes == 0
