"""Engines that run one after the other in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vlm_app.core.processes import garbage

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.config import RuntimeConfig
    from vlm.parallel.collectives import Ranks
    from vlm.parallel.environment import Meeting


@contextmanager
def open_pipeline(engine: EngineDir, runtime: RuntimeConfig, meeting: Meeting | None = None) -> Iterator[Pipeline]:
    """Gives a running engine, whose memory is free afterwards; what ran before holds none. `meeting`: of its ranks,
    where they have met already; the others wait until the first one comes here."""
    from vlm.api.pipeline import Pipeline

    release()  # the engine sizes its cache by what is free
    ranks = None
    if meeting is not None:
        ranks, runtime = _connected(engine, runtime, meeting)
    pipeline = Pipeline(engine, runtime, ranks)
    garbage.exempt()
    try:
        yield pipeline
    finally:
        pipeline.close()
        del pipeline
        release()


def _connected(engine: EngineDir, runtime: RuntimeConfig, meeting: Meeting) -> tuple[Ranks, RuntimeConfig]:
    from vlm.api.model import rank_processes

    meeting.wait_for_first()
    others = rank_processes.begin(engine, runtime, meeting)
    return others.ranks, others.runtime


def release() -> None:
    """Frees the GPUs' memory that nothing refers to."""
    import torch

    garbage.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
