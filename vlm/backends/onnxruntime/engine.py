"""The graphs of an engine directory: <name>/model.onnx, and beside it the weights where they are large."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from vlm.backends.base import BuildJob
from vlm.backends.graphs.form import GraphForm
from vlm.backends.graphs.io import graphs_of, role_of
from vlm.backends.graphs.network import Network
from vlm.backends.onnxruntime.heads import HEAD, heads_of_8_bits
from vlm.backends.onnxruntime.session import OnnxGraph
from vlm.config import RuntimeConfig
from vlm.layers.context import ModelContext
from vlm.layers.quant.methods import quantization_of
from vlm.registry import catalogs
from vlm.registry.weights.quantized import quantized

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir

FILE = "model.onnx"


def write_graphs(job: BuildJob, folder: Path, form: GraphForm) -> list[Path]:
    """Exports and checks every graph below `folder` -> the files. EngineError where a graph does not compute what the
    network does."""
    from vlm.backends.graphs.export import check_expressible, export
    from vlm.backends.onnxruntime.check import check

    for role, weights in job.roles.items():
        check_expressible(catalogs.model_spec(weights.model).skeleton(job.configs[role]))
    say, rough = job.progress or (lambda *_: None), job.build.quantization in form.rounding
    graphs = graphs_of(job.configs, job.limits, getattr(torch, job.build.dtype), caches_grow=form.caches_grow)
    for number, (name, io) in enumerate(graphs.items()):
        say("Exporting the graphs", number, len(graphs))
        network, file = _network(job, role_of(name), form), folder / name / FILE
        export(name, network, io, file, form)
        check(name, network, io, file, rough=rough, whole_numbers=form.whole_numbers)
    say("Exporting the graphs", len(graphs), len(graphs))
    return [path for name in graphs for path in sorted((folder / name).iterdir())]


def _network(job: BuildJob, role: str, form: GraphForm) -> nn.Module:
    """Returns a network whose layers keep their weights as the build says."""
    kept = quantization_of(job.build.quantization, job.quantization_options).of_role(role)
    weights, model = quantized(job.roles[role], kept).source, job.roles[role].model
    tensors = {name: weights.read(name) for name in weights.layout}
    context = ModelContext(quantization=kept)
    network = catalogs.model_spec(model).loaded(job.configs[role], tensors, torch.device("cpu"), context)
    if form.small_heads and job.build.quantization is not None and HEAD not in (job.build.ignore or ()):
        heads_of_8_bits(network)
    return network


def load_graphs(engine: EngineDir, runtime: RuntimeConfig) -> dict[str, Network]:
    """Loads every graph, by its name, with the configuration of its role."""
    configs, dtype = catalogs.configs_of(engine), getattr(torch, engine.build.dtype)
    opened = partial(OnnxGraph, threads=runtime.threads, whole_numbers=True)
    return {
        name: Network(configs[role_of(name)], opened(engine.path / name / FILE, io))
        for name, io in graphs_of(configs, engine.limits, dtype, caches_grow=True).items()
        if role_of(name) in engine.loaded_roles
    }
