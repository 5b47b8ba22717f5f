"""The parameters of one quantized product of a graph, as arrays: what every runtime's form of it is laid out from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vlm.backends.graphs.quantized_linear import INPUTS
from vlm.ops.layouts.int4_packing import levels4

MIDDLE = 8  # the level of a symmetric weight of 0 in 4 bits


@dataclass(frozen=True)
class KeptWeight:
    """A weight of `out` rows of `inputs` values, as vlm.layers.quant has it, in its graph (onnx_ir) by a name."""

    kind: str
    name: str
    values: np.ndarray  # [out, inputs] int8 or e4m3; of 4 bits: levels uint8
    scale: np.ndarray  # [out, groups] float32; but for 4 bits: one group
    zero: np.ndarray | None  # [out, groups] uint8
    input_scale: np.ndarray | None  # [] float32: by which inputs are rounded; None: each row by its own

    @classmethod
    def from_node(cls, node: Any) -> KeptWeight:
        """Reads the parameters of a product."""
        kind = node.attributes["kind"].as_string()
        value = dict(zip(INPUTS, node.inputs, strict=False))
        values, scale = _array(value["weight"]), _array(value["scale"])
        if kind == "int4":
            values = levels4(torch.tensor(values)).numpy()
        zero, static = (None if value.get(name) is None else _array(value[name]) for name in ("zero", "input_scale"))
        return cls(kind, value["weight"].name, values, scale, zero, None if static is None else static.reshape(()))

    @property
    def inputs(self) -> int:
        return self.values.shape[1]

    @property
    def group_size(self) -> int:
        return self.inputs // self.scale.shape[1]


def _array(value: Any) -> np.ndarray:
    return value.const_value.numpy()
