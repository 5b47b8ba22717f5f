"""Engines that run one after the other in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vlm_app.core import garbage

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.artifacts.engine_dir import EngineDir
    from vlm.config import RuntimeConfig


@contextmanager
def open_pipeline(engine: EngineDir, runtime: RuntimeConfig) -> Iterator[Pipeline]:
    """Gives a running engine, whose memory is free afterwards; what ran before holds none."""
    from vlm.api.pipeline import Pipeline

    release()  # the engine sizes its cache by what is free
    pipeline = Pipeline(engine, runtime)
    garbage.exempt()
    try:
        yield pipeline
    finally:
        pipeline.close()
        del pipeline
        release()


def release() -> None:
    """Frees the GPUs' memory that nothing refers to."""
    import torch

    garbage.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
