"""Device memory of the paged self- and cross-attention cache: one pool, sized once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlm.config import EngineLimits, ModelConfig, RuntimeConfig
from vlm.errors import OutOfMemoryError
from vlm.executor.memory import in_words, memory_errors
from vlm.executor.networks import DecoderNetwork
from vlm.layers.attention import CrossAttention
from vlm.ops.attention.absorbed_attention import has_kernel
from vlm.ops.layouts.paged_kv import KVCache, bytes_of
from vlm.ops.layouts.tiles import PROGRAM_HEADS
from vlm.parallel.mapping import Mapping

# of keys and values that a step need not read, from which on it attends to encoders' rows themselves: an H200 reads
# them in 14 us, and the products around it cost about that; where two programs share a row's heads, more
ABSORBED_NUMBERS, PAIR_NUMBERS = 30_000_000, 80_000_000


@dataclass(frozen=True)
class CacheShape:
    """Blocks of the pool by use; tables per slot."""

    num_self: int
    num_cross: int
    self_table: int  # blocks a slot's self table holds
    cross_table: int

    @property
    def num_blocks(self) -> int:
        return self.num_self + self.num_cross + 1  # the null block


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype, mapping: Mapping, hidden_size: int = 0) -> int:
    """Returns the bytes of one block's keys and values over one rank's layers, of its heads, and of hidden rows."""
    layers = mapping.layers(model.num_layers)
    kv = 2 * len(layers) * bytes_of(heads_of(model, mapping), block_size, model.head_dim, dtype)
    return kv + hidden_size * block_size * dtype.itemsize


def absorbing_pays(rows: int, width: int, model: ModelConfig) -> bool:
    """Says whether a step is faster that attends to so many rows of encoders, of this width, themselves."""
    saved = rows * (2 * model.num_kv_heads * model.head_dim - width)
    return saved >= (ABSORBED_NUMBERS if model.num_kv_heads <= PROGRAM_HEADS else PAIR_NUMBERS)


def hidden_size_of(
    decoder: DecoderNetwork, limits: EngineLimits, *, block_size: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Returns how wide rows of an encoder are that decode steps attend to instead of their keys and values, where all
    layers can, and a full batch is faster so; 0 where not."""
    layers = [module for module in decoder.modules() if isinstance(module, CrossAttention)]
    if not layers or not all(layer.absorbs for layer in layers):
        return 0
    heads, head_dim, width = layers[0].kv_heads[0], layers[0].head_dim, layers[0].kv.in_features
    pays = absorbing_pays(limits.max_batch_size * limits.max_encoder_input_len, width, decoder.config)
    return width if pays and has_kernel(heads, head_dim, width, dtype, device, block_size=block_size) else 0


def heads_of(model: ModelConfig, mapping: Mapping) -> int:
    """Returns how many heads of keys one rank has."""
    return mapping.shard.share(model.num_kv_heads, model.num_kv_heads)


def plan_cache(
    model: ModelConfig,
    runtime: RuntimeConfig,
    *,
    limits: EngineLimits,
    dtype: torch.dtype,
    free_bytes: int | None,
    mapping: Mapping,
    hidden_size: int = 0,
) -> CacheShape:
    """Returns how many blocks to hold: what the memory fraction allows, and no more than a full batch can use.

    `free_bytes` is the device's free memory, None where it is not a limit (CPU); `mapping`: which layers and
    heads lie on it; `hidden_size` as KVCache has it. Raises OutOfMemoryError when not even one sequence of full length
    fits.
    """
    batch_size, max_seq_len, max_encoder_len = limits.max_batch_size, limits.max_seq_len, limits.max_encoder_input_len
    self_table, cross_table = -(-max_seq_len // runtime.block_size), -(-max_encoder_len // runtime.block_size)
    # a beam has a spare block, too
    need_self, need_cross = batch_size * (self_table + (batch_size > 1)), batch_size * cross_table
    size = block_bytes(model, runtime.block_size, dtype, mapping, hidden_size)
    total = runtime.max_kv_blocks
    if total is None and free_bytes is not None:
        total = int(free_bytes * runtime.kv_cache_free_gpu_memory_fraction) // size
    if total is None:
        return CacheShape(need_self, need_cross, self_table, cross_table)
    cross = int(total * runtime.cross_kv_cache_fraction) if cross_table else 0
    shape = CacheShape(min(need_self, total - cross), min(need_cross, cross), self_table, cross_table)
    if shape.num_self < self_table or shape.num_cross < cross_table:
        over = f" over {max_encoder_len} encoder rows" if cross_table else ""
        raise OutOfMemoryError(
            f"the KV cache has room for {shape.num_self} self- and {shape.num_cross} cross-attention blocks of"
            f" {size / 2**20:.2f} MiB, one sequence of {max_seq_len} tokens{over} needs"
            f" {self_table} and {cross_table}; lower max_seq_len, give dtype bfloat16, or change"
            " kv_cache_free_gpu_memory_fraction or cross_kv_cache_fraction.",
            settings=("max_seq_len", "dtype", "kv_cache_free_gpu_memory_fraction", "cross_kv_cache_fraction"),
        )
    return shape


def allocate(
    model: ModelConfig,
    shape: CacheShape,
    block_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    mapping: Mapping,
    hidden_size: int = 0,
) -> KVCache:
    """Returns blocks of zeros of one rank's layers and heads, and of hidden rows of this size. Raises OutOfMemoryError
    for more than the device has room for."""
    size = {"heads": heads_of(model, mapping), "block_size": block_size, "head_dim": model.head_dim}
    kind = {"dtype": dtype, "device": device, "hidden_size": hidden_size}
    num_bytes = shape.num_blocks * block_bytes(model, block_size, dtype, mapping, hidden_size)
    with memory_errors(lambda: _too_large(num_bytes, device)):
        return KVCache.zeros(mapping.layers(model.num_layers), shape.num_blocks, **size, **kind)


def _too_large(num_bytes: int, device: torch.device) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"the KV cache of a full batch takes {in_words(num_bytes)}, more than {device} has free; lower"
        " max_batch_size, max_seq_len or max_encoder_input_len, or give dtype bfloat16.",
        settings=("max_batch_size", "max_seq_len", "max_encoder_input_len", "dtype"),
    )
