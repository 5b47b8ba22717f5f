"""Images that are encoded while others of a call are prepared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.ahead.images_ahead import ImagesAhead
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig


class Device:
    """Encodes until it is told that it has ended."""

    def __init__(self, capacity: int, room: int = 100):
        self.is_encoding_ahead, self.passes, self.room = False, [], room
        self.encoder_cache = SimpleNamespace(capacity=capacity)
        self.encoders = self

    def encode_ahead(self, images: list[Any]) -> bool:
        if len(images) > self.room:
            return False
        self.passes.append(list(images))
        self.is_encoding_ahead = True
        return True


def ahead(device: Device, most: int = 10) -> ImagesAhead:
    loop: Any = device
    return ImagesAhead(loop, loop, most)


def request(*images: str) -> Any:
    return SimpleNamespace(images=images)


def test_a_pass_has_what_has_come_since_the_last_one_began():
    device = Device(capacity=10)
    taken = ahead(device)
    assert [taken.take(request(name)) for name in "abc"] == [True] * 3 and device.passes == [["a"]]
    device.is_encoding_ahead = False
    assert taken.take(request("d", "e")) and device.passes == [["a"], ["b", "c", "d", "e"]]
    assert taken.take(request())  # a text has time, too


def test_a_full_pass_waits_for_none_and_the_rest_goes_when_nothing_else_comes():
    device = Device(capacity=10)
    loop: Any = device
    taken = ImagesAhead(loop, loop, 10, full=2)
    assert [taken.take(request(name)) for name in "abcd"] == [True] * 4
    assert device.passes == [["a"], ["b", "c"]] and device.is_encoding_ahead
    taken.encode()
    taken.encode()
    assert device.passes == [["a"], ["b", "c"], ["d"]]


def test_without_images_nobody_waits():
    device = Device(capacity=10)
    assert not ahead(device).take(request()) and not device.passes


def test_no_more_than_run_at_once_or_are_kept():
    few, small = Device(capacity=10), Device(capacity=3)
    taken = ahead(few, most=2)
    assert [taken.take(request(name)) for name in "abc"] == [True, False, False]
    taken.begin()  # the engine is idle again
    few.is_encoding_ahead = False
    assert taken.take(request("d")) and few.passes == [["a"], ["d"]]
    taken = ahead(small)
    assert [taken.take(request(name, name)) for name in "ab"] == [True, False] and small.passes == [["a", "a"]]
    assert not ahead(Device(capacity=0)).take(request("a"))


def test_where_memory_runs_out_images_go_with_their_requests():
    device = Device(capacity=10, room=0)
    taken = ahead(device)
    assert [taken.take(request(name)) for name in "ab"] == [False, False] and not device.passes


def test_outputs_are_the_same(tmp_path, monkeypatch):
    """Features come from the cache then."""
    pipe = Pipeline(engine_dir(tiny.llava(seed=3), tmp_path, max_batch_size=3), RuntimeConfig(device="cpu"))
    rows = range(pipe.config.vocab_size, pipe.config.vocab_size + pipe.processor.vision.num_features)
    generator = torch.Generator().manual_seed(0)
    size = pipe.processor.vision.image_size
    inputs = [
        {"pixel_values": torch.randn(1, 3, *size, generator=generator), "decoder_prompt_token_ids": [7, *rows, 9 + i]}
        for i in range(7)
    ]
    assert ImagesAhead.of(pipe.loop, 3) is None  # the CPU would do nothing else meanwhile
    want = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=5, ignore_eos=True)]
    encoded, cache = [], pipe.llm.encoders.encoder_cache
    monkeypatch.setattr(ImagesAhead, "of", lambda loop, most: ImagesAhead(loop, pipe.llm, most))
    encode_ahead = type(pipe.llm.encoders).encode_ahead
    monkeypatch.setattr(
        type(pipe.llm.encoders),
        "encode_ahead",
        lambda self, images: encoded.append(images) or encode_ahead(self, images),
    )
    cache.clear()
    cache.misses = 0
    assert [out.token_ids for out in pipe.generate(inputs, max_new_tokens=5, ignore_eos=True)] == want
    assert encoded and cache.misses == len(inputs)


def test_images_are_begun_before_slots_are_filled(tmp_path, monkeypatch):
    """The host's part of a prompt's pass follows while the device is at the images."""
    pipe: Any = Pipeline(engine_dir(tiny.llava(seed=3), tmp_path, max_batch_size=3), RuntimeConfig(device="cpu"))
    rows = range(pipe.config.vocab_size, pipe.config.vocab_size + pipe.processor.vision.num_features)
    size, order = pipe.processor.vision.image_size, []
    networks, state = pipe.llm.encoders.networks, pipe.llm.executor.state
    recorded = {"encode": networks, "add": pipe.llm, "admit": state}
    for name, owner in recorded.items():
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, name=name, call=call: order.append(name) or call(*args))
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    inputs = [{"pixel_values": each, "decoder_prompt_token_ids": [7, *rows, 9]} for each in pixels]
    pipe.generate(inputs[0], max_new_tokens=1)
    assert order == ["add", "encode", "admit"]
    order.clear()
    pipe.llm.encoders.encoder_cache.clear()
    # a device that is always at work: only the first image's pass begins at once
    monkeypatch.setattr(type(pipe.llm.encoders), "is_encoding_ahead", property(lambda encoders: "encode" in order))
    monkeypatch.setattr(ImagesAhead, "of", lambda loop, most: ImagesAhead(loop, pipe.llm, most))
    pipe.generate(inputs, max_new_tokens=1)
    assert order == ["encode", "add", "add", "encode", "admit"]


def test_a_model_of_texts_alone_has_no_images_ahead(tmp_path, monkeypatch):
    texts, images = (
        Pipeline(engine_dir(model, tmp_path / name), RuntimeConfig(device="cpu"))
        for name, model in (("t5", tiny.t5()), ("llava", tiny.llava()))
    )
    for pipe in (texts, images):
        monkeypatch.setattr(pipe.llm.executor, "asynchronous", True)
    assert ImagesAhead.of(texts.loop, 3) is None and ImagesAhead.of(images.loop, 3) is not None
