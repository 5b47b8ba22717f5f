"""The installed backends in help texts and options."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.backends.installed import backends, names, quantizations, quantizers
from vlm.config import KV_CACHE_DTYPES

KV = "+kv-"  # torch-fp8+kv-fp8: weights and cache


@dataclass(frozen=True)
class MeasuredName:
    """The parts of what `vlm bench --backend` takes: `BACKEND[-QUANTIZATION][+kv-DTYPE]`."""

    backend: str
    quantization: str | None = None
    kv_cache_dtype: str | None = None

    @classmethod
    def read(cls, name: str) -> MeasuredName:
        engine, _, kept = name.partition(KV)
        backend, _, quantization = engine.partition("-")
        return cls(backend, quantization or None, kept or None)


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
    engine, plus, kept = name.partition(KV)
    return engine in measured_names() and (not plus or kept in KV_CACHE_DTYPES)
