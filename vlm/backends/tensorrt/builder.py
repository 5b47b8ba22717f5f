"""ONNX graphs -> TensorRT plans, on a machine with a GPU or, by `tensorrt_rtx`, on one without.

Plans are strongly typed: a graph's types are the plan's, FP32 without TF32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.artifacts.progress import Progress
from vlm.backends.tensorrt.checks import attention_layers, check_parsed
from vlm.backends.tensorrt.library import Library, installed
from vlm.backends.tensorrt.listeners import last, make_logger, make_monitor
from vlm.backends.tensorrt.plan_info import PlanInfo
from vlm.backends.tensorrt.profiles import PlanLimits, Profile, graph_profiles
from vlm.backends.tensorrt.targets import check_types, library_for, resolve_targets, set_targets, this_gpu
from vlm.backends.tensorrt.timing import read_timings, timing_file, write_timings
from vlm.config import BuildConfig, EngineLimits
from vlm.errors import EngineError

PLAN = "rank0.plan"


@dataclass(frozen=True)
class PlanBuilder:
    """A library and the GPUs that it builds for."""

    library: Library
    targets: tuple[str, ...]
    timings: Path  # folder of the timing caches

    @classmethod
    def from_config(cls, build: BuildConfig) -> PlanBuilder:
        """Raises EngineError, before anything is exported, where no library here can build for `build.target`."""
        from vlm.artifacts.cache import cache_root

        libraries, gpu = installed(), this_gpu()
        library = library_for(build.target, gpu, libraries)
        targets = resolve_targets(library, build.target, gpu)
        check_types(targets, build)
        return cls(library, targets, cache_root() / "tensorrt")

    def build(self, onnx_file: Path, plan_file: Path, limits: PlanLimits, progress: Progress | None = None) -> None:
        """Builds a plan of one graph, whose weights lie beside it where they are external.

        Raises EngineError for a graph that TensorRT cannot parse, would misread, or has no kernels for.
        """
        trt, errors = self.library.module, []
        logger = make_logger(trt, errors)
        builder = trt.Builder(logger)
        network = self.library.create_network(builder)
        parse(trt, network, onnx_file, logger, errors)
        for attention in attention_layers(network, trt):
            attention.decomposable = True  # kernels of attention do not cover every type and mask
        config = self._config(builder, network, limits)
        timings = timing_file(self.library, self.targets[0], self.timings)
        read_timings(config, timings)
        plan = _serialize(trt, builder, network, config, f"Building {plan_file.parent.name}", progress)
        if plan is None:
            raise EngineError(f"{self.library.name} cannot build {onnx_file.name}: {last(errors)}")
        write_timings(config, timings)
        plan_file.parent.mkdir(parents=True, exist_ok=True)
        plan_file.write_bytes(plan)

    def _config(self, builder: Any, network: Any, limits: PlanLimits) -> Any:
        config = builder.create_builder_config()
        config.clear_flag(self.library.module.BuilderFlag.TF32)
        set_targets(self.library, config, self.targets)
        inputs = [network.get_input(index) for index in range(network.num_inputs)]
        for shapes in graph_profiles({tensor.name: tuple(tensor.shape) for tensor in inputs}, limits):
            _add_profile(builder, config, shapes)
        return config


def build_plans(
    onnx_files: Mapping[str, Path],
    out: Path,
    build: BuildConfig,
    limits: EngineLimits,
    *,
    progress: Progress | None = None,
) -> PlanInfo:
    """Builds a plan `out/<name>/rank0.plan` of each graph by name ("decoder", "encoder", "cross", "visual"), and
    returns what may run them.

    Raises EngineError.
    """
    builder, most = PlanBuilder.from_config(build), PlanLimits.from_engine(limits)
    plans = {name: f"{name}/{PLAN}" for name in onnx_files}
    for name, file in onnx_files.items():
        builder.build(file, out / plans[name], most, progress)
    return PlanInfo(builder.library.name, builder.library.version, builder.targets, plans, most.to_dict())


def parse(trt: Any, network: Any, onnx_file: Path, logger: Any, errors: list[str]) -> None:
    """Fills a network from a file, and checks that all of it has arrived."""
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx_file)):  # from a file: it finds external weights
        parser_errors = [parser.get_error(index) for index in range(parser.num_errors)]
        reasons = [f"{error.node_operator()} {error.desc()}".strip() for error in parser_errors] or errors
        raise EngineError(f"TensorRT cannot read {onnx_file.name}: {last(reasons)}")
    check_parsed(network, trt, onnx_file)


def _add_profile(builder: Any, config: Any, shapes: Profile) -> None:
    if not shapes:
        return
    profile = builder.create_optimization_profile()
    for name, (low, typical, high) in shapes.items():
        profile.set_shape(name, low, typical, high)
    config.add_optimization_profile(profile)


def _serialize(trt: Any, builder: Any, network: Any, config: Any, description: str, progress: Progress | None) -> Any:
    interrupts: list[KeyboardInterrupt] = []
    monitor = make_monitor(trt, description, progress, interrupts)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if interrupts:
        raise interrupts[0]
    return plan
