"""The time below which no decode step can go: the bytes it must read at the bandwidth that this device shows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import torch

from vlm.parallel.mapping import Mapping, Shard
from vlm_app.bench.timing.clock import repeated

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir

# a row of the position table a token; K and V of the encoder's rows are in the cache since the prefill
NOT_READ = ("positions.*", "*.cross_attention.kv.*")
SCALE_BYTES = 4  # of a token and head, where the cache has 8 bits
FLOATS = {"cuda": 2**30, "cpu": 2**26}  # of a bandwidth test, far more than any cache holds


@dataclass(frozen=True)
class Floor:
    """Counts what one decode step of a whole batch moves and computes, at the mean context of a generation."""

    weight_bytes: int
    kv_bytes: int
    bandwidth: float  # bytes a second, measured

    @property
    def step_ms(self) -> float:
        return (self.weight_bytes + self.kv_bytes) / self.bandwidth * 1e3

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"step_ms": self.step_ms}


def decode_floor(
    engine: EngineDir,
    *,
    batch_size: int,
    encoder_rows: int,
    new_tokens: int,
    bandwidth: float,
    num_beams: int = 1,
    kv_cache_dtype: str | None = None,
) -> Floor:
    """Weights once a step; for each of the batch the cross-attention cache, which its beams share, and every beam's
    self-attention cache at its mean length. A decoder alone keeps its prompt's rows, given as `encoder_rows`, in the
    latter. Of ranks that split layers what the first one reads, of pipeline stages, which wait for each other, what
    all read. Without the encoder's pass: nothing is as fast as this."""
    from vlm.registry.catalogs import configs_of

    config = configs_of(engine).decoder
    assert config is not None  # what is measured generates
    item = getattr(torch, engine.build.dtype).itemsize
    head = config.head_dim * item if kv_cache_dtype is None else config.head_dim + SCALE_BYTES
    heads = Shard(size=engine.build.tp_size).share(config.num_kv_heads, config.num_kv_heads)
    row = 2 * config.num_layers * heads * head
    rows = encoder_rows + num_beams * new_tokens // 2
    return Floor(decoder_bytes(engine), batch_size * rows * row, bandwidth)


def decoder_bytes(engine: EngineDir) -> int:
    """Returns the bytes of decoder weights, as they are kept, that every step reads. An embedding table counts where it
    is the output head too."""
    from vlm.convert.roles import module_layout
    from vlm.registry.catalogs import model_spec
    from vlm.registry.networks import context_of

    spec, item = model_spec(engine.roles["decoder"]), getattr(torch, engine.build.dtype).itemsize
    context = replace(context_of(engine, "decoder"), mapping=Mapping(engine.build.tp_size))
    layout = module_layout(spec, spec.config.from_dict(engine.config("decoder")), context)
    patterns = (*NOT_READ, "embedding.*") if "head.weight" in layout else NOT_READ
    read = [entry for name, entry in layout.items() if not any(fnmatch(name, pattern) for pattern in patterns)]
    return sum(min(item, dtype.itemsize) * math.prod(shape) for dtype, shape in read)


def bandwidth(device: torch.device, repeats: int = 10) -> float:
    """Measures bytes a second: the best of a reduction (reads only) and a copy (reads and writes)."""
    source = torch.ones(FLOATS[device.type], device=device)
    target = torch.empty_like(source)
    calls = ((source.nbytes, source.sum), (2 * source.nbytes, lambda: target.copy_(source)))
    best = 0.0
    for size, call in calls:
        repeated(call, device, 2)
        best = max(best, size / min(repeated(call, device, repeats)))
    return best
