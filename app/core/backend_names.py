"""The installed backends in help texts and options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vlm.backends.base import Layout
from vlm.backends.installed import backend, backends, names, quantizations, quantizers
from vlm.config.runtime import KV_CACHE_DTYPES

MEASURED = re.compile(r"([^+]+)(\+visual)?(?:\+kv-([^+]+))?(?:\+lora-([1-9]\d{0,2})x([1-9]\d{0,2}))?")


@dataclass(frozen=True)
class MeasuredName:
    """The parts of what `vlm bench --backend` takes:
    `BACKEND[-QUANTIZATION[+visual]][+kv-DTYPE][+lora-ADAPTERSxRANK]`."""

    engine: str  # BACKEND[-QUANTIZATION], which the rest says nothing of
    quantizes_visual: bool = False  # the visual network's weights, too
    kv_cache_dtype: str | None = None
    max_loras: int | None = None
    max_lora_rank: int | None = None

    @classmethod
    def read(cls, name: str) -> MeasuredName:
        if (match := MEASURED.fullmatch(name)) is None:
            return cls(name)
        engine, visual, kept, count, rank = match.groups()
        return cls(engine, bool(visual), kept, int(count) if count else None, int(rank) if rank else None)

    @property
    def backend(self) -> str:
        return self.engine.partition("-")[0]

    @property
    def quantization(self) -> str | None:
        return self.engine.partition("-")[2] or None

    @property
    def build(self) -> dict[str, Any]:
        """Returns what it says of a BuildConfig."""
        ignore = {"ignore": ("head",)} if self.quantizes_visual else {}
        return {"backend": self.backend, "quantization": self.quantization} | ignore

    @property
    def runtime(self) -> dict[str, Any]:
        """Returns what it says of a RuntimeConfig."""
        return {name: getattr(self, name) for name in ("kv_cache_dtype", "max_loras", "max_lora_rank")}


def described_backends() -> str:
    """Returns `torch (CPU and CUDA), onnxruntime (CPU), …`"""
    return ", ".join(f"{each.name} ({each.description})" for each in backends())


def described_quantizations() -> str:
    """Returns `int8 (backend onnxruntime)`, and others that there are."""
    return ", ".join(f"{kind} (backend {', '.join(quantizers(kind))})" for kind in quantizations())


def measured_names() -> tuple[str, ...]:
    """Returns what `vlm bench --backend` takes, but for the type of a cache: every backend, and `onnxruntime-int8` for
    each quantization of one."""
    return (*names(), *(f"{each.name}-{kind}" for each in backends() for kind in each.quantizations))


def is_measured(name: str) -> bool:
    """Tells whether `vlm bench --backend` takes a name."""
    parts = MeasuredName.read(name)
    if parts.engine not in measured_names() or parts.kv_cache_dtype not in (None, *KV_CACHE_DTYPES):
        return False
    if parts.quantizes_visual and parts.quantization is None:
        return False
    return parts.max_loras is None or backend(parts.backend).layout is Layout.PAGED
