"""The engine of a job: resolved once, loaded by whatever runs it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from app.ocr.pages import InProcess
from vlm.errors import ConfigError
from vlm.files import canonical_json

if TYPE_CHECKING:
    from app.ocr.events import Reader
    from app.ocr.pages import Renderer
    from vlm.pipeline import Pipeline

Progress = Callable[[str, int, int], None]  # description, done, total


@dataclass(frozen=True)
class EngineConfig:
    """A built engine and where it runs."""

    CUDA_BATCH_SIZE: ClassVar[int] = 64  # a decode step costs a GPU about the same for 1 page and for 64

    path: Path
    device: str
    max_batch_size: int | None = None
    workers: int | None = None  # processes that render; None: by the number of cores

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"--workers is {self.workers}; it must be 0 (render in the same process) or more.")

    @classmethod
    def resolved(
        cls,
        model: str,
        device: str,
        dtype: str | None,
        batch_size: int | None,
        workers: int | None,
        progress: Progress | None = None,
    ) -> EngineConfig:
        """Builds what is missing. Raises what `vlm.resolve.resolve` raises, and InputError for a device."""
        from vlm.resolve import locate, resolve
        from vlm.runtime.loader import resolve_device

        cuda = resolve_device(device).type == "cuda"
        if batch_size is None and cuda and locate(model).kind != "engine":
            batch_size = cls.CUDA_BATCH_SIZE
        default = "bfloat16" if cuda else "float32"
        path = resolve(model, dtype=dtype, default_dtype=default, max_batch_size=batch_size, progress=progress)
        return cls(path, device, batch_size, workers)

    def settings(self, max_new_tokens: int | None) -> dict[str, object]:
        """What decides on the text of a page."""
        from vlm.compile.engine_dir import EngineDir

        manifest = EngineDir.open(self.path, verify=False).manifest
        content = {name: entry["sha256"] for name, entry in manifest.files.items()}
        mark = hashlib.sha256(canonical_json(content).encode()).hexdigest()[:12]
        model = f"{manifest.family} {mark}"
        return {"model": model, "dtype": manifest.dtype, "max_new_tokens": max_new_tokens}

    def load(self, device: str | None = None) -> Pipeline:
        """The pipeline, on `device` where it is another one."""
        from vlm.compile.engine_dir import EngineDir
        from vlm.config import RuntimeConfig
        from vlm.pipeline import Pipeline

        runtime = RuntimeConfig(device=device or self.device, max_batch_size=self.max_batch_size)
        return Pipeline(EngineDir.open(self.path), runtime)

    def reader(self) -> Reader:
        """Reads with it."""
        from app.ocr.reader import PipelineReader

        renderer = self.renderer()  # starts while the model loads
        try:
            return PipelineReader(self.load(), renderer)
        except BaseException:
            renderer.close()
            raise

    def renderer(self) -> Renderer:
        from app.ocr.render_pool import RenderPool

        workers = usual_workers() if self.workers is None else self.workers
        return RenderPool(workers) if workers else InProcess()


def usual_workers(engines: int = 1) -> int:
    """Processes that render for one of so many engines: half of the cores."""
    return max(1, min(16, (os.cpu_count() or 1) // (2 * engines)))
