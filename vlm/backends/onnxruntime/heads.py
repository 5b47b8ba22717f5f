"""Output heads in 8 bits: on a CPU a decode step spends a fifth of its time in one that is kept as it is."""

from __future__ import annotations

import torch
from torch import nn

from vlm.layers.context import ModelContext
from vlm.layers.heads import Head, TiedHead
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.int8 import Int8

HEAD = "head"  # what says in `ignore` that heads stay


def heads_of_8_bits(network: nn.Module) -> None:
    """Puts heads of 8 bits in the place of those that are kept as they are. A table of embeddings stays."""
    for parent in list(network.modules()):
        for name, head in list(parent.named_children()):
            if isinstance(head, Head | TiedHead) and isinstance(head.method, Dense):
                weight = head.weight
                assert isinstance(weight, torch.Tensor)
                setattr(parent, name, _of_8_bits(weight))


def _of_8_bits(weight: torch.Tensor) -> Head:
    """Returns a head [vocabulary, hidden] with a scale a token."""
    with torch.device("meta"):
        head = Head(weight.shape[1], weight.shape[0], context=ModelContext())
        head.keep(Int8())
    head.load_state_dict(Int8().quantize(weight), assign=True)
    return head.requires_grad_(False)
