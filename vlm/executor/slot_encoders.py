"""The encoders of an engine of compiled graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.errors import InputError
from vlm.executor.encoders import Encoders
from vlm.executor.slot_inputs import encode_padded
from vlm.layers.forward_batch import HiddenStateRecorder
from vlm.requests.request import Request


class SlotEncoders(Encoders):
    """Networks whose sequences are right-padded."""

    def encode(self, pixel_values: Tensor) -> Tensor:
        assert self.visual is not None
        return self.visual(pixel_values=pixel_values.to(self.device, self.dtype).contiguous())["features"]

    @torch.inference_mode()
    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None) -> list[Tensor]:
        """Returns each request's hidden rows [T, hidden] of the encoder; InputError where more is asked for."""
        if recorder is not None:
            raise InputError("a compiled engine gives the last hidden states alone; give --backend torch.")
        texts = [r.encoder_input_ids for r in requests]
        parts = list(zip(self.tables(requests), texts, strict=True))
        hidden = encode_padded(self.encoder, parts, self.dtype, self.device)
        return [rows[: len(text)] for rows, text in zip(hidden, texts, strict=True)]
