"""The graphs of an engine directory: <name>/model.onnx, and beside it the weights where they are large."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from vlm.backends.base import BuildJob
from vlm.backends.graphs.io import graphs_of, role_of
from vlm.backends.graphs.network import Network
from vlm.backends.onnxruntime.session import OnnxGraph
from vlm.config import RuntimeConfig
from vlm.registry import catalogs

if TYPE_CHECKING:
    from vlm.artifacts.engine_dir import EngineDir

FILE = "model.onnx"


def write_graphs(job: BuildJob, folder: Path, *, caches_grow: bool) -> list[Path]:
    """Exports and checks every graph below `folder` -> the files. EngineError where a graph does not compute what the
    network does."""
    from vlm.backends.graphs.export import export
    from vlm.backends.onnxruntime.check import check
    from vlm.backends.onnxruntime.quantize import quantize

    say = job.progress or (lambda *_: None)
    graphs = graphs_of(job.configs, job.limits, getattr(torch, job.build.dtype), caches_grow=caches_grow)
    for number, (name, io) in enumerate(graphs.items()):
        say("Exporting the graphs", number, len(graphs))
        network, file = _network(job, role_of(name)), folder / name / FILE
        export(name, network, io, file)
        check(name, network, io, file)
        if job.build.quantization is not None:
            quantize(file)
            check(name, network, io, file, quantized=True)
    say("Exporting the graphs", len(graphs), len(graphs))
    return [path for name in graphs for path in sorted((folder / name).iterdir())]


def _network(job: BuildJob, role: str) -> nn.Module:
    source, model = job.roles[role].source, job.roles[role].model
    weights = {name: source.read(name) for name in source.layout}
    return catalogs.model_spec(model).loaded(job.configs[role], weights, torch.device("cpu"))


def load_graphs(engine: EngineDir, runtime: RuntimeConfig) -> dict[str, Network]:
    """Loads every graph, by its name, with the configuration of its role."""
    configs, dtype = catalogs.configs_of(engine), getattr(torch, engine.build.dtype)
    return {
        name: Network(configs[role_of(name)], OnnxGraph(engine.path / name / FILE, io, runtime.threads))
        for name, io in graphs_of(configs, engine.limits, dtype, caches_grow=True).items()
        if role_of(name) in engine.loaded_roles
    }
