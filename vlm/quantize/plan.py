"""What becomes of a checkpoint's layers, known before any input is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.errors import InputError
from vlm.layers.quant.methods import quantization_of
from vlm.layers.quant.producer import FOLDED
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.folding import Fold, folds_of
from vlm.quantize.layers import Layer, layers_to_quantize
from vlm.registry.catalogs import configs_of
from vlm.registry.weights.quantized import check_ignored

SCALE = "pre_quant_scale"


@dataclass(frozen=True)
class Plan:
    """The layers as their parameters are found and as they are written, without the scales that others take."""

    layers: list[Layer]
    written: list[Layer]
    options: Mapping[str, Any]  # what the manifest says of the quantization beside its name
    folds: Mapping[str, Fold] = field(default_factory=dict)  # of the scales of their inputs, by the layers' names


def plan_of(checkpoint: Checkpoint, config: QuantizeConfig) -> Plan:
    """Returns what a configuration does to a checkpoint. Raises InputError for one that is quantized or split and where
    there is no layer to quantize, ConfigError for a layer that the method cannot keep, and as check_ignored."""
    if checkpoint.quantization is not None:
        raise InputError(
            f"the model is quantized already ({checkpoint.quantization}); give the one that it was made of."
        )
    if checkpoint.is_split:
        raise InputError("the model is split among ranks already; give the whole one that it was made of.")
    check_ignored(config.ignore, checkpoint.roles, configs_of(checkpoint))
    folds, options = _folds(checkpoint, config), config.quantization_options
    if config.scales == "folded":
        options |= {SCALE: list(folds)}
    layers = _layers(checkpoint, config, options)
    if not layers:
        raise InputError("--ignore names every layer of the model, so there is nothing to quantize; name fewer.")
    if not folds:
        return Plan(layers, layers, options)
    scaled = [layer.name for layer in layers if SCALE in layer.kept.specs]
    separate = [name for name in scaled if name not in folds]
    options |= {SCALE: separate, FOLDED: [name for name in scaled if name in folds]}
    if not separate:
        del options[SCALE]
    return Plan(layers, _layers(checkpoint, config, options), options, folds)


def _folds(checkpoint: Checkpoint, config: QuantizeConfig) -> dict[str, Fold]:
    """Returns where scales of layers' inputs go; nowhere where there are none, and where they stay with the layers."""
    options = config.quantization_options
    if not options.get(SCALE) or config.scales == "separate":
        return {}
    return folds_of(checkpoint, quantization_of(config.quantization, options))


def _layers(checkpoint: Checkpoint, config: QuantizeConfig, options: Mapping[str, Any]) -> list[Layer]:
    return layers_to_quantize(checkpoint, quantization_of(config.quantization, options))
