"""A model from its engine directory to a device, with what reads its inputs; and what ends with it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from vlm.api.ahead.pooled import THREADS
from vlm.api.capabilities import Capabilities
from vlm.api.model.adapters import LoadedAdapters
from vlm.api.model.loader import load_engine
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.prompt_tables import PromptTables
from vlm.backends.devices import of_rank
from vlm.backends.threads import take_one_thread
from vlm.config import ModelConfig, RuntimeConfig
from vlm.engine.engine_loop import EngineLoop
from vlm.engine.leading import Engine, LeadingEngine
from vlm.engine.llm_engine import EngineUsage
from vlm.errors import InputError
from vlm.ops.kernels.compile_time import compile_seconds
from vlm.parallel.collectives import ALONE, Ranks
from vlm.parallel.environment import rank_among
from vlm.processing.processor import Processor, ProcessorFiles

if TYPE_CHECKING:
    from vlm.api.model.rank_processes import RankProcesses
    from vlm.executor.collective_time import CollectiveTime

IN_EACH = "load it in each, with vlm.load()."


class LoadedModel:
    """An engine on its device, beside what reads its inputs and outputs, until `close`."""

    def __init__(self, engine: EngineDir, runtime: RuntimeConfig | None = None, ranks: Ranks | None = None):
        """`ranks`: those that run an engine whose networks are split, of which this is the first
        (vlm.api.model.following); None: processes that it starts, or that mpirun, torchrun or srun has started
        (vlm.api.model.rank_processes)."""
        self.engine, runtime = engine, runtime or RuntimeConfig()
        tables = None if runtime.prompt_table is None else PromptTables.open(runtime.prompt_table)
        with ExitStack() as opened:  # what has been opened is closed where the rest fails
            ranks, runtime = self._ranks(runtime, ranks, opened)
            with ThreadPoolExecutor(1, "processor") as beside:
                reading = beside.submit(ProcessorFiles.read, engine)
                self.llm = self._loaded(runtime, ranks, opened)
                files = reading.result()
            self.loop = EngineLoop(self.llm)
            self.adapters = LoadedAdapters(engine, self.llm, list(runtime.lora_folders))
            self.processor = Processor.from_engine(engine, self.adapters, tables, files)
            self._workers = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "preprocess", take_one_thread)
            opened.callback(self._workers.shutdown, wait=False, cancel_futures=True)
            self.capabilities = Capabilities.from_loaded(self.processor, self.llm)
            self._opened = opened.pop_all()
        self.family, self.tokenizer = self.processor.family, self.processor.tokenizer
        self.image_processor = self.processor.image_processor
        self.config: ModelConfig = self.llm.config
        self.device = self.llm.encoders.device
        self._is_closed, self._process = False, os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InputError(f"a loaded model stays in its process; {IN_EACH}")

    @property
    def compile_seconds(self) -> float:
        """Returns what this process has spent on compiling kernels: once on a machine, which keeps them."""
        return compile_seconds()

    def collective_time(self, rows: int) -> CollectiveTime | None:
        """Measures what ranks tell each other in a decode step of so many sequences, by itself; None: there is one rank
        alone. Not while requests are under way."""
        return self.llm.collective_time(rows) if isinstance(self.llm, LeadingEngine) else None

    def load_lora(self, name: str, folder: str | Path) -> None:
        """Loads an adapter, which requests may name from now on. Raises InputError for a name that one has or none can
        have, LimitError where there is no room for it (`max_loras`, `max_lora_rank`), ConfigError and CheckpointError
        for one that does not fit."""
        self.adapters.load(name, self.adapters.read(folder))

    def unload_lora(self, name: str) -> None:
        """Unloads an adapter; requests that have it end with it. Raises InputError for one that is not loaded."""
        self.adapters.unload(name)

    def usage(self) -> EngineUsage | None:
        """Says how full its engine is; None of an encoder alone. Any thread may ask."""
        return self.llm.usage()

    def free_cached_memory(self) -> None:
        """Gives back the device memory of what is kept for later."""
        self.llm.free_cached_memory()

    def close(self) -> None:
        """Ends what works for it, other ranks too; it takes no more inputs."""
        self._is_closed = True
        self._opened.close()

    def _check_open(self) -> None:
        """Raises InputError once it is closed, and in a process that was forked: its threads are not there."""
        if self._is_closed:
            raise InputError("this pipeline is closed; load the model again, with vlm.load().")
        if self._process != os.getpid():
            raise InputError(f"this model was loaded in another process; {IN_EACH}")

    def _ranks(self, runtime: RuntimeConfig, ranks: Ranks | None, opened: ExitStack) -> tuple[Ranks, RuntimeConfig]:
        """Returns the ranks that run the engine, of which this is the first, and the runtime of this one. Starts the
        others where nobody has."""
        self._others: RankProcesses | None = None
        if ranks is not None:
            return ranks, runtime
        if self.engine.build.num_ranks == 1:
            rank_among(1, self.engine.path)
            return ALONE, of_rank(runtime, 0, 1)
        from vlm.api.model import rank_processes

        self._others = rank_processes.begin(self.engine, runtime)
        opened.callback(self._others.kill)  # those that have not ended when they were told to
        return self._others.ranks, self._others.runtime

    def _loaded(self, runtime: RuntimeConfig, ranks: Ranks, opened: ExitStack) -> Engine:
        engine = load_engine(self.engine, runtime, ranks)
        if ranks.size == 1:
            return engine
        leading = LeadingEngine(engine, ranks)
        if self._others is not None:
            opened.callback(self._others.close)
        opened.callback(leading.dismiss)
        return leading
