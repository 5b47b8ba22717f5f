"""Attention of many rows over a paged cache, or where several query heads share one of keys and values (compute
capability 9.0 and up): attend_group.cu.

In Triton tiles of values cross shared memory twice, programs have no keys on their way before their row is there, and
splits of a context meet in global memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from vlm.ops.attention_variant import AttentionVariant
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.attend import SLICE, WARPS, constants_of, has_whole_slices, inputs_of, reach_of, strides_of
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.device import device_properties, num_processors
from vlm.ops.layouts.paged_kv import MOST, NewTokens, PagedKV

TOKENS = 16  # as in attend_group.cu: of a stage
MOST_HEADS = 16  # rows of a product
MOST_SLICES, FEWEST_SLICES = 16, 8  # of a token, 16 bytes each: that a thread has registers, and a product columns for
CLUSTERS = (1, 2, 4, 8)
LARGEST, CLUSTERED = CLUSTERS[-1], 0.75  # of processors, those of which clusters that large are made
MEMORY, RESERVED = 228 * 1024, 1024  # bytes of a processor that programs share, and of each that it has for itself
REGISTER_WARPS = {64: 16, 128: 12}  # of a processor, that registers allow, by the width of a head
MANY_WARPS = 8
FEW_STAGES = 2
# warps of a program, and their stages, where programs of four with all of them do not run together, by a head's width
BETWEEN = {64: (4, 2), 128: (2, 4)}
SHORT, LONG = 256, 1024  # tokens of a context: up to which one warp is enough, from which on two processors are faster
FULL = 0.9  # of the programs that there is room for, in large clusters
STAGE_BYTES = 24 * 1024  # that a warp has on their way


class Sharing(NamedTuple):
    """How the context of a row and a head of keys is shared out."""

    warps: int  # of a program
    cluster: int  # of programs
    stages: int  # that each warp has on their way


def fits(q: Tensor, kv: PagedKV, new: NewTokens | None) -> bool:
    """Tells whether `attention` takes these rows: heads whose slices can be loaded at once."""
    heads, dim = q.shape[1:]
    values, group = SLICE // kv.keys.element_size(), heads // kv.keys.shape[1]
    if not has_whole_slices(q, kv, new) or not 1 <= group <= MOST_HEADS or dim not in (64, 128):
        return False
    if not FEWEST_SLICES <= dim // values <= MOST_SLICES:
        return False
    # half as much on GPUs of the same generation that are made for pictures
    most = device_properties(q.device.index).shared_memory_per_block_optin
    if shared_memory(dim, kv.keys.dtype, MANY_WARPS, FEW_STAGES, new=True) > most:
        return False
    # heads of 8 bits that share nothing: Triton's kernel is as fast with many of them
    room = _room(WARPS, num_stages(dim, kv.keys.dtype), dim, kv.keys.dtype, num_processors(q.device))
    return group > 1 or kv.keys.dtype not in MOST or len(q) * heads <= room


def stage_bytes(dim: int, kept: torch.dtype, *, biased: bool = False) -> int:
    """Returns the bytes of a stage: keys and values, of 8 bits their scales, and biases."""
    return 2 * TOKENS * (dim * kept.itemsize + (4 if kept in MOST else 0)) + 4 * TOKENS * biased


def num_stages(dim: int, kept: torch.dtype) -> int:
    """Returns how many stages a warp has on their way where memory is for few warps."""
    return min(4, STAGE_BYTES // stage_bytes(dim, kept))


def shared_memory(dim: int, kept: torch.dtype, warps: int, stages: int, *, new: bool, biased: bool = False) -> int:
    """Returns the bytes of shared memory of a program: stages, and that of a new token; what is merged takes their
    place."""
    merged = 4 * (warps + 1) * MOST_HEADS * (dim + 2)
    return max((warps * stages + new) * stage_bytes(dim, kept, biased=biased), merged)


@functools.cache
def sharing(pairs: int, tokens: int, dim: int, kept: torch.dtype, processors: int) -> Sharing:
    """Returns how contexts of at most so many tokens, of each row and head of keys, are shared out. As measured on H100
    and H200, programs of many warps are the fastest where there are not enough for clusters of several, then those of
    four while all run together, then those of two, with as many stages as let all run together; and where none do those
    of two, but of short contexts those of one, of which most run together."""
    stages = num_stages(dim, kept)
    room = _room(WARPS, stages, dim, kept, processors)
    if many := _cluster_of_many(pairs, tokens, processors):
        return Sharing(MANY_WARPS, many, FEW_STAGES)
    if pairs <= room:
        return Sharing(WARPS, cluster_size(pairs, room), stages)
    warps, between = BETWEEN[dim]
    if pairs <= _room(warps, between, dim, kept, processors):
        return Sharing(warps, 1, between)
    for count in range(stages, FEW_STAGES - 1, -1):
        if pairs <= _room(2, count, dim, kept, processors):
            return Sharing(2, 1, count)
    return Sharing(1, 1, FEW_STAGES) if tokens <= SHORT else Sharing(2, 1, stages)


def _cluster_of_many(pairs: int, tokens: int, processors: int) -> int:
    """Returns the cluster of programs of many warps, one a processor, where they are faster than those of four: of
    few long contexts, and where a quarter of the processors and more have a context each; 0 elsewhere."""
    is_long = tokens > LONG
    if is_long and LARGEST * pairs <= CLUSTERED * processors:
        return LARGEST
    if processors / 4 < pairs <= processors:
        return 2 if is_long and 2 * pairs <= processors else 1
    return 0


def is_faster(q: Tensor, kv: PagedKV, tables: Tensor) -> bool:
    """Tells whether `attention` takes less time than that of attend.py for rows that both take: where heads share keys,
    which are read once here, but for a row or two with short contexts."""
    shared = q.shape[1] > kv.keys.shape[1]
    return shared and (len(q) > 2 or tables.shape[1] * kv.keys.shape[2] > LONG)


def cluster_size(pairs: int, room: int) -> int:
    """Returns the largest cluster of those that run together. As measured on an H200, clusters of four that take nearly
    all of its memory are slower than half as many of two: nothing of the next kernel begins beside them."""
    return max(size for size in CLUSTERS if pairs * size <= (room if size <= 2 else FULL * room))


def fair_share(programs: int, processors: int) -> int:
    """Returns the bytes of shared memory of a program with which all processors have the same number of programs, and
    those that end early no more: values of 8 bits take instructions, which are shared, too."""
    return MEMORY // -(-programs // processors) - RESERVED


def _room(warps: int, stages: int, dim: int, kept: torch.dtype, processors: int) -> int:
    """Returns how many programs of so many warps run together."""
    memory = shared_memory(dim, kept, warps, stages, new=True) + RESERVED
    return processors * min(REGISTER_WARPS[dim] // warps, MEMORY // memory)


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
    kv_heads, kept = kv.keys.shape[1], kv.keys.dtype
    assert bias is None or (bias.is_contiguous() and heads == kv_heads)
    pairs, tokens, processors = rows * kv_heads, tables.shape[1] * kv.keys.shape[2], num_processors(q.device)
    warps, cluster, stages = sharing(pairs, tokens, dim, kept, processors)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    constants = constants_of(q, kv, new, bias, variant) | {
        "CLUSTER": cluster, "WARPS": warps, "STAGES": stages,
    }  # fmt: skip
    memory = shared_memory(dim, kept, warps, stages, new=new is not None, biased=bias is not None)
    if kept in MOST and warps < WARPS:
        memory = max(memory, fair_share(pairs, processors))
    _kernel(tuple(constants.items()), memory, q.device).launch(
        (cluster, kv_heads, rows), 32 * warps,
        *inputs_of(q, kv, new), tables, slots, lengths, bias, out, product_scale(scale, variant),
        *strides_of(q, kv, new, tables), reach_of(bias), cluster=cluster,
    )  # fmt: skip
    return out


@functools.cache
def _kernel(constants: tuple[tuple[str, int | str], ...], memory: int, device: torch.device) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("attend_group.cu", "attend_group", dict(constants), memory)
