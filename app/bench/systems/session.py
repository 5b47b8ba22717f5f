"""What all benchmarks share: one model, built once for us and loaded once by Hugging Face, on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.backends.base import Layout
from vlm.backends.devices import first_device, of_rank
from vlm.backends.installed import backend
from vlm.config import RuntimeConfig
from vlm.errors import InputError, VlmWarning, listed
from vlm.parallel.environment import Meeting, launched_rank, meet
from vlm.registry.catalogs import configs_of
from vlm.registry.role_configs import RoleConfigs
from vlm_app.bench.config import SubjectConfig
from vlm_app.bench.systems.environment import environment
from vlm_app.bench.systems.random_adapters import load_random_adapters
from vlm_app.bench.systems.subject import SIZES, LimitsOf, prepare
from vlm_app.bench.timing.clock import Turns, in_turns
from vlm_app.bench.timing.floor import Floor, bandwidth, decode_floor
from vlm_app.bench.timing.kernels import check_profiled
from vlm_app.core.backend_names import MeasuredName
from vlm_app.core.processes.running import open_pipeline

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline

Results = dict[str, Any]
C = TypeVar("C", bound=SubjectConfig)
T = TypeVar("T")
HF, RIVAL = "Hugging Face", "CTranslate2"


@dataclass(frozen=True)
class Session(Generic[C]):
    """Engines that are built and, where others take part, a folder with the same weights."""

    config: C  # with the device and dtype that are used
    runtime: RuntimeConfig
    device: torch.device  # of several the first
    dtype: str
    engines: Mapping[str, EngineDir]  # by backend
    engine_bytes: Mapping[str, int]
    folder: Path | None
    say: Progress
    follows: bool = False  # of the ranks that one command has started this is not the first one, which measures

    @property
    def engine(self) -> EngineDir:
        """Returns the first engine, which limits and floors are taken from."""
        return next(iter(self.engines.values()))

    @functools.cached_property
    def configs(self) -> RoleConfigs:
        """Returns the engine's configurations, by role."""
        return configs_of(self.engine)

    def bandwidth(self) -> float:
        """Returns bytes a second; of a rank that follows, which would slow down the first one's measurement, none are
        counted."""
        if self.follows:
            return math.inf
        self.say("Measuring the memory bandwidth", 0, 0)
        return bandwidth(self.device)

    def compare(
        self, theirs: Mapping[str, Callable[[Path], Turns[T]]], ours: Callable[[Pipeline], Turns[T]]
    ) -> tuple[dict[str, T], dict[str, T]]:
        """Returns (ours by backend, those of others by their names). On the CPU all take turns; on CUDA one at a time
        is in memory, Hugging Face first. A rank that follows leaves the others to the first one, and waits for it."""
        folder, meeting = None if self.follows else self.folder, meet()  # now: the first one measures for long
        systems = {name: measure(folder) for name, measure in theirs.items()} if folder else {}
        others = tuple(systems)
        systems |= {name: self._ours(name, ours, meeting) for name in self.engines}
        groups = [systems] if self.device.type == "cpu" else [{name: turns} for name, turns in systems.items()]
        results = {name: result for group in groups for name, result in in_turns(group).items()}
        return {name: results[name] for name in self.engines}, {name: results[name] for name in others}

    def _ours(self, name: str, ours: Callable[[Pipeline], Turns[T]], meeting: Meeting | None) -> Turns[T]:
        parts = MeasuredName.read(name)
        runtime = dataclasses.replace(self.runtime, **parts.runtime)
        with open_pipeline(self.engines[name], runtime, meeting) as pipeline:
            load_random_adapters(pipeline, self.engines[name], parts, seed=self.config.seed)
            return (yield from ours(pipeline))

    def floor(self, name: str, speed: float, **sizes: int) -> Floor:
        """Returns the floor of a decode step of one engine, at `speed` bytes a second; `sizes`: as `decode_floor`
        takes them."""
        kept = MeasuredName.read(name).kv_cache_dtype
        return decode_floor(self.engines[name], bandwidth=speed, kv_cache_dtype=kept, **sizes)

    def head(self, kind: str) -> Results:
        """Returns what a result says of itself."""
        settings = {"config": self.config.to_dict(), "environment": environment(self.device)}
        settings |= {"engine_bytes": dict(self.engine_bytes)}
        return {"kind": kind, "subject": self.config.subject, **settings}


