"""Rotary positions (Su et al., RoFormer, arXiv:2104.09864) of queries and keys, and the keys' and values' way into the
cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlm.ops.attention import kv_write as plain
from vlm.ops.layouts.paged_kv import PagedKV


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turns the first 2 n of each head's values, the i-th with the (i + n)-th: x [R, H, D], angles [R, 2, n] float32
    (cosines, sines) -> [R, H, D]"""
    half = angles.shape[2]
    cos, sin = angles[:, None].unbind(2)
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def reference(
    q: Tensor, k: Tensor, v: Tensor, angles: Tensor, kv: PagedKV, tables: Tensor, slots: Tensor, positions: Tensor
) -> Tensor:
    plain.reference(rotate(k, angles), v, kv, tables, slots, positions)
    return rotate(q, angles)


def rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Turns heads as `rotate` does: x [R, H, D] (may be a strided view), angles [R, 2, n] float32 -> [R, H, D]"""
    if x.is_cuda:
        from vlm.ops.kernels.rotary import rotate as kernel

        return kernel(x, angles)
    return rotate(x, angles)


def rotary_kv_write(
    q: Tensor, k: Tensor, v: Tensor, angles: Tensor, kv: PagedKV, tables: Tensor, slots: Tensor, positions: Tensor
) -> Tensor:
    """Turns queries and keys; the keys go with the values to their places in the cache, as `kv_write` has it.

    q [R, H, D], k, v [R, H_kv, D] (may be strided views); angles [R, 2, n] float32: see `rotate` -> q turned [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.rotary import rotary_kv_write as kernel

        return kernel(q, k, v, angles, kv, tables, slots, positions)
    return reference(q, k, v, angles, kv, tables, slots, positions)


@torch.library.custom_op("vlm::slot_rotary", mutates_args=(), schema="(Tensor x, Tensor cos, Tensor sin) -> Tensor")
def slot_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns x [B, H, S, D] as `rotate` does, cos and sin [B, S, n] of x's type: a node of an exported graph."""
    rows = x.transpose(1, 2).flatten(0, 1)
    result = rotate(rows, torch.stack((cos, sin), 2).flatten(0, 1).float())
    return result.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2).contiguous()


@slot_rotary.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def lowerings() -> dict[Any, Callable[..., Any]]:
    """Returns the ONNX node of `slot_rotary`. The angles are of rows, so that no positions are given."""
    from onnxscript.values import Opset

    op = Opset("", 24)

    def rotary(x, cos, sin):
        dims = 2 * cos.shape[-1]
        part = 0 if dims == x.shape[-1] else dims
        return op.RotaryEmbedding(x, cos, sin, interleaved=0, rotary_embedding_dim=part)

    return {torch.ops.vlm.slot_rotary.default: rotary}
