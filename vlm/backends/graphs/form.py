"""The form that a runtime's graphs have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GraphForm:
    """Says what differs between the graphs that runtimes take."""

    caches_grow: bool  # the decoder takes caches of any number of rows
    lower: Callable[[Any, str], None]  # rewrites the quantized products of a graph (onnx_ir) of a name
    rounding: tuple[str, ...]  # quantizations whose graphs round what the weights meet
    whole_numbers: bool = False  # quantized products are ONNX Runtime's own, of whole numbers
    small_heads: bool = False  # an output head has 8 bits where other weights are quantized
