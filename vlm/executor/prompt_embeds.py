"""Embeddings that the sequences of a batch bring for ids beyond the vocabulary, on the device."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from vlm.layers.forward_batch import PromptEmbeds

Parts = list[tuple[Tensor | None, Items[int]]]  # (prompt table, tokens) of each sequence


def gather_prompt_embeds(parts: Parts, vocab_size: int, device: torch.device) -> PromptEmbeds | None:
    """Returns the embeddings [n, hidden] of all parts, each (its own embeddings, tokens), and which of them each token
    is; None where no part has any."""
    if all(own is None for own, _ in parts):
        return None
    rows, index, begin = [], [], 0
    for own, tokens in parts:
        index += [begin + token - vocab_size if token >= vocab_size else 0 for token in tokens]
        if own is not None:
            rows.append(own)
            begin += len(own)
    return PromptEmbeds(torch.cat(rows), torch.tensor(index, dtype=torch.int32).to(device, non_blocking=True))
