"""Images of sequences that wait, encoded beside decoding: it need not rest for them once there are slots."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.config import ModelConfig
from vlm.executor.encoding.encoders import Encoders
from vlm.executor.memory import suppress_out_of_memory
from vlm.requests.sequence import Sequence

PART = 256  # of a device's memory that features may take while their sequences wait


@dataclass(frozen=True, eq=False)
class _Encoded:
    features: Tensor  # [num_features, hidden]
    ready: torch.cuda.Event


class WaitingImages:
    """Holds the features of images that cross-attention sees, from their pass until their sequences are admitted."""

    def __init__(self, encoders: Encoders, most_bytes: int):
        """`most_bytes`: of features, from which on no further pass begins; 0: none ever does."""
        self._encoders, self._most_bytes = encoders, most_bytes
        self._encoded: dict[int, _Encoded] = {}  # by the sequence's id
        self._last: torch.cuda.Event | None = None  # the end of the last pass

    @classmethod
    def of(cls, encoders: Encoders, decoder: ModelConfig) -> WaitingImages:
        """Returns one that begins no pass where the decoder is given no images as they are, the device has no stream
        for it, or ranks share the images: they would tell each other features while they do what they decode."""
        sees_images = decoder.cross_attention and encoders.encoder is None
        beside = sees_images and encoders.networks.stream is not None and encoders.ranks.size == 1
        memory = torch.cuda.get_device_properties(encoders.device).total_memory if beside else 0
        return cls(encoders, memory // PART)

    def encode(self, waiting: Iterable[Sequence]) -> None:
        """Begins a pass over the first images of those that wait and have none yet, once the last one has ended."""
        if self.num_bytes >= self._most_bytes or (self._last is not None and not self._last.query()):
            return
        images = ((s.id, s.request.encoder_image) for s in waiting if s.id not in self._encoded)
        known = ((number, image) for number, image in images if image is not None)
        if not (next_ones := dict(itertools.islice(known, self._encoders.max_encoder_batch_size))):
            return
        with suppress_out_of_memory():
            features, self._last = self._encoders.encode_beside([*next_ones.values()])
            for number, rows in zip(next_ones, features, strict=True):
                self._encoded[number] = _Encoded(rows, self._last)
            return
        self._most_bytes = 0  # there is too little for what is not needed yet

    @property
    def num_bytes(self) -> int:
        return sum(encoded.features.nbytes for encoded in self._encoded.values())

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """Forgets sequences that wait no more."""
        if self._encoded:
            for sequence in sequences:
                self._encoded.pop(sequence.id, None)

    def clear(self) -> None:
        self._encoded.clear()

    def take(self, sequence: Sequence) -> Tensor | None:
        """Returns the features of a sequence that is admitted, for which what follows waits; None: it has none."""
        if (encoded := self._encoded.pop(sequence.id, None)) is None:
            return None
        encoded.ready.wait()
        encoded.features.record_stream(torch.cuda.current_stream(encoded.features.device))
        return encoded.features
