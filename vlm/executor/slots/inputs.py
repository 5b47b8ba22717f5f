"""What passes of a compiled graph take: right-padded tokens, and one prompt table for all of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlm.backends.graphs.network import Network
from vlm.config import ModelConfig
from vlm.executor.inputs.prompt_embeds import Parts, gather_prompt_embeds


def encode_padded(encoder: Network[ModelConfig], parts: Parts, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the hidden rows [B, T, hidden] of each sequence, stale beyond its tokens."""
    lengths = integers([len(tokens) for _, tokens in parts], device)
    return encoder(**padded_tokens(parts, encoder.config, dtype, device), lengths=lengths)["hidden"]


def padded_tokens(parts: Parts, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Returns the tokens [B, T] and the rows that ids beyond the vocabulary address, [rows, width] of `dtype`."""
    ids = integers([token for _, tokens in parts for token in tokens], device)
    table = torch.zeros(1, config.embedding_size, dtype=dtype, device=device)
    if prompt_embeds := gather_prompt_embeds(parts, config.vocab_size, device):
        table = prompt_embeds.rows
        ids = torch.where(ids < config.vocab_size, ids, config.vocab_size + prompt_embeds.index)
    padded = pad_sequence(list(ids.split([len(tokens) for _, tokens in parts])), batch_first=True)
    return {"token_ids": padded, "prompt_table": table}


def integers(values: list[int], device: torch.device) -> Tensor:
    """Returns the values [n] int64 on the device."""
    return torch.tensor(values).to(device, non_blocking=True)
