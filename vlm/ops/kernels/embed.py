"""A program a row and part of its width: the row of the vocabulary's table, or of the prompt embeddings,
and that of its position."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs

TILE = 2048


@dependent
def _embed(
    ids_ptr, weight_ptr, prompt_ptr, index_ptr, positions_ptr, position_weight_ptr, out_ptr, scale, V, C,
    TILE: tl.constexpr, PROMPT: tl.constexpr, POSITION: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = tl.load(ids_ptr + row).to(tl.int64)
    learned = tl.where(token < V, C, 0)  # values to take of the weight's row: all or none
    x = tl.load(weight_ptr + token * C + i, mask=i < learned, other=0.0).to(tl.float32) * scale
    if PROMPT:
        index = tl.load(index_ptr + row).to(tl.int64)
        x += tl.load(prompt_ptr + index * C + i, mask=i < C - learned, other=0.0).to(tl.float32)
    x = x.to(weight_ptr.dtype.element_ty)
    if POSITION:
        at = tl.load(positions_ptr + row).to(tl.int64) * C + i
        # as if adding were an operation of its own
        x = x.to(tl.float32) + tl.load(position_weight_ptr + at, mask=i < C, other=0.0).to(tl.float32)
        x = x.to(weight_ptr.dtype.element_ty)
    tl.store(out_ptr + row * C + i, x.to(out_ptr.dtype.element_ty), mask=i < C)


def embed(
    token_ids: Tensor,
    weight: Tensor,
    prompt_embeds: Tensor | None,
    index: Tensor | None,
    scale: float,
    positions: Tensor | None = None,
    position_weight: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    rows, (vocab, width) = len(token_ids), weight.shape
    out = torch.empty((rows, width), dtype=dtype or weight.dtype, device=weight.device)
    prompt, position = prompt_embeds is not None, position_weight is not None
    assert position_weight is None or (position_weight.is_contiguous() and position_weight.shape[1] == width)
    table, index = (prompt_embeds, index) if prompt else (weight, token_ids)
    _embed[(rows, triton.cdiv(width, TILE))](
        token_ids, weight, table, index, positions if position else token_ids, position_weight if position else weight,
        out, scale, vocab, width, TILE=TILE, PROMPT=prompt, POSITION=position, num_warps=4,
    )  # fmt: skip
    return out