@contextlib.contextmanager
def prepare_session(
    config: C, takes: str, progress: Progress | None = None, limits: LimitsOf | None = None
) -> Iterator[Session[C]]:
    """Builds in a scratch folder that goes with the session."""
    device = first_device(config.runtime)
    _check_device(config, device)
    _check_launched(config)
    if config.profile:
        check_profiled(device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    follows = _follows()
    say = progress if progress and not follows else (lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="vlm-bench-") as scratch:
        subject = prepare(
            config, config.dtype or default_dtype(device), Path(scratch), takes=takes, progress=say, limits=limits
        )
        engines = {name: EngineDir.open(path) for name, path in subject.engines.items()}
        build = next(iter(engines.values())).build
        of_rank(config.runtime, 0, build.num_ranks)  # devices that do not suit are said before anything is measured
        own = {name: getattr(build, name) for name in ("dtype", *SIZES)} | {"backends": tuple(engines)}
        session_config = dataclasses.replace(config, device=str(device), **own)
        sizes = {name: _size(path) for name, path in subject.engines.items()}
        folder = subject.folder if config.beside_others else None
        if config.beside_others and folder is None and not follows:
            _warn_of_absent(config)
        yield Session(
            session_config, config.runtime, device, build.dtype, engines=engines, engine_bytes=sizes, folder=folder,
            say=say, follows=follows,
        )  # fmt: skip


def _follows() -> bool:
    own = launched_rank()
    return own is not None and own.rank > 0


def _warn_of_absent(config: SubjectConfig) -> None:
    """Says, before minutes are spent, which programs cannot take part, and what they could load."""
    others = [HF] * config.hf + [RIVAL] * (getattr(config, "ctranslate2", None) is not None)
    reason = f"transformers has no class for {config.subject}"
    if config.model is not None:
        reason = (
            f"{config.subject} is no Hugging Face folder; to measure beside it, give --model the folder or Hub id that"
            " it was made of"
        )
    warnings.warn(f"{' and '.join(others)} will not be measured: {reason}.", VlmWarning, stacklevel=2)


def _size(engine: Path) -> int:
    return sum(path.stat().st_size for path in engine.rglob("*"))


def has_floor(name: str) -> bool:
    """Tells whether it is known what a step of a system reads: compiled engines keep quantized weights in ways of their
    own."""
    parts = MeasuredName.read(name)
    return parts.quantization is None or backend(parts.backend).layout is Layout.PAGED


def _check_device(config: SubjectConfig, device: torch.device) -> None:
    """Raises InputError for a device that a backend does not run on, before minutes are spent."""
    runs = lambda name: device.type in backend(MeasuredName.read(name).backend).devices  # noqa: E731
    if unsupported := [name for name in config.backends if not runs(name)]:
        raise InputError(
            f"{listed(unsupported)} does not run on the device, which is {device}; choose another with --device."
        )


def _check_launched(config: SubjectConfig) -> None:
    """Raises InputError for several systems of ranks that one command has started, which end with the first one."""
    own, names = launched_rank(), config.backend_names
    if own is not None and len(names) > 1:
        raise InputError(
            f"--backend names {listed(names)}, and the {own.size} processes that {own.starter} has started end with the"
            f" first system; name one, or leave {own.starter} out: vlm starts the ranks itself."
        )


def split(ours: dict[str, Any]) -> Results:
    """Turns what was measured by backend into what results keep them: the first one, and what was measured
    beside it."""
    first, *others = ours
    return {"vlm": ours[first], "beside": {name: ours[name] for name in others}}


def default_dtype(device: torch.device) -> str:
    return "bfloat16" if device.type == "cuda" else "float32"
