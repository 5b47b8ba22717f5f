"""vlm: fast inference for vision-language and encoder-decoder models. Importing it does not import torch.

What stands in `__all__` is stable (docs/python.md); the modules beneath are not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import (
    AdapterNotFoundError,
    CheckpointError,
    ConfigError,
    DocumentError,
    EngineError,
    ImageError,
    InputError,
    LengthError,
    LimitError,
    ModelNotFoundError,
    OutOfMemoryError,
    UnsupportedModelError,
    VlmError,
    VlmWarning,
)
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vlm.api.async_pipeline import AsyncPipeline, TextDelta
    from vlm.api.capabilities import Capabilities
    from vlm.api.load import load
    from vlm.api.outputs import Encoding, Output
    from vlm.api.pipeline import Pipeline
    from vlm.build.from_model import build_model, convert_model

__version__ = "0.1.0"

__all__ = [
    "__version__",
    # a model
    "load",
    "Pipeline",
    "AsyncPipeline",
    "Capabilities",
    "RuntimeConfig",
    # what goes in and comes out
    "SamplingParams",
    "Request",
    "Output",
    "Encoding",
    "TextDelta",
    # engines
    "convert_model",
    "build_model",
    "BuildConfig",
    # errors
    "VlmError",
    "InputError",
    "ImageError",
    "DocumentError",
    "LimitError",
    "LengthError",
    "AdapterNotFoundError",
    "ModelNotFoundError",
    "ConfigError",
    "UnsupportedModelError",
    "CheckpointError",
    "EngineError",
    "OutOfMemoryError",
    "VlmWarning",
]

_LAZY = {  # these import torch
    "load": "vlm.api.load",
    "Pipeline": "vlm.api.pipeline",
    "AsyncPipeline": "vlm.api.async_pipeline",
    "Capabilities": "vlm.api.capabilities",
    "TextDelta": "vlm.api.async_pipeline",
    "Output": "vlm.api.outputs",
    "Encoding": "vlm.api.outputs",
    "convert_model": "vlm.build.from_model",
    "build_model": "vlm.build.from_model",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'vlm' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Returns all names, those that are not imported yet among them: help() and completion ask for it."""
    return sorted({*globals(), *__all__})
