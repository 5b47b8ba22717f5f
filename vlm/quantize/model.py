"""A checkpoint -> the same, quantized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from vlm.artifacts.native.checkpoint import Checkpoint, scratch_beside, write_checkpoint
from vlm.artifacts.progress import Progress
from vlm.errors import InputError
from vlm.quantize.calibration import Calibration
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.create import create_algorithm
from vlm.quantize.layers import Layer, ParameterStore, quantized_roles
from vlm.quantize.plan import plan_of
from vlm.quantize.statistics import Needs, Statistics


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
    plan = plan_of(checkpoint, config)
    with scratch_beside(out) as scratch:
        store = ParameterStore(scratch)
        _fill(store, checkpoint, plan.layers, config=config, calibration=calibration, progress=progress)
        return write_checkpoint(
            out,
            family=checkpoint.family,
            roles=quantized_roles(checkpoint, plan.written, store, plan.folds),
            generation=checkpoint.generation,
            source=checkpoint.source,
            processor_files=checkpoint.processor_files,
            quantization=config.quantization,
            quantization_options=plan.options,
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
