"""The methods, by what a manifest calls the quantization of an engine's weights."""

from __future__ import annotations

from collections.abc import Mapping

from vlm.layers.quant.base import LinearMethod
from vlm.layers.quant.dense import Dense

METHODS: Mapping[str | None, LinearMethod] = {None: Dense()}
