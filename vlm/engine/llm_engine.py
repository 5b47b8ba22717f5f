"""The engine's loop: requests in, token updates out."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlm.config import EngineLimits
from vlm.engine.admission import Admission
from vlm.engine.endings import Endings
from vlm.engine.live_sequences import LiveSequences
from vlm.engine.scheduler import OutOfBlocks, Plan, Scheduler
from vlm.errors import EngineError, InputError, LimitError
from vlm.executor.decode_burst import DecodeBurst
from vlm.executor.executor import Executor
from vlm.requests.request import Request
from vlm.requests.sequence import Sequence
from vlm.requests.token_update import TokenUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.executor.collective_time import CollectiveTime
    from vlm.layers.adapters.base import Layers
    from vlm.layers.forward_batch import HiddenStateRecorder
    from vlm.requests.image import Image


@dataclass(frozen=True)
class EngineUsage:
    """How full an engine is."""

    running: int  # sequences
    waiting: int
    cache: Mapping[str, float]  # part of the KV cache in use, by "self" and "cross"


class LLMEngine:
    """In-flight batching: sequences join and leave between bursts of decode steps.

    On an asynchronous device the next burst is launched before the last one's tokens are read, so the host's work is
    hidden behind the device's; a finished sequence then idles for at most one burst.
    """

    def __init__(
        self, executor: Executor, scheduler: Scheduler, limits: EngineLimits, *, eos_token_ids: tuple[int, ...]
    ):
        self.config, self.executor, self.scheduler, self.limits = executor.config, executor, scheduler, limits
        self.encoders = executor.encoders
        vision, encoder = (network and network.config for network in (self.encoders.visual, self.encoders.encoder))
        self._endings = Endings(eos_token_ids)
        self._admission = Admission(
            self.config,
            encoder,
            limits,
            vision,
            endings=self._endings,
            num_speculative_tokens=scheduler.config.num_speculative_tokens,
            gives_context_logits=executor.runner.gives_context_logits,
        )
        self._ids = itertools.count()
        self._sequences = LiveSequences(executor, scheduler, self._endings)
        self._aborted_ids: set[int] = set()
        self._unloaded: set[int] = set()  # adapters that some sequence may still have
        self._in_flight: deque[DecodeBurst] = deque()
        self._updates: list[TokenUpdate] = []  # not yet reported
        self._at_work: list[Sequence] = []  # what the executor was given last

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._endings.eos_token_ids

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def last_batch_size(self) -> int:
        """Sequences that the last step decoded at once."""
        return len(self._at_work)

    def usage(self) -> EngineUsage:
        """Says how full it is; any thread may ask."""
        scheduler, blocks = self.scheduler, self.scheduler.blocks
        shares = {kind: blocks.num_used[kind] / quota for kind, quota in blocks.quota.items() if quota}
        return EngineUsage(len(scheduler.running), len(scheduler.waiting), shares)

    def add(self, requests: list[Request]) -> list[int]:
        """Queues requests, all or none; their ids name them in `step`'s updates. Raises LimitError and InputError where
        the engine cannot hold one."""
        for adapter_id in {request.adapter_id for request in requests}:
            if adapter_id in self._unloaded:
                raise InputError("the request's adapter has been unloaded; name another one.")
            self.executor.adapters.check(adapter_id)
        sequences = self._admission.sequences(requests, self._ids)
        for sequence in sequences:
            if self.scheduler.exceeds_capacity(sequence.max_length, sequence.num_features, sequence.width):
                raise LimitError(
                    f"a sequence of {sequence.max_length} tokens over {sequence.num_features} encoder rows does not fit"
                    " the KV cache; ask for fewer new tokens",
                    "or give the cache more memory with kv_cache_free_gpu_memory_fraction",
                    settings=("kv_cache_free_gpu_memory_fraction",),
                )
        self._sequences.add(sequences)
        self.scheduler.add(sequences)
        return [sequence.id for sequence in sequences]

    def abort(self, request_id: int) -> None:
        """Ends a request at the next step, with finish reason `abort`; an ended one is left alone."""
        if request_id in self._sequences.by_id:
            self._aborted_ids.add(request_id)

    def admit(self) -> None:
        """Admits who waits and begins with what they have to be encoded, ahead of the step that has them decode."""
        if admitted := self.scheduler.admit():
            self._admit(admitted)

    def step(self, *, streamed: bool = True) -> list[TokenUpdate]:
        """Launches the next burst, then reports the last one (on the CPU: this one). Empty while nothing is ready.
        `streamed`: somebody is shown tokens as they come, and who comes to an idle engine the first one at once."""
        if self._aborted_ids:
            self._end_aborted()
        plan = self._schedule(streamed)
        if plan.preempted:
            self.executor.release(plan.preempted)
        if plan.admitted:
            self._admit(plan.admitted)
        if plan.prefills:
            self._at_work = [sequence for sequence, _ in plan.prefills]
            self.executor.prefill(plan.prefills)
        self._at_work = plan.running
        if plan.running:
            self._launch(plan)
        self._sequences.ended.clear()
        self._updates += self._collect(but=int(bool(plan.running)))
        if not self.executor.asynchronous or not self._more_to_launch():
            self._updates += self._collect()
        return self._reported()

    def rest(self) -> None:
        """Lets go of requests that have ended, with their pictures: the next step may be hours away."""
        self._at_work = []
        self._sequences.ended.clear()

    def recover(self) -> list[TokenUpdate]:
        """Recovers after a step that ran out of memory. What the executor was at work on ends, with finish reason
        `memory`; who ran beside it waits again and is recomputed to the same tokens. Raises EngineError where the pool
        is not whole."""
        self.free_cached_memory()
        self._updates += self._collect()
        self.executor.release(self.scheduler.running)
        self.scheduler.requeue_all()
        lost = [sequence.id for sequence in dict.fromkeys(self._at_work) if not sequence.finished]
        self._updates += self._sequences.end(lost, "memory")
        if not self.scheduler.idle:
            raise EngineError("the KV cache was not whole again after the device had run out of memory.")
        return self._reported()

    def encode_texts(self, requests: list[Request], recorder: HiddenStateRecorder | None = None) -> list[Tensor]:
        """Returns each request's hidden rows [T, hidden] of the encoder; the recorder takes what else is asked for.
        Raises LimitError for more adapters than there is room for beside those that are decoded with."""
        self.executor.adapters.hold(self._adapters_in_use | {request.adapter_id for request in requests})
        return self.encoders.encode_texts(requests, recorder)

    def encode_images(self, images: list[Image], *, cached: bool) -> list[Tensor]:
        """Returns each image's features [rows, hidden]; `cached`: those that are kept are not computed again."""
        return self.encoders.encode_images(images) if cached else self.encoders.encode_pixels(images)

    def collective_time(self, rows: int) -> CollectiveTime:
        """Measures what ranks tell each other in a decode step of so many slots, by itself."""
        return self.executor.collective_time(rows)

    def load_adapter(self, adapter_id: int, adapter: Mapping[str, Layers]) -> None:
        """Loads what an adapter changes of the networks, by their roles, under a number that none has had. Raises
        LimitError where there is no room for it."""
        used = self._sequences.adapters
        for number in self._unloaded - used:
            self.executor.adapters.remove(number)
        self._unloaded &= used
        self.executor.adapters.add(adapter_id, adapter, self._adapters_in_use)

    def unload_adapter(self, adapter_id: int) -> None:
        """Takes no more requests for an adapter; those that there are end with it."""
        self._unloaded.add(adapter_id)

    def free_cached_memory(self) -> None:
        """Gives back the device memory of what is kept for later."""
        self._sequences.ended.clear()
        self.executor.free_cached_memory()

    @property
    def _adapters_in_use(self) -> set[int]:
        return {sequence.request.adapter_id for sequence in self.scheduler.running}

    def _reported(self) -> list[TokenUpdate]:
        updates, self._updates = self._updates, []
        return updates

    def _more_to_launch(self) -> bool:
        return bool(self.scheduler.waiting) or any(s.scheduled < s.max_length for s in self.scheduler.running)

    def _schedule(self, streamed: bool) -> Plan:
        try:
            return self.scheduler.schedule(in_flight=bool(self._in_flight), streamed=streamed)
        except OutOfBlocks:
            self._updates += self._collect()
            return self.scheduler.schedule(in_flight=False, streamed=streamed)

    def _launch(self, plan: Plan) -> None:
        """Starts the plan's bursts, and images of who waits beside them."""
        launch, awaited = self.executor.launch, not self._more_to_launch()
        self._in_flight.append(launch(plan.running, plan.steps, plan.drafts, first=plan.first, awaited=awaited))
        if plan.further_steps:
            self._in_flight.append(launch(plan.running, plan.further_steps, plan.drafts, first=[], awaited=awaited))
        self.executor.encode_waiting(self.scheduler.waiting)

    def _collect(self, but: int = 0) -> list[TokenUpdate]:
        """Waits for the bursts that were launched, `but` for so many of the last ones."""
        updates: list[TokenUpdate] = []
        while len(self._in_flight) > but:
            updates += self._sequences.apply(self._in_flight.popleft())
        return updates

    def _admit(self, sequences: list[Sequence]) -> None:
        self._at_work = sequences
        self.executor.adapters.hold(self._adapters_in_use)
        self.executor.admit(sequences, [self._endings.stop_ids(s.request) for s in sequences])

    def _end_aborted(self) -> None:
        self._updates += self._collect()
        aborted, self._aborted_ids = self._aborted_ids, set()
        self._updates += self._sequences.end([number for number in aborted if number in self._sequences.by_id], "abort")
