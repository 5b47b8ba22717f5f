"""Ranks that are processes: gloo for what hosts say and for CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from vlm.errors import EngineError, VlmWarning
from vlm.parallel.collectives import Collectives, OneRank, Ranks
from vlm.parallel.mapping import Mapping, Shard
from vlm.parallel.messages import packed, unpacked
from vlm.parallel.peer_memory import PeerMemory
from vlm.parallel.recording import Recorded
from vlm.parallel.stages import Stages

dist: Any = torch.distributed  # which exports its groups' types to no checker
TIMEOUT = timedelta(minutes=5)  # of connecting, and of waiting for each other amid a step
IDLE = timedelta(days=365)  # a server's ranks wait for its next request
ABORT_TIMEOUT = 10.0  # seconds for the end of connections, which the end of the process ends, too
# whether a thread of NCCL's group looks into the store, every second, for another rank's word that it has waited too
# long: the store has gone by the time that groups end, and each would wait for it for minutes
DUMP_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
GONE = "another rank has ended or cannot be reached, so this one cannot go on; start all of them again."


class ProcessGroup:
    """The collectives of one process in a group of them. Raises EngineError where another one has gone."""

    def __init__(self, group: Any, size: int, device: torch.device, peers: PeerMemory | None = None):
        """`group`: of torch's, for this kind of device; `peers`: sums what is small."""
        self._group: Any = group
        self.size, self.device, self._peers, self._is_aborted = size, device, peers, False

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        if self._peers is not None and self._peers.takes(x):
            self._peers.all_reduce(x)
        else:
            _run(lambda: self._group.allreduce([x]))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        parts = x.new_empty(self.size * rows, columns)
        _run(lambda: self._group._allgather_base(parts, x.contiguous()))
        return parts.view(self.size, rows, columns).transpose(0, 1).reshape(rows, -1)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        x, options = x.contiguous(), dist.BroadcastOptions()
        options.rootRank = root
        _run(lambda: self._group.broadcast([x], options))
        return x

    def send(self, x: Tensor, to: int) -> None:
        _run(lambda: self._group.send([x.contiguous()], to, 0))

    def receive(self, x: Tensor, sender: int) -> Tensor:
        _run(lambda: self._group.recv([x], sender, 0))
        return x

    def abort(self) -> None:
        if self._peers is not None:
            self._peers.abort()
        if self.device.type == "cuda" and not self._is_aborted:  # gloo finds out by itself
            self._is_aborted = True
            _abort_in_thread(self._group)  # it ends what waits, and then waits for the graphs it is called in

    def close(self) -> None:
        if self.device.type == "cuda" and not self._is_aborted:
            torch.cuda.synchronize(self.device)  # the others' GPUs have the same passes under way
            _abort_in_thread(self._group).join(ABORT_TIMEOUT)  # without a word to the others, who may have gone
        self._group = self._peers = None


class ProcessHosts:
    """What a process tells those of all ranks. Raises EngineError where another one has gone."""

    def __init__(self, group: Any, rank: int):
        self._group, self.rank, self._is_broken = group, rank, False

    def minimum(self, value: int) -> int:
        values, options = torch.tensor([int(value)]), dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        _run(lambda: self._group.allreduce([values], options))
        return int(values)

    def broadcast(self, value: Any = None) -> Any:
        content = packed(value) if self.rank == 0 else b""
        [length] = self._broadcast(torch.tensor([len(content)])).tolist()
        values = torch.frombuffer(content if self.rank == 0 else bytearray(length), dtype=torch.uint8)
        received = self._broadcast(values).numpy().data
        return value if self.rank == 0 else unpacked(received)

    def abort(self) -> None:
        self._is_broken = True

    def check(self) -> None:
        if self._is_broken:
            raise EngineError(GONE)

    def _broadcast(self, values: Tensor) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, IDLE
        _run(lambda: self._group.broadcast([values], options))
        return values


