"""Texts and images -> the engine's tensors, as a model of Triton's Python backend."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vlm.config import VisionConfig
from vlm.processing.workers import ImageWorkers, MediaLimits
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.tensors.inputs import Row, padded, read_text
from vlm_app.server.tensors.specs import TEXT_IN, check_tensors
from vlm_app.triton.backend import Loop, Tensors, answer, config_of, processor_of


class Preprocessing:
    """Requests are read side by side, images in worker processes with the server's budgets."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config, self._processor = config_of(args), processor_of(args)
        self._pool, self._loop = ThreadPoolExecutor(), Loop()
        self._workers = ImageWorkers(ServerConfig().preprocess_workers, MediaLimits())
        if self._processor.vision:
            self._workers.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        return list(self._pool.map(self._answer, requests))

    def finalize(self) -> None:
        self._pool.shutdown()
        self._workers.close()
        self._loop.close()

    def _answer(self, request: Any) -> Any:
        return answer(request, self._tensors, self._config)

    def _tensors(self, inputs: Tensors) -> Tensors:
        size, tensors = check_tensors(inputs, TEXT_IN)
        rows = [self._request({name: array[i] for name, array in tensors.items()}) for i in range(size)]
        encoder = self._processor.encoder is not None
        ids = [list((r.encoder_input_ids if encoder else r.decoder_prompt_token_ids) or ()) for r in rows]
        starts = [list(r.decoder_prompt_token_ids) for r in rows]
        return {
            "input_ids": padded(ids, 0, np.uint32),
            "sequence_length": _lengths(ids),
            "decoder_input_ids": padded(starts, 0, np.uint32),
            "decoder_input_lengths": _lengths(starts),
            **(_pixels(rows, vision) if (vision := self._processor.vision) else {}),
        }

    def _request(self, row: Row) -> Request:
        source, files = read_text(self._processor, row)
        if files:
            images = self._loop.submit(self._workers.pixels(files, self._processor.image_source)).result()
            source = self._processor.with_pixels(source, images)
        return self._processor.request_builder.build(source, SamplingParams())


def _pixels(rows: list[Request], vision: VisionConfig) -> Tensors:
    """[batch, images, C, H, W], at least one image wide: an ensemble waits for every tensor of its steps."""
    found = [[image.pixel_values for image in r.images] if r.pixel_values is None else [r.pixel_values] for r in rows]
    table = np.zeros((len(rows), max(1, *map(len, found)), vision.num_channels, *vision.image_size), np.float32)
    for row, images in zip(table, found, strict=True):
        for place, image in zip(row, images, strict=False):
            place[:] = image
    return {"pixel_values": table, "num_images": _lengths(found)}


def _lengths(rows: list[list[Any]]) -> np.ndarray:
    return np.array([[len(row)] for row in rows], np.uint32)
