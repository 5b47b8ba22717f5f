"""Embeddings that the sequences of a batch bring for ids beyond the vocabulary, on the device."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlm.executor.inputs.upload import upload
from vlm.layers.forward_batch import PromptEmbeds

Parts = Items[tuple[Tensor | None, Items[int]]]  # (prompt table, tokens) of each sequence
PackedParts = Items[tuple[Tensor | None, npt.NDArray[np.int32]]]  # likewise, of tokens that are packed already


def gather_prompt_embeds(parts: Parts | PackedParts, vocab_size: int, device: torch.device) -> PromptEmbeds | None:
    """Returns the embeddings [n, hidden] of all parts, each (its own embeddings, tokens), and which of them each token
    is; None where no part has any."""
    if all(own is None for own, _ in parts):
        return None
    rows, index, begin = [], [], 0
    for own, tokens in parts:
        ids = np.asarray(tokens, np.int32)
        index.append(np.where(ids >= vocab_size, ids + np.int32(begin - vocab_size), np.int32(0)))
        if own is not None:
            rows.append(own)
            begin += len(own)
    return PromptEmbeds(joined(rows), upload([np.concatenate(index)], device)[0])


def joined(rows: Items[Tensor]) -> Tensor:
    """Returns rows [n, hidden] one after the other; those that are alone as they are."""
    return torch.cat(list(rows)) if len(rows) > 1 else rows[0]
