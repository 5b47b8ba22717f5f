"""What has started this process: mpirun, torchrun or srun, each of which says its rank in variables of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from vlm.errors import EngineError, counted

FIRST_WAITS = timedelta(minutes=5)  # for all others to come
OTHERS_TRY = timedelta(minutes=2)  # to reach the first one, which torch does twice, with a pause
ANY_TIME = timedelta(days=365)  # that the first one may take for what it does alone


@dataclass(frozen=True)
class LaunchedRank:
    """A process among those that one command has started."""

    starter: str  # torchrun | mpirun | srun
    rank: int
    size: int
    local_rank: int  # among those of its machine

    def store(self) -> Any:
        """Returns where these processes find each other, a store of torch.distributed. Raises EngineError where they
        have not met after some five minutes."""
        try:
            return self._store()
        except (RuntimeError, ValueError) as error:  # of an address, a port, or a process that is not there
            said = str(error).splitlines()[0].rstrip(". ")
            raise EngineError(
                f"rank {self.rank} of {self.size} has not met the others: {said}; start all of them, with one"
                " MASTER_ADDR of the first one's machine and one MASTER_PORT that is free there, where they are set."
            ) from None

    def _store(self) -> Any:
        from torch import distributed

        dist: Any = distributed  # which exports its stores to no checker

        timeout = FIRST_WAITS if self.rank == 0 else OTHERS_TRY
        if self.starter == "torchrun":
            store = next(dist.rendezvous("env://", timeout=timeout))[0]
        else:
            host, port = _of_mpi(self.rank) if self.starter == "mpirun" else _of_slurm(os.environ)
            store = dist.TCPStore(host, port, self.size, is_master=self.rank == 0, timeout=timeout)
        store.set_timeout(FIRST_WAITS)
        return store


@dataclass(frozen=True)
class Meeting:
    """Holds what processes have found each other by before they begin an engine: the first one has work of its own."""

    own: LaunchedRank
    store: Any

    def wait_for_first(self) -> None:
        """Lets the first process go on, and the others as soon as it has come here, however long that takes. Raises
        EngineError where it has gone."""
        if self.own.rank == 0:
            self.store.set("the first one is ready", "")
            return
        try:
            self.store.wait(["the first one is ready"], ANY_TIME)
        except RuntimeError:
            raise EngineError(
                f"rank {self.own.rank} of {self.own.size} waits for the first one, which has gone; what it said stands"
                " above: start all of them again."
            ) from None


def meet() -> Meeting | None:
    """Lets the processes that one command has started find each other; None: this one was started by itself. Raises
    EngineError as `LaunchedRank.store` does."""
    own = launched_rank()
    return None if own is None else Meeting(own, own.store())


def _of_mpi(rank: int) -> tuple[str, int]:
    """Returns an address that the first process chooses and tells the others by MPI. Raises EngineError without
    mpi4py."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise EngineError("mpirun's processes find each other by mpi4py: pip install 'vlm-runtime[mpi]'.") from None
    return MPI.COMM_WORLD.bcast((socket.gethostname(), _free_port()) if rank == 0 else None)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def _of_slurm(variables: Mapping[str, str]) -> tuple[str, int]:
    """Returns the address of the first machine, and a port that follows from the numbers of the job and of its step,
    several of which may run at a time: those that MASTER_ADDR and MASTER_PORT name, where they are set. Raises
    ValueError for what is no number."""
    host = variables.get("MASTER_ADDR") or variables.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    job, step = int(variables.get("SLURM_JOB_ID", 0)), int(variables.get("SLURM_STEP_ID", 0))
    return host, int(variables.get("MASTER_PORT") or 20_000 + (job * STEPS_APART + step) % 20_000)


STEPS_APART = 97  # of one job, whose ports are those of no step of the next job
# rank, size, local rank
VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


def launched_rank(variables: Mapping[str, str] = os.environ) -> LaunchedRank | None:
    """Returns where this process stands; None: it was started by itself. Raises EngineError for variables that are no
    numbers, or that name a rank beyond the last one."""
    for starter, names in VARIABLES.items():
        if all(name in variables for name in names):
            try:
                rank, size, local_rank = (int(variables[name]) for name in names)
            except ValueError:
                raise EngineError(f"{', '.join(names)} must be numbers, as {starter} sets them; unset them.") from None
            if size > 1 and not 0 <= rank < size:
                told = f"{names[0]} is {rank} and {names[1]} {size}"
                raise EngineError(f"{told}: ranks are 0 to {size - 1}; set them as {starter} does, or unset them.")
            return LaunchedRank(starter, rank, size, local_rank) if size > 1 else None
    return None


def rank_among(ranks: int, model: object, variables: Mapping[str, str] = os.environ) -> LaunchedRank | None:
    """Returns where this process stands among the ranks that run a model; None: it was started by itself. Raises
    EngineError where another number of processes was started: each of them would do the whole job."""
    own = launched_rank(variables)
    if own is not None and own.size != ranks:
        raise EngineError(
            f"{own.starter} has started {own.size} processes, {model} is built for {counted(ranks, 'rank')}; start"
            f" {ranks}, or build it for {own.size}: vlm build --tp-size {own.size}. {_of_their_own(own)}"
        )
    return own


def check_alone(work: str, variables: Mapping[str, str] = os.environ) -> None:
    """Raises EngineError where one command has started several processes for `work` that writes the files of all ranks:
    each of them would write all."""
    if (own := launched_rank(variables)) is not None:
        raise EngineError(
            f"{own.starter} has started {own.size} processes, and {work} writes the files of all ranks by itself; start"
            f" it once, without {own.starter}. {_of_their_own(own)}"
        )


def be_no_rank(variables: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process, and those that it starts, be by themselves, whatever has started it."""
    for starter in VARIABLES:
        variables.pop(_size_variable(starter), None)


def _of_their_own(rank: LaunchedRank) -> str:
    """Returns what to do where the processes that were started together share no work."""
    return f"Where each process has work of its own, unset {_size_variable(rank.starter)}."


def _size_variable(starter: str) -> str:
    return VARIABLES[starter][1]
