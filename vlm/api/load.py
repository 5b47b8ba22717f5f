"""From a name or a folder to a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.devices import first_device
from vlm.backends.installed import backend_of
from vlm.build.store import resolve
from vlm.config import RuntimeConfig
from vlm.errors import InputError, shown


def load(
    model: str | Path,
    *,
    device: str | None = None,
    dtype: str | None = None,
    max_batch_size: int | None = None,
    max_seq_len: int | None = None,
    max_encoder_input_len: int | None = None,
    backend: str | None = None,
    tp_size: int | None = None,
    pp_size: int | None = None,
    encoder_only: bool = False,
    cache_dir: str | Path | None = None,
    runtime: RuntimeConfig | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    lora: Mapping[str, str | Path] | None = None,
    max_loras: int | None = None,
    max_lora_rank: int | None = None,
    prompt_table: str | Path | None = None,
) -> Pipeline:
    """Loads a packaged name, a Hub id, a Hugging Face folder, a checkpoint or an engine directory.

    What is missing is converted and built once into the cache. `dtype` None: float32 on the CPU, bfloat16 on CUDA (an
    engine keeps its own). `backend`: "torch", "onnxruntime" (on the CPU), "tensorrt" (on CUDA) or "auto", what
    vlm.backends.selection.pick takes; None: an engine's own, else torch. `tp_size`, `pp_size`: the ranks that a build
    has; None: an engine's own, else 1. `encoder_only` leaves the decoder's weights on the disk: `encode` is all that
    there is then. `lora`: folders of adapters by the names that requests have for them. `prompt_table`: tuned prompts
    whose tasks requests may name. They, `max_loras`, `max_lora_rank`, `device` and `max_batch_size` override those of
    `runtime`; None leaves them.
    Raises a VlmError with one sentence.
    """
    if not isinstance(lora, Mapping | None):
        raise InputError(f"lora is {lora!r}; give folders by the names that requests have for them: {{NAME: FOLDER}}.")
    if not isinstance(runtime, RuntimeConfig | None):
        raise InputError(f"runtime is {shown(runtime)}; give a vlm.RuntimeConfig.")
    if bad := [name for name in lora or () if "=" in str(name)]:
        raise InputError(f"an adapter is called {bad[0]!r}; give it a name without =.")
    named = None if lora is None else tuple(f"{name}={folder}" for name, folder in lora.items())
    tables = None if prompt_table is None else str(prompt_table)
    own = {"device": device, "max_batch_size": max_batch_size, "lora": named, "prompt_table": tables}
    runtime = _overridden(runtime or RuntimeConfig(), max_loras=max_loras, max_lora_rank=max_lora_rank, **own)
    limits: dict[str, Any] = {"max_seq_len": max_seq_len, "max_encoder_input_len": max_encoder_input_len}
    options = {"dtype": dtype, "max_batch_size": runtime.max_batch_size, "backend": backend, "cache_dir": cache_dir}
    options |= {"tp_size": tp_size, "pp_size": pp_size}
    path = resolve(model, on=first_device(runtime).type, progress=progress, **options, **limits)
    engine = EngineDir.open(path, verify=False).limited(**limits)
    return _verified(engine.without_decoder() if encoder_only else engine, runtime)


def _verified(engine: EngineDir, runtime: RuntimeConfig) -> Pipeline:
    """Loads an engine, whose files are hashed meanwhile where that is harmless. Raises EngineError for one that is not
    as it was built, whatever else that has led to."""
    with engine.verification() as verification:
        if not _loads_data_alone(engine):
            engine.check(verification)
        try:
            pipeline = Pipeline(engine, runtime)
        except Exception:
            engine.check(verification)
            raise
        try:
            engine.check(verification)
        except BaseException:
            pipeline.close()
            raise
        return pipeline


def _loads_data_alone(engine: EngineDir) -> bool:
    """Says whether nothing of an engine's files is run while it is loaded, nor other processes wait for this one."""
    return backend_of(engine).loads_data_alone and engine.build.num_ranks == 1


def _overridden(runtime: RuntimeConfig, **options: Any) -> RuntimeConfig:
    """Returns the configuration with those options that are not None."""
    return replace(runtime, **{name: value for name, value in options.items() if value is not None})
