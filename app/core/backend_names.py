"""The installed backends in help texts and options."""

from __future__ import annotations

from vlm.backends.installed import backends, names, quantizations, quantizers


def described_backends() -> str:
    """Returns `torch (CPU and CUDA), onnxruntime (CPU), …`"""
    return ", ".join(f"{each.name} ({each.description})" for each in backends())


def described_quantizations() -> str:
    """Returns `int8 (backend onnxruntime)`, and others that there are."""
    return ", ".join(f"{kind} (backend {', '.join(quantizers(kind))})" for kind in quantizations())


def measured_names() -> tuple[str, ...]:
    """Returns what `vlm bench --backend` takes: every backend, and `onnxruntime-int8` for each quantization of one."""
    return (*names(), *(f"{each.name}-{kind}" for each in backends() for kind in each.quantizations))
