"""`--model X` -> an engine directory. What is missing is downloaded, converted and built once, into the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.backends.installed import backend as backend_named
from vlm.backends.installed import checked_backend
from vlm.backends.selection import pick
from vlm.build.engine_cache import cached_engine
from vlm.build.kinds import vision_of
from vlm.build.locate import locate
from vlm.config import BuildConfig, EngineLimits
from vlm.errors import EngineError, LimitError
from vlm.parallel.environment import rank_among

LIMITS = tuple(field.name for field in dataclasses.fields(EngineLimits))


def resolve(
    model: str | Path,
    *,
    on: str = "cpu",
    dtype: str | None = None,
    max_batch_size: int | None = None,
    max_seq_len: int | None = None,
    max_encoder_input_len: int | None = None,
    backend: str | None = None,
    tp_size: int | None = None,
    pp_size: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Returns the engine directory of a packaged name, a Hub id, a Hugging Face folder (or another program's folder or
    file), a checkpoint or an engine directory.

    An engine that is given is used as it is; `None` takes what it has. For the others `None` means BuildConfig's
    defaults and the type that the backend has `on` cpu or cuda, where "auto" is what vlm.backends.selection.pick takes.
    Two processes that ask at once build once; an interrupted build leaves nothing behind.
    Raises ModelNotFoundError, LimitError and EngineError (an engine that was built for less or for something else, or
    for other ranks than mpirun, torchrun or srun has started), and what conversion and build raise.
    """
    auto = backend == "auto"
    limits = {"max_batch_size": max_batch_size, "max_seq_len": max_seq_len}
    overrides = limits | {"max_encoder_input_len": max_encoder_input_len, "dtype": dtype}
    overrides |= {"tp_size": tp_size, "pp_size": pp_size} | ({} if auto else {"backend": backend})
    overrides = {name: value for name, value in overrides.items() if value is not None}
    runner = None if auto else backend_named(backend or BuildConfig.backend)  # refused before a download
    source = locate(model, progress=progress)
    if source.kind == "engine":
        engine = EngineDir.open(source.path, verify=False)
        rank_among(engine.build.num_ranks, source.path)
        _check_engine(engine, overrides)
        return source.path
    runner = runner or backend_named(pick(on, dtype, vision_of(source.path, source.kind)).name)
    build = BuildConfig(**{"dtype": runner.default_dtype(on), **overrides, "backend": runner.name})
    rank_among(build.num_ranks, source.name)  # refused before a build
    build = checked_backend(build).for_this_machine(build)
    return cached_engine(source, build, cache_dir, progress)


def _check_engine(engine: EngineDir, overrides: dict[str, Any]) -> None:
    """Raises EngineError or LimitError for what an engine does not serve: it serves smaller limits than its own; a
    larger one or another dtype needs a build."""
    path, build, limits = engine.path, engine.build, engine.limits
    if build.max_seq_len is None and "max_seq_len" in overrides:
        raise EngineError(
            f"the engine {path} is an encoder alone: max_encoder_input_len is its limit, leave max_seq_len out.",
            settings=("max_seq_len", "max_encoder_input_len"),
        )
    short = {n: v for n, v in overrides.items() if n in LIMITS and v > getattr(limits, n)}
    other = {n: v for n, v in overrides.items() if n not in LIMITS and v != getattr(build, n)}
    if not short and not other:
        return
    has = ", ".join(f"{name} {getattr(build, name)}" for name in (*short, *other))
    wants = ", ".join(f"{name} {value}" for name, value in (short | other).items())
    error = LimitError if short else EngineError
    raise error(
        f"the engine {path} was built for {has}, asked is {wants}; rebuild it: {rebuild_command(engine, overrides)}.",
        settings=(*short, *other),
    )


def rebuild_command(engine: EngineDir, overrides: Mapping[str, Any]) -> str:
    """Returns the command that builds an engine anew, with these fields of its BuildConfig changed."""
    changed = {name for name, value in overrides.items() if value != getattr(engine.build, name)}
    own: dict[str, Any] = {"target": ()} if "backend" in changed else {}
    if overrides.get("tp_size", engine.build.tp_size) % (engine.build.encoder_tp_size or 1):
        own["encoder_tp_size"] = None
    build = dataclasses.replace(engine.build, **{**own, **overrides})
    return f"vlm build MODEL -o {engine.path} {' '.join(build.options())}"
