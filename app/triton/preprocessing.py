"""Texts and images -> the engine's tensors, as a model of Triton's Python backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vlm.config import VisionConfig
from vlm.processing.media.pool import MediaPool
from vlm.processing.media.reading import WarmUp, pixels
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
        self._media = MediaPool(ServerConfig().media)
        if source := self._processor.processor_source:
            self._media.prepare(WarmUp(source))
            self._media.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        return list(self._pool.map(self._answer, requests))

    def finalize(self) -> None:
        self._pool.shutdown()
        self._media.close()
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
            **(padded_pixels(rows, vision) if (vision := self._processor.vision) else {}),
        }

    def _request(self, row: Row) -> Request:
        source, files = read_text(self._processor, row)
        if files:
            question = self._processor.drawn_question(source)
            images = self._loop.submit(pixels(self._media, files, self._processor.image_source, question)).result()
            source = self._processor.with_pixels(source, images)
        return self._processor.request_builder.build(source, SamplingParams())


def padded_pixels(rows: list[Request], vision: VisionConfig) -> Tensors:
    """Returns pixel_values [batch, images, C, H, W] and how many of each row there are; where a model takes several
    sizes, which, as images are padded on the right and below. At least one image wide: an ensemble waits for every
    tensor of its steps."""
    images_by_row = [r.images if r.encoder_image is None else (r.encoder_image,) for r in rows]
    count, shapes = (
        max(1, *map(len, images_by_row)),
        [image.pixels.shape for images in images_by_row for image in images],
    )
    none = vision.image_size if vision.fixed_size else (1, 1)
    largest = map(max, zip(*shapes, strict=True)) if shapes else (vision.num_channels, *none)
    table, sizes = np.zeros((len(rows), count, *largest), np.float32), np.zeros((len(rows), count, 2), np.uint32)
    for row, images in enumerate(images_by_row):
        for number, image in enumerate(images):
            height, width = sizes[row, number] = image.pixels.shape[1:]
            table[row, number, :, :height, :width] = image.values
    tensors = {"pixel_values": table, "num_images": _lengths(images_by_row)}
    return tensors if vision.fixed_size else {**tensors, "image_sizes": sizes}


def _lengths(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    return np.array([[len(row)] for row in rows], np.uint32)
