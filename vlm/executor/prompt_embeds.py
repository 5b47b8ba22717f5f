"""The rows of a batch that stand for ids beyond the vocabulary, on the device."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor


def virtual_rows(
    parts: list[tuple[Tensor | None, Items[int]]], vocab_size: int, device: torch.device
) -> tuple[Tensor, ...]:
    """What stands for ids beyond the vocabulary in rows of these (table, tokens), as Virtual has it; () for none."""
    if all(table is None for table, _ in parts):
        return ()
    tables, at, begin = [], [], 0
    for table, tokens in parts:
        at += [begin + token - vocab_size if token >= vocab_size else 0 for token in tokens]
        if table is not None:
            tables.append(table)
            begin += len(table)
    return torch.cat(tables), torch.tensor(at, dtype=torch.int32).to(device, non_blocking=True)
