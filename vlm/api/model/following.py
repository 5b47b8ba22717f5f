"""The ranks but the first of an engine whose networks are split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm.api.model.loader import load_engine
from vlm.engine.leading import follow

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.config import RuntimeConfig
    from vlm.parallel.collectives import Ranks


def follow_first_rank(engine: EngineDir, runtime: RuntimeConfig, ranks: Ranks) -> None:
    """Runs one rank's part until the first rank closes its pipeline, which was loaded with the same arguments."""
    try:
        follow(load_engine(engine, runtime, ranks), ranks.hosts)
    except BaseException:
        ranks.abort()  # its GPU may wait for ranks that wait for it
        raise
    finally:
        ranks.close()
