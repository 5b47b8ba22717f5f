"""Attention of few rows over a paged cache by clusters of programs (compute capability 9.0 and up): attend.cu.

In Triton a program that has keys and values on their way needs so many registers that it starts only when the product
ahead of it has ended, and splits of a context meet in global memory.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from vlm.ops.attention_variant import AttentionVariant
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.device import num_processors
from vlm.ops.layouts.paged_kv import MOST, NewTokens, PagedKV

X_TYPES = {torch.float16: 0, torch.bfloat16: 1}
KV_TYPES = X_TYPES | {torch.int8: 2, torch.float8_e4m3fn: 3}
SLICE, BARRIER = 16, 8  # bytes of a token that a lane has, and of what tells that all has been found
LARGEST_CLUSTER = 8
WARPS, UNROLL = 4, 2


def cluster_size(pairs: int, processors: int) -> int:
    """Returns how many programs share the context of each row and head: as many as two a processor allow."""
    most = min(LARGEST_CLUSTER, 2 * processors // pairs)
    return 1 << most.bit_length() - 1 if most else 0


def num_stages(programs: int, processors: int) -> int:
    """Returns how many stages a thread has on their way: so that all programs have room beside a product's."""
    return 4 if programs <= processors else 2


def fits(q: Tensor, kv: PagedKV, new: NewTokens | None) -> bool:
    """Tells whether `attention` takes these rows: few enough that several programs share a context, heads whose slices
    can be loaded at once."""
    rows, heads, dim = q.shape
    values = SLICE // kv.keys.element_size()
    if not has_whole_slices(q, kv, new) or dim % values or dim > 32 * values:
        return False
    return cluster_size(rows * heads, num_processors(q.device)) > 1


def has_whole_slices(q: Tensor, kv: PagedKV, new: NewTokens | None) -> bool:
    """Tells whether types, tokens in the cache and rows are such that kernels can load them by 16 bytes, and turn
    them."""
    values, half = SLICE // kv.keys.element_size(), num_turned(new)
    if q.dtype not in X_TYPES or kv.keys.dtype not in (q.dtype, *MOST) or not nvrtc.copies_boxes(q.device):
        return False
    inputs = (q,) if new is None else (q, new.k, new.v)
    return kv.keys.stride()[2:] == (q.shape[2], 1) and half % values == 0 and all(map(has_slices, inputs))


def num_turned(new: NewTokens | None) -> int:
    """Returns of how many pairs of a head's values rows are turned."""
    return 0 if new is None or new.angles is None else new.angles.shape[2]


def constants_of(
    q: Tensor, kv: PagedKV, new: NewTokens | None, bias: Tensor | None, variant: AttentionVariant
) -> dict[str, int | str]:
    """Returns what kernels of these inputs are compiled with, however they share the work."""
    (_, heads, dim), (kv_heads, block), kept = q.shape, kv.keys.shape[1:3], kv.keys.dtype
    return {
        "X_TYPE": X_TYPES[q.dtype], "KV_TYPE": KV_TYPES[kept], "HEADS": heads, "GROUP": heads // kv_heads, "DIM": dim,
        "HALF": num_turned(new), "BLOCK": block, "NEW": int(new is not None), "BIAS": int(bias is not None),
        "CAP": f"{variant.softcap or 0.0:.9e}f", "REACH": -1 if variant.reach is None else variant.reach,
        "LARGEST": f"{MOST.get(kept, 1.0):.1f}f",
    }  # fmt: skip


def inputs_of(q: Tensor, kv: PagedKV, new: NewTokens | None) -> tuple[Tensor | None, ...]:
    """Returns what kernels read and write beside where it lies."""
    k, v, angles = (None, None, None) if new is None else (new.k, new.v, new.angles)
    assert new is None or new.k.stride(1) == new.v.stride(1) == q.shape[2]
    assert angles is None or angles.is_contiguous()
    return q, kv.keys, kv.values, kv.key_scales, kv.value_scales, k, v, angles


def strides_of(q: Tensor, kv: PagedKV, new: NewTokens | None, tables: Tensor) -> tuple[int, ...]:
    """Returns how far apart rows, heads, blocks and tables are."""
    rows = (0, 0) if new is None else (new.k.stride(0), new.v.stride(0))
    scales = 0 if kv.key_scales is None else kv.key_scales.stride(0)
    return *q.stride()[:2], *rows, *kv.keys.stride()[:2], scales, tables.stride(0)


def reach_of(bias: Tensor | None) -> int:
    """Returns the distance from which on a bias stays what it is."""
    return 0 if bias is None else bias.shape[1] // 2


def has_slices(x: Tensor) -> bool:
    """Tells whether heads [R, H, D] can be loaded by 16 bytes."""
    whole = all(stride * x.element_size() % SLICE == 0 for stride in x.stride()[:2])
    return whole and x.stride(2) == 1 and x.data_ptr() % SLICE == 0


def attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None,
    variant: AttentionVariant,
    new: NewTokens | None,
) -> Tensor:
    """Does what the operations `paged_attention` and, with `new`, `step_attention` say, for what `fits` says yes to."""
    rows, heads, dim = q.shape
    assert bias is None or bias.is_contiguous()
    processors = num_processors(q.device)
    cluster = cluster_size(rows * heads, processors)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    constants = constants_of(q, kv, new, bias, variant) | {
        "CLUSTER": cluster, "WARPS": WARPS, "UNROLL": UNROLL,
        "STAGES": num_stages(cluster * rows * heads, processors),
    }  # fmt: skip
    _kernel(tuple(constants.items()), q.device).launch(
        (cluster, heads, rows), 32 * WARPS,
        *inputs_of(q, kv, new), tables, slots, lengths, bias, out, product_scale(scale, variant),
        *strides_of(q, kv, new, tables), reach_of(bias), cluster=cluster,
    )  # fmt: skip
    return out


def shared_memory(constants: dict[str, int | str]) -> int:
    """Returns the bytes of shared memory of a program: what threads copy and read, and what is merged."""
    dim, warps, cluster = int(constants["DIM"]), int(constants["WARPS"]), int(constants["CLUSTER"])
    extras = (2 if int(constants["KV_TYPE"]) > 1 else 0) + int(constants["BIAS"])
    vectors = warps * int(constants["STAGES"]) * int(constants["UNROLL"]) * 32
    return vectors * (2 * SLICE + 4 * extras) + 4 * (warps + cluster) * (dim + 2) + BARRIER


@functools.cache
def _kernel(constants: tuple[tuple[str, int | str], ...], device: torch.device) -> nvrtc.CudaKernel:
    values = dict(constants)
    return nvrtc.CudaKernel("attend.cu", "attend", values, shared_memory(values))
