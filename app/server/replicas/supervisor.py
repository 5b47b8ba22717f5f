"""Starts the replicas, and starts again those that end or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from vlm.errors import EngineError, VlmError
from vlm_app.core.renamed import with_flags
from vlm_app.server.replicas.config import ReplicaConfig
from vlm_app.server.replicas.replica import FAILURES, Replica

DELAYS = (1, 2, 4, 8, 16)  # seconds before each attempt to start a replica again; then it is given up
STABLE_SECONDS = 60  # as a replica that runs so long, it has earned all attempts again
QUESTIONS = 3  # that a replica leaves unanswered in a row where it hangs; one alone may be the front's own delay

Prepare = Callable[[Replica], Awaitable[None]]


@dataclass
class Supervisor:
    """All replicas of a server."""

    replicas: Sequence[Replica]
    say: Callable[[str], object]  # to people
    on_end: Callable[[str], object] = lambda reason: None  # is told why, when none is left
    delays: Sequence[float] = DELAYS
    unresponsive_seconds: float = ReplicaConfig.unresponsive_seconds
    _given_up: set[str] = field(default_factory=set)

    @property
    def ready(self) -> dict[str, Replica]:
        """Returns those that can be asked, by name."""
        return {replica.name: replica for replica in self.replicas if replica.is_ready}

    def start(self) -> None:
        """Starts all, and waits until each is ready. Raises the VlmError of one that cannot be."""
        try:
            for replica in self.replicas:
                replica.start()
            for replica in self.replicas:
                replica.receive()
                replica.is_ready = True
        except BaseException:
            self.kill()
            raise

    @asynccontextmanager
    async def running(self, prepare: Prepare, forget: Callable[[str], None]) -> AsyncIterator[None]:
        """Starts again, meanwhile, those that end or hang, and ends all afterwards. Before one is ready again it is
        `prepare`d, which makes it ready; `forget` is told of each that has ended."""
        for replica in self.replicas:
            replica.connect()
        tasks = [asyncio.create_task(self._keep(replica, prepare, forget)) for replica in self.replicas]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for replica in self.replicas:
                await replica.disconnect()
            await asyncio.gather(*(asyncio.to_thread(replica.stop) for replica in self.replicas))

    def kill(self) -> None:
        for replica in self.replicas:
            replica.kill()

    async def _keep(self, replica: Replica, prepare: Prepare, forget: Callable[[str], None]) -> None:
        """Keeps a replica running as long as it can be started again."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            since = loop.time()
            replica.trouble = await self._trouble(replica, prepare)
            is_stable, replica.is_ready = replica.is_ready and loop.time() - since > STABLE_SECONDS, False
            forget(replica.name)
            await asyncio.to_thread(replica.stop)
            failures = 1 if is_stable else failures + 1
            if failures > len(self.delays):
                self._give_up(replica)
                return
            delay = self.delays[failures - 1]
            self.say(f"{replica}: {replica.trouble}; it is started again in {delay:g} s.")
            await asyncio.sleep(delay)
            replica.restarts += 1

    async def _trouble(self, replica: Replica, prepare: Prepare) -> str:
        """Starts a replica that is not ready, and returns why it has ended, or never was ready."""
        try:
            if not replica.is_ready:
                replica.start()
                await replica.received()
                await prepare(replica)
                self.say(f"{replica} is ready again.")
            await self._end(replica)
        except (VlmError, *FAILURES) as error:
            sentence = with_flags(error) if isinstance(error, VlmError) else f"{error}"
            return sentence.splitlines()[0].rstrip(".")
        return "it has been told to end"

    async def _end(self, replica: Replica) -> None:
        """Waits for a replica's end. Raises EngineError where it hangs."""
        ended, unanswered = asyncio.ensure_future(replica.received()), 0
        pause = self.unresponsive_seconds / (2 * QUESTIONS)  # before each question, and for its answer
        try:
            while not (await asyncio.wait([ended], timeout=pause))[0]:
                unanswered = 0 if await replica.answers(pause) else unanswered + 1
                if unanswered == QUESTIONS:
                    raise EngineError(f"it lives and has not answered for {self.unresponsive_seconds:g} s")
            await ended
        finally:
            ended.cancel()

    def _give_up(self, replica: Replica) -> None:
        self.say(f"{replica}: {replica.trouble}; it is not started again, restart the server.")
        self._given_up.add(replica.name)
        if len(self._given_up) == len(self.replicas):
            self.on_end(f"no replica is left, the last one ended so: {replica.trouble}")
