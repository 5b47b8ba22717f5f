"""Encoders by themselves: what a decoder would see of an input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vlm.api.capabilities import Capabilities
from vlm.api.outputs import Encoding
from vlm.engine.admission import check_encoder_input
from vlm.engine.leading import Engine
from vlm.errors import InputError
from vlm.executor.inputs.packing import batched, batched_by_kinds, batched_by_size
from vlm.layers.forward_batch import HiddenStateRecorder
from vlm.processing.processor import Processor
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams


class EncoderCalls:
    """Runs an engine's encoder alone."""

    def __init__(self, engine: Engine, processor: Processor, capabilities: Capabilities):
        self._engine, self._processor, self._capabilities = engine, processor, capabilities

    def encodings(self, inputs: list[dict[str, Any]], *, hidden_states: bool, attentions: bool) -> list[Encoding]:
        """Returns an Encoding an input, which is given as its fields. Raises InputError for what has none."""
        capabilities, builder = self._capabilities, self._processor.request_builder
        images_alone = all({"images", "pixel_values"} >= one.keys() for one in inputs)
        if capabilities.takes_prompt and (not capabilities.has_text_encoder or images_alone):
            return [self._features(one, more=hidden_states or attentions) for one in inputs]
        requests = [builder.build(one, SamplingParams()) for one in inputs]
        if (encoder := self._processor.encoder) is not None:
            for request in requests:
                check_encoder_input(request, encoder, capabilities.max_encoder_input_len)
        more = {"hidden_states": hidden_states, "attentions": attentions}
        return [e for batch in self._batches(requests) for e in self._encoded(batch, **more)]

    def _batches(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Yields what the encoder takes in one pass."""
        encoders = self._engine.encoders
        if encoders.encoder is None:
            yield from batched(requests, encoders.max_encoder_batch_size)
            return
        for batch in batched_by_size(requests, encoders.max_encoder_tokens, lambda r: len(r.source_ids)):
            most = encoders.networks.adapters.num_slots
            yield from batched_by_kinds(batch, most, lambda r: {r.adapter_id} if r.adapted else set())

    def _features(self, fields: dict[str, Any], *, more: bool) -> Encoding:
        """Returns the rows of a prompt table that an input's images become."""
        images = self._processor.images.of_prompt(fields.get("images"), fields.get("pixel_values"))
        if not images or more:
            images_alone = "encodes images alone, to last hidden states; give images, and ask for nothing else"
            what = images_alone if self._engine.encoders.visual else "has no encoder; give a model that has one"
            raise InputError(f"{self._processor.family.name} {what}.")
        return Encoding(torch.cat(self._engine.encode_images(list(images), cached=True)).cpu())

    def _encoded(self, requests: list[Request], *, hidden_states: bool, attentions: bool) -> list[Encoding]:
        """Returns what one pass makes of its requests."""
        encoders = self._engine.encoders
        if encoders.encoder is None:
            if hidden_states or attentions:
                raise InputError(f"{self._processor.family.name} gives the last hidden states of an image alone.")
            features = self._engine.encode_images([r.source_image for r in requests], cached=False)
            return [Encoding(x.cpu()) for x in features]
        recorder = HiddenStateRecorder(attentions) if hidden_states or attentions else None
        texts = [r.source_ids for r in requests]
        last = self._engine.encode_texts(requests, recorder)
        if recorder is None:
            return [Encoding(x.cpu(), ids) for x, ids in zip(last, texts, strict=True)]
        states = zip(*(x.split([len(ids) for ids in texts]) for x in recorder.hidden_states), strict=True)
        weights = zip(*recorder.attentions, strict=True) if attentions else ([] for _ in texts)
        on_host = lambda tensors: tuple(t.cpu() for t in tensors)  # noqa: E731
        return [
            Encoding(x.cpu(), ids, on_host((*s, x)) if hidden_states else None, on_host(w) if attentions else None)
            for x, ids, s, w in zip(last, texts, states, weights, strict=True)
        ]
