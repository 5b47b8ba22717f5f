"""vlm: fast inference for vision-language and encoder-decoder models. Importing it does not import torch."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "load": "vlm.api.pipeline",
    "Pipeline": "vlm.api.pipeline",
    "Request": "vlm.requests.request",
    "SamplingParams": "vlm.requests.sampling_params",
}
__all__ = [*_LAZY, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'vlm' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
