"""Keys and values in blocks: as they are, or in 8 bits with a scale a token and head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

ARRIVALS = 4096  # attentions of one step that are cut into parts; those of more rows are not
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # what the largest value of a token and head is kept as


class NewTokens(NamedTuple):
    """What a step's rows put into the cache, a token each, before they attend to it."""

    k: Tensor  # [R, H_kv, D], may be a strided view
    v: Tensor
    places: Tensor  # [R] int32: of each in its row's sequence
    angles: Tensor | None = None  # [R, 2, n] float32, by which queries and keys are turned (vlm.ops.attention.rotary)


class PagedKV(NamedTuple):
    """One layer's blocks: views of a KVCache."""

    keys: Tensor  # [blocks, H, block_size, D]
    values: Tensor
    key_scales: Tensor | None = None  # [blocks, H, block_size] float32: of keys in 8 bits
    value_scales: Tensor | None = None
    arrivals: Tensor | None = None  # [ARRIVALS] int32 zeros: how many parts of an attention are done, while it runs

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def is_quantized(self) -> bool:
        return self.key_scales is not None


class HiddenRows(NamedTuple):
    """Hidden rows of encoders in blocks, and where a step's rows find theirs."""

    blocks: Tensor  # [N, block_size, E]
    tables: Tensor  # [S, n] int32: the blocks of each slot
    slots: Tensor  # [R] int32
    lengths: Tensor  # [R] int32, at least 1


@dataclass(frozen=True)
class KVCache:
    """The blocks of all layers, [layers, 2, blocks, …]: copies of a block take all that belongs to it."""

    blocks: Tensor  # [L, 2, N, H, block_size, D], or in 8 bits [L, 2, N, bytes]
    heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype  # of the values that are kept
    tokens_first: bool = False  # in memory a block holds token after token, not head after head
    first_layer: int = 0  # its number in the whole network
    arrivals: Tensor | None = None  # see PagedKV: of all layers, one after the other
    hidden: Tensor | None = None  # [N, block_size, E]: an encoder's rows (vlm.ops.attention.absorbed_attention)

    @classmethod
    def zeros(
        cls,
        layers: range,
        num_blocks: int,
        *,
        heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        hidden_size: int = 0,
    ) -> KVCache:
        """Allocates blocks of zeros for layers of these numbers, and for hidden rows of this size. On CUDA a block
        holds head after head, of which a program reads one, on the CPU token after token: it copies whole blocks."""
        numbers = heads * block_size * head_dim
        size = bytes_of(heads, block_size, head_dim, dtype) // (1 if dtype in MOST else dtype.itemsize)
        assert dtype in MOST or size == numbers
        kept = torch.int8 if dtype in MOST else dtype
        blocks = torch.zeros((len(layers), 2, num_blocks, size), dtype=kept, device=device)
        arrivals = torch.zeros(ARRIVALS, dtype=torch.int32, device=device)
        shape = (num_blocks, block_size, hidden_size)
        hidden = torch.zeros(shape, dtype=dtype, device=device) if hidden_size else None
        kind = {"tokens_first": device.type != "cuda", "first_layer": layers.start, "arrivals": arrivals}
        return cls(blocks, heads, block_size, head_dim, dtype, hidden=hidden, **kind)

    def layer(self, number: int) -> PagedKV:
        """Returns the blocks of a layer by its number in the whole network."""
        return self._layers[number - self.first_layer]

    @cached_property
    def _layers(self) -> list[PagedKV]:
        return [self._views(*sides) for sides in self.blocks]

    def _views(self, keys: Tensor, values: Tensor) -> PagedKV:
        """Views both sides of a layer, [N, size] each."""
        numbers = self.heads * self.block_size * self.head_dim
        sides = [self._by_head(side[:, :numbers].view(self.dtype), (self.head_dim,)) for side in (keys, values)]
        if self.dtype not in MOST:
            return PagedKV(*sides, arrivals=self.arrivals)
        scales = [self._by_head(side[:, numbers:].view(torch.float32), ()) for side in (keys, values)]
        return PagedKV(*sides, *scales, arrivals=self.arrivals)

    def _by_head(self, rows: Tensor, rest: tuple[int, ...]) -> Tensor:
        """Views [N, numbers] as [N, H, block_size, …]."""
        if self.tokens_first:
            return rows.unflatten(1, (self.block_size, self.heads, *rest)).transpose(1, 2)
        return rows.unflatten(1, (self.heads, self.block_size, *rest))


def bytes_of(heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Returns the bytes of a block's keys, or values, of one layer."""
    tokens = heads * block_size
    return tokens * head_dim + 4 * tokens if dtype in MOST else tokens * head_dim * dtype.itemsize


def quantized(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rounds [..., D] -> [..., D] of 8 bits, and the scales [...] float32."""
    rows = rows.float()
    scale = rows.abs().amax(-1).clamp(min=1e-20) / MOST[dtype]
    values = (rows / scale[..., None]).clamp(-MOST[dtype], MOST[dtype])
    return ((values + 0.5).floor() if dtype is torch.int8 else values).to(dtype), scale
