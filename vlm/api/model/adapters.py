"""The adapters of a loaded model: those that it is loaded with, and those that come and go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.base import Layout
from vlm.backends.installed import backend_of
from vlm.config import RuntimeConfig
from vlm.convert.adapters.folded_scales import check_scales
from vlm.convert.adapters.frozen_weights import check_frozen
from vlm.convert.adapters.placing import PER_ROW, read_layers
from vlm.errors import InputError, LimitError, counted, listed
from vlm.executor.adapters import Adapter, AdapterCache
from vlm.layers.adapters.base import AdapterRoom, rank_of
from vlm.packaged import adapter_folder, is_adapter_name, named_path
from vlm.parallel.collectives import ALONE, Ranks
from vlm.registry import catalogs
from vlm.requests.adapters import adapter_id

if TYPE_CHECKING:
    from vlm.engine.leading import Engine

DEFAULT_RANK = 16  # the highest one where neither an option nor an adapter says which


class LoadedAdapters(Mapping[str, int]):
    """The numbers of a model's adapters by their names. A number is never given again: what is kept of one adapter's
    requests is not another one's."""

    def __init__(self, model: EngineDir, engine: Engine, names: list[str]):
        """`names`: of the adapters that the engine was loaded with."""
        self._model, self._engine = model, engine
        self._numbers = {name: number for number, name in enumerate(names)}
        self._next = itertools.count(len(names))

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._numbers))  # another thread may load one

    def __len__(self) -> int:
        return len(self._numbers)

    def load(self, name: str, adapter: Adapter) -> None:
        """Loads an adapter beside the others. Raises InputError for a name that one has or none can have, LimitError
        where there is no room for it."""
        if not isinstance(name, str) or not is_adapter_name(name):
            raise InputError(f"{name!r} is no adapter's name; give printable words with a letter or digit.")
        if name in self._numbers:
            raise InputError(f"there is an adapter {name!r} already; unload it first, or take another name.")
        number = next(self._next)
        self._engine.load_adapter(number, adapter)
        self._numbers[name] = number

    def unload(self, name: str) -> None:
        """Lets no request name an adapter any more; those that have it end with it. Raises InputError for one that is
        not loaded, and for a number, which requests alone may give."""
        if not isinstance(name, str):
            raise InputError(
                f"{name!r} is no adapter's name; name what is loaded: {listed(self._numbers) or 'none is'}."
            )
        number = adapter_id(name, self._numbers)
        del self._numbers[name]
        self._engine.unload_adapter(number)

    def read(self, folder: str | Path) -> Adapter:
        """Returns what the adapter of a folder, or a packaged one, changes of the model; any thread may call it. Raises
        as read_adapter."""
        return read_adapter(self._model, adapter_folder(str(named_path(folder, "folder"))))


def read_adapter(engine: EngineDir, folder: Path) -> Adapter:
    """Returns what the adapter of a folder changes of an engine's networks. Raises InputError for an engine that takes
    none, and as check_scales; ConfigError and CheckpointError as read_layers and check_frozen."""
    if (backend := backend_of(engine)).layout is not Layout.PAGED:
        raise InputError(
            f"adapters are for backend torch, {backend.name} runs compiled graphs; merge one into its model with"
            " vlm convert --merge-lora and build that.",
            settings=("backend",),
        )
    configs = catalogs.configs_of(engine)
    adapter = read_layers(folder, catalogs.family(engine.family), configs)
    check_frozen(adapter, folder, engine)
    check_scales(adapter.layers, folder, engine, configs)
    return adapter.layers


def with_room(runtime: RuntimeConfig, adapters: list[Adapter]) -> RuntimeConfig:
    """Returns the runtime with as much room for adapters as it says, or as its own need. Raises LimitError where it
    says for how many, or of which rank, and there are more."""
    if not adapters and runtime.max_loras is None and runtime.max_cpu_loras is None:
        return replace(runtime, max_lora_rank=None)
    ranks = {name: rank_of(adapter) for name, adapter in zip(runtime.lora_folders, adapters, strict=True)}
    count = runtime.max_loras or len(ranks) or runtime.max_cpu_loras or 0
    on_host = runtime.max_cpu_loras or max(count, len(ranks))
    rank = runtime.max_lora_rank or max(ranks.values(), default=0) or DEFAULT_RANK
    if len(ranks) > on_host:
        raise LimitError(
            f"there is room for {counted(on_host, 'adapter')}, {len(ranks)} are named",
            f"give max_cpu_loras {len(ranks)}",
            settings=("max_cpu_loras",),
        )
    for name, own in ranks.items():
        if own > rank:
            raise LimitError(
                f"there is room for adapters of rank {rank}, {name} has {own}",
                f"give max_lora_rank {own}",
                settings=("max_lora_rank",),
            )
    return replace(runtime, max_loras=min(count, on_host), max_cpu_loras=on_host, max_lora_rank=rank)


def load_adapters(
    networks: Mapping[str, Any], adapters: list[Adapter], runtime: RuntimeConfig, ranks: Ranks = ALONE, **kind: Any
) -> AdapterCache:
    """Returns the adapters, numbered in their order, of networks by role that have banks for them; `kind`: the device
    and type that these compute in. The first ones are on the device."""
    own = {role: network for role, network in networks.items() if role in PER_ROW}
    room, kind = AdapterRoom.from_runtime(runtime), kind | {"minimum": ranks.hosts.minimum}
    cache = AdapterCache(own, room, capacity=runtime.max_cpu_loras or 0, **kind)
    for number, adapter in reversed([*enumerate(adapters)]):  # each once: the banks have all that any of them needs
        cache.add(number, adapter)
    return cache
