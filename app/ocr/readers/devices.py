"""Several devices of one machine: a process with an engine on each, one ledger.

This process hands out documents in chunks of pages and receives what was read; a device that is faster gets more.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from multiprocessing.connection import wait
from operator import add
from typing import TYPE_CHECKING, Any

from vlm_app.ocr.documents.pages import Pages, opened, opening
from vlm_app.ocr.documents.render_pool import RenderPool
from vlm_app.ocr.events import Event, Opened, Reader, Unreadable, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.device import Device
from vlm_app.ocr.readers.reader import PipelineReader

if TYPE_CHECKING:
    from vlm_app.ocr.readers.engines import EngineConfig

CHUNK = 4  # pages handed out at once: few, so that the devices end together
OPENERS = 2  # processes that open documents, a device


def load_reader(engine: EngineConfig) -> Reader:
    """Loads an engine on each of its devices. Raises what `vlm.load` raises."""
    return DeviceReader(engine, engine.devices) if len(engine.devices) > 1 else PipelineReader.load(engine)


class DeviceReader:
    """One engine a device. Raises what an engine raises that cannot be loaded."""

    def __init__(self, engine: EngineConfig, devices: tuple[str, ...]):
        self.engines = len(devices)
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._opener = RenderPool(OPENERS * len(devices))
        self._devices: list[Device] = []
        try:
            for name in devices:
                self._devices.append(Device.started(context, engine, name))
            for device in self._devices:
                device.receive()
        except BaseException:
            self.close()
            raise

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        for device in self._devices:
            device.begin(dict(sampling))
        for item in self._chunks(works, limit):
            if isinstance(item, Opened | Unreadable):
                yield item
                continue
            while not (device := min(self._devices, key=lambda each: len(each.pages))).has_room:
                yield from self._answers()
            device.hand_out(*item)
        for device in self._devices:
            device.end()
        while any(device.busy for device in self._devices):
            yield from self._answers()

    def measures(self) -> Measures:
        told = reduce(add, (device.measures for device in self._devices))
        return replace(told, engines=self.engines)  # some may not have told anything yet

    def close(self) -> None:
        self._opener.close()
        for device in self._devices:
            device.stop()
        for device in self._devices:
            device.join()

    def _chunks(self, works: Iterable[Work], limit: int | None) -> Iterator[tuple[Work, Pages] | Opened | Unreadable]:
        """Yields documents as chunks of their pages, each after the news that it is open."""
        for work, future in opening(self._opener, works, in_order=limit is not None):
            answer = opened(work, future)
            if isinstance(answer, Unreadable):
                yield answer
                continue
            news, document = answer
            yield news
            due = work.due(news.pages)[:limit]
            for start in range(0, len(due), CHUNK):
                numbers = ",".join(str(page + 1) for page in due[start : start + CHUNK])
                yield Work(work.document, document.local, numbers, is_quick=work.is_quick), document
            if limit is not None and not (limit := limit - len(due)):
                return

    def _answers(self) -> Iterator[Event]:
        """Waits for what the devices say next."""
        busy = [device for device in self._devices if device.busy]
        ready = wait([device.pipe for device in busy])
        for device in busy:
            if device.pipe in ready:
                yield from device.take()
