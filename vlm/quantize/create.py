"""A configuration -> the algorithm that quantizes each layer."""

from __future__ import annotations

from vlm.layers.quant.base import LinearMethod
from vlm.layers.quant.fp8 import MOST as LARGEST_FP8
from vlm.layers.quant.inputs import QuantizedMethod
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import MOST as LARGEST_INT8
from vlm.quantize.algorithms.awq import Awq
from vlm.quantize.algorithms.base import Algorithm
from vlm.quantize.algorithms.gptq import Gptq
from vlm.quantize.algorithms.rtn import RoundToNearest
from vlm.quantize.algorithms.smoothquant import SmoothQuant
from vlm.quantize.config import SCALED, QuantizeConfig

LARGEST_INPUT = {"fp8": float(LARGEST_FP8), "w8a8": float(LARGEST_INT8)}


def create_algorithm(config: QuantizeConfig, method: LinearMethod) -> Algorithm:
    """Returns what finds the parameters with which `method` keeps a layer, as the configuration says."""
    if config.format == "gptq":
        assert isinstance(method, Int4)
        return Gptq(method, act_order=config.act_order)
    largest = LARGEST_INPUT[config.quantization] if config.static_activations else None
    rounding = RoundToNearest(method, per_tensor=config.per_tensor_weights, largest_input=largest)
    if config.format not in SCALED:
        return rounding
    assert isinstance(method, QuantizedMethod)
    scaled = method.inputs.pre_quant_scale
    if isinstance(method, Int4):
        return Awq(rounding, Int4(method.group_size, method.symmetric), clip=config.clip, scaled=scaled)
    return SmoothQuant(rounding, alpha=config.alpha, scaled=scaled)
