"""A checkpoint -> the same, quantized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from vlm.artifacts.checkpoint import Checkpoint, Progress, scratch_beside, write_checkpoint
from vlm.errors import InputError
from vlm.layers.quant.methods import quantization_of
from vlm.quantize.calibration import Calibration
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.create import create_algorithm
from vlm.quantize.layers import Layer, ParameterStore, layers_to_quantize, quantized_roles
from vlm.quantize.statistics import Needs, Statistics


def layers_of(checkpoint: Checkpoint, config: QuantizeConfig) -> list[Layer]:
    """Returns the layers that a configuration quantizes. Raises InputError for a checkpoint that is quantized or split
    and where there is no such layer, ConfigError for a layer that the method cannot keep."""
    if checkpoint.quantization is not None:
        raise InputError(
            f"the model is quantized already ({checkpoint.quantization}); give the one that it was made of."
        )
    if checkpoint.is_split:
        raise InputError("the model is split among ranks already; give the whole one that it was made of.")
    layers = layers_to_quantize(checkpoint, quantization_of(config.quantization, config.quantization_options))
    if not layers:
        raise InputError("--ignore names every layer of the model, so there is nothing to quantize; name fewer.")
    return layers


def quantize_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    config: QuantizeConfig,
    *,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Writes a checkpoint whose layers are quantized at `out`, whole or not at all, and returns it. An older checkpoint
    there is replaced. `calibration` may be None where the configuration needs no inputs."""
    layers = layers_of(checkpoint, config)
    with scratch_beside(out) as scratch:
        store = ParameterStore(scratch)
        _fill(store, checkpoint, layers, config=config, calibration=calibration, progress=progress)
        return write_checkpoint(
            out,
            family=checkpoint.family,
            roles=quantized_roles(checkpoint, layers, store),
            generation=checkpoint.generation,
            source=checkpoint.source,
            processor_files=checkpoint.processor_files,
            quantization=config.quantization,
            quantization_options=config.quantization_options,
            progress=progress,
        )


@torch.inference_mode()
def _fill(
    store: ParameterStore, checkpoint: Checkpoint, layers: list[Layer], *, config: QuantizeConfig,
    calibration: Calibration | None, progress: Progress | None,
) -> None:  # fmt: skip
    """Quantizes the layers one after the other."""
    needs = create_algorithm(config, layers[0].kept.method).needs
    for done, (layer, statistics) in enumerate(_with_statistics(layers, needs, calibration, progress), 1):
        weight = checkpoint.weights(layer.role)[f"{layer.path}.weight"].float()
        if statistics is not None:
            weight = weight.to(statistics.max_abs.device)
        store.put(layer, create_algorithm(config, layer.kept.method).parameters(weight, statistics))
        if progress:
            progress("Quantizing", done, len(layers))


def _with_statistics(
    layers: list[Layer], needs: Needs | None, calibration: Calibration | None, progress: Progress | None
) -> Iterator[tuple[Layer, Statistics | None]]:
    if needs is None:
        yield from ((layer, None) for layer in layers)
    elif calibration is None:
        raise InputError("this format is calibrated: give inputs of yours with --calibrate.")
    else:
        yield from calibration.statistics(layers, needs, progress)
