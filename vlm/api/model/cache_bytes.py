"""What an engine's keys and values take, told before it is loaded."""

from __future__ import annotations

from typing import NamedTuple

import torch

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.executor.kv_cache import block_bytes, plan_cache
from vlm.registry.catalogs import configs_of
from vlm.registry.networks import mapping_of


class CacheBytes(NamedTuple):
    """Sizes of the KV cache, as it is by default where nothing limits it."""

    full_batch: int = 0  # all sequences at full length
    per_sequence: int = 0

    @classmethod
    def from_engine(cls, engine: EngineDir) -> CacheBytes:
        """Reads an engine's limits; an encoder alone takes none."""
        if (decoder := configs_of(engine).decoder) is None:
            return cls()
        runtime, dtype, mapping = RuntimeConfig(), getattr(torch, engine.build.dtype), mapping_of(engine)
        shape = plan_cache(decoder, runtime, limits=engine.limits, dtype=dtype, free_bytes=None, mapping=mapping)
        block = block_bytes(decoder, runtime.block_size, dtype, mapping)
        return cls(shape.num_blocks * block, (shape.self_table + shape.cross_table) * block)
