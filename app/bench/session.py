"""What all benchmarks share: one model, built once for us and loaded once by Hugging Face, on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

import vlm
from app.bench.config import SubjectConfig
from app.bench.environment import environment
from app.bench.floor import bandwidth
from app.bench.subject import Limits, Progress, configs_of, prepare
from vlm.compile.engine_dir import EngineDir
from vlm.config import Config
from vlm.runtime.loader import resolve_device

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

Results = dict[str, Any]
C = TypeVar("C", bound=SubjectConfig)
T = TypeVar("T")


@dataclass(frozen=True)
class Session(Generic[C]):
    """An engine that is built and, where Hugging Face takes part, a folder with the same weights."""

    config: C  # with the device and dtype that are used
    device: torch.device
    engine: EngineDir
    folder: Path | None
    say: Progress

    @functools.cached_property
    def configs(self) -> Mapping[str, Config]:
        """The engine's, by role."""
        return configs_of(self.engine)

    def bandwidth(self) -> float:
        self.say("Measuring the memory bandwidth", 0, 0)
        return bandwidth(self.device)

    def compare(self, baseline: Callable[[Path], T], ours: Callable[[Pipeline], T]) -> tuple[T, T | None]:
        """(ours, Hugging Face's), measured the other way round: one model at a time is in memory."""
        theirs = None
        if self.folder is not None:
            self.say("Measuring Hugging Face", 0, 0)
            theirs = baseline(self.folder)
        release(self.device)  # the engine sizes its cache by what is free
        self.say("Measuring vlm", 0, 0)
        with opened(self.engine.path, self.device) as pipeline:
            return ours(pipeline), theirs

    def head(self, kind: str) -> Results:
        """What a result says of itself."""
        settings = {"config": self.config.to_dict(), "environment": environment(self.device)}
        return {"kind": kind, "subject": self.config.subject, **settings}


@contextlib.contextmanager
def prepared(
    config: C, takes: str, progress: Progress | None = None, limits: Limits | None = None
) -> Iterator[Session[C]]:
    """Builds in a scratch folder that goes with the session."""
    device = resolve_device(config.device)
    say = progress or (lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="vlm-bench-") as scratch:
        subject = prepare(config, config.dtype or default_dtype(device), Path(scratch), takes, progress, limits)
        engine = EngineDir.open(subject.engine)
        used = dataclasses.replace(config, device=str(device), dtype=engine.build.dtype)
        yield Session(used, device, engine, subject.folder if config.hf else None, say)


def default_dtype(device: torch.device) -> str:
    return "bfloat16" if device.type == "cuda" else "float32"


@contextlib.contextmanager
def opened(engine: Path, device: torch.device) -> Iterator[Pipeline]:
    pipeline = vlm.load(engine, device=str(device))
    try:
        yield pipeline
    finally:
        pipeline.close()


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
