"""Rotary positions (Su et al., RoFormer, arXiv:2104.09864) of queries and keys, and the keys' and values' way into the
cache."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops import kv_write as plain


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """x [R, H, D], angles [R, 2, n] float32 (cosines, sines): the first 2 n of each head's values turned, the i-th with
    the (i + n)-th -> [R, H, D]"""
    half = angles.shape[2]
    cos, sin = angles[:, None].unbind(2)
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def reference(
    q: Tensor, k: Tensor, v: Tensor, angles: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor,
    positions: Tensor,
) -> Tensor:  # fmt: skip
    plain.reference(rotate(k, angles), v, keys, values, tables, slots, positions)
    return rotate(q, angles)


def rotary_kv_write(
    q: Tensor, k: Tensor, v: Tensor, angles: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor,
    positions: Tensor,
) -> Tensor:  # fmt: skip
    """Turns queries and keys; the keys go with the values to their places in the cache, as `kv_write` has it.

    q [R, H, D], k, v [R, H_kv, D] (may be strided views); angles [R, 2, n] float32: see `rotate` -> q turned [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.rotary import rotary_kv_write as kernel

        return kernel(q, k, v, angles, keys, values, tables, slots, positions)
    return reference(q, k, v, angles, keys, values, tables, slots, positions)
