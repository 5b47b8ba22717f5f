"""KServe's model repository extension: what there is, loaded and unloaded while the server runs.

https://github.com/triton-inference-server/server: docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlm.api.pipeline import Pipeline
from vlm.errors import ConfigError, EngineError, InputError, ModelNotFoundError, VlmError, listed
from vlm_app.core.names import one_line
from vlm_app.server.core.errors import Forbidden
from vlm_app.server.repository.repository import Entry, scan
from vlm_app.server.repository.service import Service, Services

if TYPE_CHECKING:
    from vlm_app.server.repository.loading import Loader


@dataclass
class Repositories:
    """The repositories of a server, and what has been loaded of them."""

    urls: Sequence[str]
    loader: Loader
    entries: dict[str, Entry | VlmError] = field(default_factory=dict)
    loaded_entries: dict[str, Entry] = field(default_factory=dict)

    def scan(self) -> None:
        """Raises InputError for one that cannot be reached, and for a name that two have."""
        entries: dict[str, Entry | VlmError] = {}
        for url in self.urls:
            models = scan(url)
            if both := sorted(models.keys() & entries.keys()):
                raise InputError(f"two model repositories hold {listed(both)}; rename one of the folders.")
            entries |= models
        self.entries = entries

    @property
    def loadable(self) -> int:
        """Returns how many of the entries may load."""
        return sum(isinstance(entry, Entry) for entry in self.entries.values())

    def entry(self, name: str) -> Entry:
        """Raises a VlmError that says why it cannot be served."""
        if name not in self.entries:
            there = f"there is {listed(self.entries)}" if self.entries else "none was named with --model-repository"
            raise ModelNotFoundError(f"model {name!r} is in no repository here; {there}.")
        if isinstance(entry := self.entries[name], VlmError):
            raise entry
        return entry

    def prepare(self, name: str) -> bool:
        """Checks what can be checked of a model before it is loaded, and returns whether it can be loaded beside what
        runs. Raises as `load`."""
        with self._failures(name) as entry:
            return self.loader.prepare(entry)

    def load(self, name: str) -> Pipeline:
        """Raises a VlmError with one sentence, which is kept for the index; ConfigError for files that are damaged:
        who is told has not asked an engine that has broken."""
        with self._failures(name) as entry:
            pipeline = self.loader.entry(entry)
        self.loaded_entries[name] = entry
        return pipeline

    @contextmanager
    def _failures(self, name: str) -> Iterator[Entry]:
        entry = self.entry(name)
        try:
            self._check_adapters(entry)
            yield entry
        except EngineError as error:
            self.entries[name] = damaged = ConfigError(str(error))
            raise damaged from None
        except VlmError as error:
            self.entries[name] = copy.copy(error)  # without its traceback, whose frames hold half a model
            raise

    def _check_adapters(self, entry: Entry) -> None:
        """Raises ConfigError for an adapter that is called as a model here, or as an adapter of another one: requests
        name either in one way."""
        others = [each for each in self.loaded_entries.values() if each.name != entry.name]
        names = {*self.entries, *(adapter for each in others for adapter in each.adapters)}
        if both := sorted(names.intersection(entry.adapters)):
            raise ConfigError(f"{entry.where}: lora names {listed(both)}, which is something else's name here, too;"
                              " give the adapter another one.")  # fmt: skip


class Control:
    """Changes which models are served. One change at a time."""

    def __init__(
        self,
        services: Services,
        repositories: Repositories | None,
        serve: Callable[[str, Pipeline], None],
        is_enabled: bool,
        drain_seconds: int,
    ):
        """`serve` puts a loaded model among the services."""
        self._services, self._repositories, self._serve = services, repositories, serve
        self._is_enabled, self._drain_seconds, self._lock = is_enabled, drain_seconds, asyncio.Lock()

    def index(self, only_ready: bool) -> list[dict[str, str]]:
        rows = [_row(s.name, s.version, "" if s.ready else "the engine has broken") for s in self._services]
        for name, entry in self._repositories.entries.items() if self._repositories else ():
            if name in self._services.by_name:
                continue
            if isinstance(entry, VlmError):
                rows.append(_row(name, "", one_line(str(entry))))
            elif name in self._services.expected:
                rows.append(_row(name, entry.version, "") | {"state": "LOADING"})
            else:
                rows.append(_row(name, entry.version, "unloaded"))
        return [row for row in rows if row["state"] == "READY" or not only_ready]

    async def load(self, name: str) -> None:
        """Looks at the repository again; a model that has changed there takes the place of its predecessor."""
        repositories = self._checked(name)
        async with self._lock:
            await asyncio.to_thread(repositories.scan)
            entry = repositories.entry(name)  # one that cannot be served takes nobody's place
            is_served = name in self._services.by_name
            if is_served and entry.stamp == repositories.loaded_entries[name].stamp:
                return
            with self._services.expecting(name, *entry.adapters):
                if is_served:
                    await self._replace(repositories, name)
                else:
                    self._serve(name, await asyncio.to_thread(repositories.load, name))

    async def _replace(self, repositories: Repositories, name: str) -> None:
        """Has a model's successor take its place. The predecessor goes on until then where memory holds both; else it
        makes room, once the successor's files have been checked."""
        if await asyncio.to_thread(repositories.prepare, name):
            pipeline = await asyncio.to_thread(repositories.load, name)
            await self._close(self._swapped(name, pipeline), repositories)
            return
        await self._unload(repositories, name)
        try:
            self._serve(name, await asyncio.to_thread(repositories.load, name))
        except VlmError as error:
            told = copy.copy(error)
            told.args = (f"{str(error).removesuffix('.')}; {name} as it was before had to make room, and is unloaded.",)
            raise told from None

    def _swapped(self, name: str, pipeline: Pipeline) -> Service:
        """Serves a model, and returns the one that was served before."""
        predecessor = self._services.remove(name)
        self._serve(name, pipeline)
        return predecessor

    async def unload(self, name: str) -> None:
        """Unloads a model when what runs has ended, or the time to drain is over."""
        repositories = self._checked(name)
        async with self._lock:
            await self._unload(repositories, name)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Loads an adapter of the one model that is served. Raises InputError where there are several, or one has its
        name."""
        self._check_enabled()
        if len(services := list(self._services)) != 1:
            raise InputError("adapters are loaded by a server of one model; this one serves several, or none.")
        if name in self._services.by_name:
            raise InputError(f"{name!r} is a model here; give the adapter another name.")
        async with self._lock:
            await services[0].model.load_lora(name, folder)

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter; what runs with it ends as it would have."""
        self._check_enabled()
        async with self._lock:
            service, adapter = self._services.asked(name)
            if not adapter:
                raise InputError(f"{name!r} is a model, not an adapter.")
            await service.model.unload_lora(name)

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise Forbidden(
                "models and adapters are not loaded and unloaded here; start the server with --model-control."
            )

    def _checked(self, name: str) -> Repositories:
        self._check_enabled()
        if self._repositories is None or (
            name in self._services.by_name and name not in self._repositories.loaded_entries
        ):
            raise InputError(f"model {name!r} is not of a model repository; it stays as the server was started.")
        return self._repositories

    async def _unload(self, repositories: Repositories, name: str) -> None:
        del repositories.loaded_entries[self._services[name].name]
        await self._close(self._services.remove(name), repositories)  # whose memory nothing else holds

    async def _close(self, service: Service, repositories: Repositories) -> None:
        await service.close(self._drain_seconds)
        del service
        await asyncio.to_thread(repositories.loader.freed)


def _row(name: str, version: str, reason: str) -> dict[str, str]:
    """Returns a model that is served, or the reason why it is not."""
    return {"name": name, "version": version, "state": "UNAVAILABLE" if reason else "READY", "reason": reason}


def merged_index(indexes: Sequence[list[dict[str, str]]]) -> list[dict[str, str]]:
    """Returns the index of several servers: what all of them list, a model as the first does that has it not READY."""
    by_name = [{row["name"]: row for row in index} for index in indexes]
    names = [name for name in by_name[0] if all(name in rows for rows in by_name)]
    return [
        next((rows[name] for rows in by_name if rows[name]["state"] != "READY"), by_name[0][name]) for name in names
    ]
