"""The graphs of an engine directory: <name>/model.onnx, and beside it the weights where they are large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vlm.artifacts.checkpoint import Progress, RoleWeights
from vlm.backends.graphs.io import graphs_of, role_of
from vlm.backends.onnxruntime.session import OnnxGraph
from vlm.config import BuildConfig, Config, RuntimeConfig
from vlm.registry import catalogs

if TYPE_CHECKING:
    from vlm.artifacts.engine_dir import EngineDir

FILE = "model.onnx"


def write_graphs(
    draft: Path,
    roles: Mapping[str, RoleWeights],
    configs: Mapping[str, Config],
    build: BuildConfig,
    progress: Progress | None = None,
) -> list[Path]:
    """Exports and checks every graph below `draft` -> the files. EngineError where a graph does not compute what the
    network does."""
    from vlm.backends.graphs.export import export
    from vlm.backends.onnxruntime.check import check
    from vlm.backends.onnxruntime.quantize import quantize

    graphs = graphs_of(configs, build)
    for done, (name, io) in enumerate(graphs.items()):
        if progress:
            progress("Exporting the graphs", done, len(graphs))
        role = roles[role_of(name)]
        weights = {tensor: role.source.read(tensor) for tensor in role.source.layout}
        network = catalogs.model_spec(role.model).loaded(configs[role_of(name)], weights, torch.device("cpu"))
        export(name, network, io, draft / name / FILE)
        check(name, network, io, draft / name / FILE)
        if build.quantization is not None:
            quantize(draft / name / FILE)
            check(name, network, io, draft / name / FILE, quantized=True)
    if progress:
        progress("Exporting the graphs", len(graphs), len(graphs))
    return [path for name in graphs for path in sorted((draft / name).iterdir())]


def load_graphs(engine: EngineDir, runtime: RuntimeConfig) -> dict[str, tuple[Config, OnnxGraph]]:
    """Loads every graph, by its name, with the configuration of its role."""
    configs = catalogs.configs_of(engine)
    return {
        name: (configs[role_of(name)], OnnxGraph(engine.path / name / FILE, io, runtime.threads))
        for name, io in graphs_of(configs, engine.build).items()
        if role_of(name) in engine.loaded_roles
    }
