"""The networks as graphs take them: named tensors in, named tensors out (see vlm.backends.graphs.io)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vlm.backends.graphs.io import caches, updated
from vlm.config import ModelConfig
from vlm.layers.forward_batch import ForwardBatch, PromptEmbeds
from vlm.layers.metadata.slots import Caches, CrossMetadata, PaddedMetadata, SlotMetadata, places

Tensors = dict[str, Tensor]


class Graph(nn.Module):
    """Gives a network another calling convention."""

    network: Any  # a Module with a `config`, and of a decoder `logits` and `write_cross_kv`

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network


class VisualGraph(Graph):
    def forward(self, inputs: Tensors) -> Tensors:
        return {"features": self.network(inputs["pixel_values"])}


class EncoderGraph(Graph):
    def forward(self, inputs: Tensors) -> Tensors:
        ids = inputs["token_ids"]
        batch, span = ids.shape
        attention = PaddedMetadata(inputs["lengths"], span)
        forward = ForwardBatch(_counted(ids), attention, _prompt_embeds(inputs, self.network.config))
        return {"hidden": self.network(ids.flatten(), forward).unflatten(0, (batch, span))}


class CrossGraph(Graph):
    """Computes what the decoder makes of an encoder's output, once a sequence."""

    def forward(self, inputs: Tensors) -> Tensors:
        hidden = inputs["hidden"]
        attention = CrossMetadata(hidden.shape[0])
        self.network.write_cross_kv(hidden.flatten(0, 1), ForwardBatch(_counted(hidden), attention))
        return dict(zip(caches("cross", len(attention.caches)), _flat(attention.caches), strict=True))


class DecoderGraph(Graph):
    """Computes prompts and decode steps: one graph for both."""

    def forward(self, inputs: Tensors) -> Tensors:
        config, ids, starts = self.network.config, inputs["token_ids"], inputs["starts"]
        batch, span = ids.shape
        attention = SlotMetadata(starts, span, _caches(inputs, "self", config))
        if config.cross_attention:
            attention.cross_caches, attention.cross_lengths = _caches(inputs, "cross", config), inputs["cross_lengths"]
        prompt_embeds = None if config.cross_attention else _prompt_embeds(inputs, config)
        forward = ForwardBatch(places(starts, span).flatten(), attention, prompt_embeds)
        hidden = self.network(ids.flatten(), forward).unflatten(0, (batch, span))
        last = (inputs["counts"] - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[2])
        logits = self.network.logits(hidden.gather(1, last)[:, 0]).float()
        names = [updated(name) for name in caches("self", config.num_layers)]
        return {"logits": logits} | dict(zip(names, _flat(attention.self_caches), strict=True))


GRAPHS = {"visual": VisualGraph, "encoder": EncoderGraph, "cross": CrossGraph, "decoder": DecoderGraph}


def _counted(x: Tensor) -> Tensor:
    """Returns the positions [B · S] int64 of rows x [B, S, ...] that begin their sequences."""
    batch, span = x.shape[:2]
    return torch.arange(span, device=x.device).expand(batch, -1).flatten()


def _caches(inputs: Tensors, kind: str, config: ModelConfig) -> Caches:
    tensors = [inputs[name] for name in caches(kind, config.num_layers)]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _flat(pairs: Caches) -> list[Tensor]:
    return [tensor for pair in pairs for tensor in pair]


def _prompt_embeds(inputs: Tensors, config: ModelConfig) -> PromptEmbeds:
    index = (inputs["token_ids"].flatten() - config.vocab_size).clamp(min=0)
    return PromptEmbeds(inputs["prompt_table"], index)
