"""Engines whose networks several ranks split: the first one is asked, and the others do the same, call by call.

What a rank decides follows from the calls and from tokens, which are the same on all: so no plan need be sent.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlm.engine.encoder_engine import EncoderEngine
from vlm.engine.llm_engine import LLMEngine
from vlm.errors import EngineError, InputError, OutOfMemoryError
from vlm.executor.memory import is_out_of_memory, memory_errors
from vlm.requests.request import Request
from vlm.requests.sampling_values import draw_seed
from vlm.requests.token_update import TokenUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.executor.collective_time import CollectiveTime
    from vlm.layers.adapters.base import Layers
    from vlm.layers.forward_batch import HiddenStateRecorder
    from vlm.parallel.collectives import Hosts, Ranks
    from vlm.requests.image import Image

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method's name and its arguments
_SMALLER = "start again with a smaller max_batch_size."
OUT_OF_MEMORY = f"the first of several ranks ran out of memory, and the others wait for what it had begun: {_SMALLER}"
FOLLOWER_OUT_OF_MEMORY = f"it ran out of memory, and all the others, which wait for it, end with it: {_SMALLER}"
BROKEN_OFF = "a call has broken off on the first of several ranks, and the others wait for it; start them again."


@dataclass
class _State:
    amid_call: bool = False  # of all ranks: it has begun and not come to its end
    reason: EngineError = field(default_factory=lambda: EngineError(BROKEN_OFF))  # why it has not


class LeadingEngine:
    """Stands where the engine of the first rank does. What changes nothing but its queue is told with the next step.

    `dismiss()` lets the others end; it is called at the latest when this object or this process ends.
    """

    def __init__(self, engine: LLMEngine | EncoderEngine, ranks: Ranks):
        self._engine, self._hosts = engine, ranks.hosts
        self._calls: list[Call] = []
        self._state = _State()
        self.dismiss = weakref.finalize(self, _dismiss, ranks, self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)  # what is only read

    def add(self, requests: list[Request]) -> list[int]:
        # a seed that each rank would draw for itself chooses other tokens
        seeded = [request if request.params.seed is not None else _with_seed(request) for request in requests]
        self._calls.append(("add", (seeded,), {}))  # those that are refused take ids, too
        return self._engine.add(seeded)

    def abort(self, request_id: int) -> None:
        self._calls.append(("abort", (request_id,), {}))
        self._engine.abort(request_id)

    def load_adapter(self, adapter_id: int, adapter: Mapping[str, Layers]) -> None:
        self._with_others("load_adapter", self._engine.load_adapter, adapter_id, adapter)

    def unload_adapter(self, adapter_id: int) -> None:
        self._calls.append(("unload_adapter", (adapter_id,), {}))
        self._engine.unload_adapter(adapter_id)

    def step(self, *, streamed: bool = True) -> list[TokenUpdate]:
        return self._with_others("step", self._engine.step, streamed=streamed)

    def rest(self) -> None:
        """Lets go of what has ended; the others do so by themselves (`follow`)."""
        self._engine.rest()

    def free_cached_memory(self) -> None:
        self._with_others("free_cached_memory", self._engine.free_cached_memory)

    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None = None) -> list[Tensor]:
        """Raises InputError for attention weights, of which each rank has those of its heads."""
        if recorder is not None and recorder.keep_attentions:
            raise InputError("attention weights are given by a model that runs on one GPU alone; leave them out.")
        return self._with_others("encode_texts", self._engine.encode_texts, requests, recorder)

    def encode_images(self, images: list[Image], *, cached: bool) -> list[Tensor]:
        return self._with_others("encode_images", self._engine.encode_images, images, cached=cached)

    def collective_time(self, rows: int) -> CollectiveTime:
        assert isinstance(self._engine, LLMEngine)  # who measures decodes
        return self._with_others("collective_time", self._engine.collective_time, rows)

    def _with_others(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Makes a call on all ranks. Raises EngineError after one that has broken off: the others wait amid it."""
        if self._state.amid_call:
            raise copy.copy(self._state.reason)
        calls, self._calls = [*self._calls, (name, arguments, options)], []
        self._state.amid_call = True
        try:
            self._hosts.broadcast(calls)
            result = call(*arguments, **options)
            self._hosts.check()  # what a GPU has gone on with without another one is no result
        except InputError:  # which all ranks have raised
            self._state.amid_call = False
            raise
        except EngineError as error:
            self._state.reason = copy.copy(error)  # without its frames
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._state.reason = EngineError(OUT_OF_MEMORY, settings=("max_batch_size",))
            raise copy.copy(self._state.reason) from error
        self._state.amid_call = False
        return result


def _with_seed(request: Request) -> Request:
    return replace(request, params=replace(request.params, seed=draw_seed()))


def _dismiss(ranks: Ranks, state: _State) -> None:
    if not state.amid_call:  # else they wait for another message than this one
        with contextlib.suppress(EngineError):  # they have gone already
            ranks.hosts.broadcast(None)
    ranks.close()


Engine = LLMEngine | EncoderEngine | LeadingEngine


def follow(engine: LLMEngine | EncoderEngine, hosts: Hosts) -> None:
    """Makes the calls of the first rank on another one's engine, until that one lets it end. Raises OutOfMemoryError,
    which ends all ranks.

    Requests that have ended are let go of before the next call, which may be hours away, is waited for.
    """
    while _made(engine, hosts.broadcast()):
        if not engine.has_work:
            engine.rest()


def _made(engine: LLMEngine | EncoderEngine, calls: list[Call] | None) -> bool:
    """Makes calls, and holds them no longer; False: there are to be no more."""
    for name, arguments, options in calls or ():
        # a request that is refused is refused on all ranks
        with contextlib.suppress(InputError), memory_errors(_follower_out_of_memory):
            getattr(engine, name)(*arguments, **options)
    return calls is not None


def _follower_out_of_memory() -> OutOfMemoryError:
    return OutOfMemoryError(FOLLOWER_OUT_OF_MEMORY, settings=("max_batch_size",))
