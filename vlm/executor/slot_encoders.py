"""The encoders of an engine of compiled graphs: ONNX Runtime's, TensorRT's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlm.backends.graphs.io import GraphIO
from vlm.config import Config, ModelConfig
from vlm.errors import InputError
from vlm.executor.encoders import Encoders
from vlm.executor.prompt_embeds import virtual_rows
from vlm.layers.attention import HiddenStateRecorder
from vlm.requests.request import Request

Tensors = Mapping[str, Tensor]


class Graph(Protocol):
    """A compiled graph of vlm.backends.graphs.io."""

    io: GraphIO

    def bind(self, inputs: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        """Ties tensors to the graph's names; an output that is not given is allocated. Each call is a run on what the
        inputs hold then, and returns all outputs."""


@dataclass(frozen=True)
class Network:
    """A graph and what it was built from."""

    config: Config
    graph: Graph

    def __call__(self, **inputs: Tensor) -> Tensors:
        wanted = {port.name: inputs[port.name] for port in self.graph.io.inputs}
        return self.graph.bind(wanted, {})()


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
        hidden = self._hidden(list(zip(self._tables(requests), texts, strict=True)))
        return [rows[: len(text)] for rows, text in zip(hidden, texts, strict=True)]

    def _hidden(self, parts: list[tuple[Tensor | None, Items[int]]]) -> Tensor:
        lengths = self._integers([len(tokens) for _, tokens in parts])
        return self.encoder(**self._tokens(parts, self.encoder.config), lengths=lengths)["hidden"]

    def _tokens(self, parts: list[tuple[Tensor | None, Items[int]]], config: ModelConfig) -> dict[str, Tensor]:
        """Returns the tokens of each (table, tokens), right-padded, and one table for all of them."""
        ids = self._integers([token for _, tokens in parts for token in tokens])
        table = torch.zeros(1, config.embedding_size, dtype=self.dtype, device=self.device)
        if virtual := virtual_rows(parts, config.vocab_size, self.device):
            table, at = virtual
            ids = torch.where(ids < config.vocab_size, ids, config.vocab_size + at)
        padded = pad_sequence(list(ids.split([len(tokens) for _, tokens in parts])), batch_first=True)
        return {"token_ids": padded, "prompt_table": table}

    def _integers(self, values: list[int]) -> Tensor:
        return torch.tensor(values).to(self.device, non_blocking=True)
