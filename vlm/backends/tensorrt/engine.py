"""The plans of an engine directory: <name>/rank0.plan for every graph, built from graphs that are not kept."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vlm.backends.base import BuildJob
from vlm.backends.graphs import qdq
from vlm.backends.graphs.io import graphs_of, role_of
from vlm.backends.graphs.network import Network
from vlm.backends.onnxruntime.engine import FILE, write_graphs
from vlm.backends.tensorrt.builder import build_plans
from vlm.backends.tensorrt.library import installed, named
from vlm.backends.tensorrt.plan_info import Machine, PlanInfo, check_runnable
from vlm.backends.tensorrt.session import PlanGraph
from vlm.config import EngineLimits, RuntimeConfig
from vlm.registry import catalogs

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir


def write_plans(job: BuildJob) -> tuple[list[Path], PlanInfo]:
    """Exports every graph, builds it below the job's folder -> the plans, and what may run them. Raises EngineError."""
    with tempfile.TemporaryDirectory(prefix=".onnx-", dir=job.folder) as scratch:
        paths = write_graphs(job, Path(scratch), qdq.FORM)
        files = {path.parent.name: path for path in paths if path.name == FILE}
        info = build_plans(files, job.folder, job.build, job.limits, progress=job.progress)
    return [job.folder / plan for plan in info.plans.values()], info


def load_plans(engine: EngineDir, device: torch.device) -> dict[str, Network]:
    """Loads every plan, by its graph's name, with the configuration of its role. EngineError where this
    machine cannot run them: said before any is opened."""
    info = check_plans(engine, device)
    library = named(info.library, installed())
    configs, dtype = catalogs.configs_of(engine), getattr(torch, engine.build.dtype)
    limits = EngineLimits.from_manifest(engine.manifest.limits)  # a plan's caches have one size
    return {
        name: Network(configs[role_of(name)], PlanGraph(engine.path / info.plans[name], io, library, device))
        for name, io in graphs_of(configs, limits, dtype, caches_grow=qdq.FORM.caches_grow).items()
        if role_of(name) in engine.loaded_roles
    }


def within_plans(engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> RuntimeConfig:
    """Returns what the plans can be asked for. Raises EngineError where this machine cannot run them."""
    most = check_plans(engine, device).limits["max_prefill_tokens"]
    return replace(runtime, max_prefill_tokens=min(runtime.max_prefill_tokens, most))


def check_plans(engine: EngineDir, device: torch.device | None = None) -> PlanInfo:
    """Returns what may run the plans; EngineError with the command that rebuilds them where this machine may not."""
    info = PlanInfo.from_manifest(engine.manifest.built_for)
    check_runnable(info, engine.build, Machine.this(device), str(engine.path), engine.manifest.source)
    return info
