"""Ranks that are processes: gloo for what hosts say and for CPUs, NCCL between GPUs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from vlm.errors import EngineError

dist: Any = torch.distributed  # which exports its groups' types to no checker
TIMEOUT = timedelta(minutes=5)  # of connecting, and of waiting for each other amid a step
IDLE = timedelta(days=365)  # a server's ranks wait for its next request
GONE = "another rank has ended or cannot be reached, so this one cannot go on; start all of them again."


class ProcessGroup:
    """The collectives of one process. Raises EngineError where another one has gone."""

    def __init__(self, store: Any, *, rank: int, size: int, device: torch.device, local: bool):
        """`local`: all processes are of this machine, and listen to no other one."""
        self.rank, self.size = rank, size
        with _errors():
            self._hosts = _gloo(dist.PrefixStore("hosts", store), rank, size, local=local)
            self._devices: Any = self._hosts
            if device.type == "cuda":
                torch.cuda.set_device(device)
                self._devices = dist.ProcessGroupNCCL(dist.PrefixStore("devices", store), rank, size, TIMEOUT)
        self.all_reduce(torch.zeros(1, device=device))  # NCCL connects now: the store may go

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._run(lambda: self._devices.allreduce([x]))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        parts = x.new_empty(self.size * rows, columns)
        self._run(lambda: self._devices._allgather_base(parts, x.contiguous()))
        return parts.view(self.size, rows, columns).transpose(0, 1).reshape(rows, -1)

    def minimum(self, value: int) -> int:
        values, options = torch.tensor([value]), dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._run(lambda: self._hosts.allreduce([values], options))
        return int(values)

    def broadcast(self, value: Any = None) -> Any:
        content = pickle.dumps(value) if self.rank == 0 else b""
        [length] = self._broadcast(torch.tensor([len(content)])).tolist()
        buffer = bytearray(content) if self.rank == 0 else bytearray(length)
        values = torch.frombuffer(buffer, dtype=torch.uint8)
        return pickle.loads(self._broadcast(values).numpy().tobytes())  # from a process of our own

    def _broadcast(self, values: Tensor) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, IDLE
        self._run(lambda: self._hosts.broadcast([values], options))
        return values

    @staticmethod
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