def connect(store: Any, mapping: Mapping, *, device: torch.device, local: bool) -> Ranks:
    """Connects a process with those of all ranks. `local`: all are of this machine, and listen to no other one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _errors():
        own = _gloo(dist.PrefixStore("hosts", store), mapping.rank, mapping.size, local=local)
        hosts = ProcessHosts(own, mapping.rank)
        peers = _peer_memory(store, hosts, mapping, device)
        # a connection each, though their ranks may be the same: images are encoded on a stream of their own
        groups: dict[str, Collectives] = {
            name: _group(
                dist.PrefixStore(f"{name} {list(ranks)}", store), ranks, mapping.rank, device=device, local=local,
                peers=peers if name == "stage" else None,
            )
            for name, ranks in mapping.groups.items()
        }  # fmt: skip
        ranks = Ranks(mapping.rank, mapping.size, hosts, **groups)
        _first_calls(ranks, mapping.stage, device)
    return ranks


def _peer_memory(store: Any, hosts: ProcessHosts, mapping: Mapping, device: torch.device) -> PeerMemory | None:
    """Returns what the GPUs of a stage sum small messages by; None where they do not reach each other's memory."""
    if device.type != "cuda" or mapping.tp == 1:
        return None
    peers, ranks = None, list(mapping.stage_ranks)
    if hosts.minimum(hosts.broadcast(socket.gethostname()) == socket.gethostname()):
        try:
            store = dist.PrefixStore(f"peers {ranks}", store)
            peers = PeerMemory(store, rank=mapping.shard.rank, size=mapping.tp, device=device)
        except (RuntimeError, ImportError) as error:
            text = f"these GPUs do not reach each other's memory ({error}); NCCL sums everything, which takes longer."
            warnings.warn(text, VlmWarning, stacklevel=2)
    return peers if hosts.minimum(peers is not None) else None


def _group(
    store: Any, ranks: range, rank: int, *, device: torch.device, local: bool, peers: PeerMemory | None
) -> Collectives:
    place, size = ranks.index(rank), len(ranks)
    if size == 1:
        return OneRank()
    if device.type != "cuda":
        return Recorded(ProcessGroup(_gloo(store, place, size, local=local), size, device))
    os.environ[DUMP_ON_TIMEOUT] = "0"
    group = dist.ProcessGroupNCCL(store, place, size, TIMEOUT)
    group.eager_connect_single_device(device)  # pairs use the connection of the group
    return Recorded(ProcessGroup(group, size, device, peers))


def _first_calls(ranks: Ranks, stage: Shard, device: torch.device) -> None:
    """Makes each kind of connection, which the capture of a graph cannot. When it returns no rank needs the store."""
    stages = Stages(stage, ranks.pipeline)
    stages.hand_on(stages.received(torch.zeros(1, device=device)))
    for group in ranks.groups:
        group.all_reduce(torch.zeros(1, device=device))
    ranks.hosts.minimum(0)


def _abort_in_thread(group: Any) -> threading.Thread:
    """Aborts what a group of NCCL does, and its connections: in a thread, as it may wait for other groups' kernels."""
    thread = threading.Thread(target=group.abort, name="abort", daemon=True)
    thread.start()
    return thread


def _run(begin: Callable[[], Any]) -> None:
    with _errors():
        begin().wait()


def file_store(path: str, size: int) -> Any:
    """Returns where processes of one machine find each other: a file."""
    return dist.FileStore(path, size)


def _gloo(store: Any, rank: int, size: int, *, local: bool) -> Any:
    kind, options = dist.ProcessGroupGloo, dist.ProcessGroupGloo._Options()
    options._devices = [kind.create_device(hostname="127.0.0.1") if local else kind.create_default_device()]
    options._timeout = TIMEOUT
    return kind(store, rank, size, options)


@contextmanager
def _errors() -> Iterator[None]:
    """Turns what torch raises for a process that has gone into an EngineError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise EngineError(GONE) from error
