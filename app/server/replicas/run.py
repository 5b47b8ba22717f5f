"""Runs a front and its replicas until they are told to end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vlm.backends.threads import usable_cpus
from vlm.errors import VlmError
from vlm_app.core import renamed
from vlm_app.core.listening import listener, reserve_files
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.config import Placement
from vlm_app.server.replicas.front import create_front
from vlm_app.server.replicas.process import ReplicaJob
from vlm_app.server.replicas.replica import Replica
from vlm_app.server.replicas.supervisor import Supervisor
from vlm_app.server.repository.served_models import ServedModels
from vlm_app.server.run import Lifetime, settle_addresses

MORE_CONNECTIONS = 16  # to a replica, for what the front asks itself
A_DAY = 86_400.0  # the front alone ends connections that idle


def run_replicas(
    models: ServedModels,
    places: Sequence[Placement],
    config: ServerConfig,
    announce: Callable[[str], None],
    say: Callable[[str | VlmError], object],
    *,
    unresponsive_seconds: float,
) -> str | None:
    """Serves these models by a process in each place, until SIGTERM or SIGINT. `announce` is told the address, `say`,
    a function of a module, what becomes of replicas. One that does not answer for so many seconds is started again.

    Returns why it ended where no replica could be started any more. Raises what a replica raises that cannot load its
    models, InputError when it cannot listen there, KeyboardInterrupt when SIGINT ended it.
    """
    reserve_files(config.max_connections, files_each=2)
    bound = listener(config.host, config.port)
    config, addresses = settle_addresses(bound, config)
    with bound, tempfile.TemporaryDirectory(prefix="vlm-replicas-", ignore_cleanup_errors=True) as folder:
        jobs = replica_jobs(models, places, config, Path(folder), say)
        supervisor = Supervisor([Replica(job) for job in jobs], say, unresponsive_seconds=unresponsive_seconds)
        supervisor.start()
        try:
            lifetime = Lifetime(config)
            supervisor.on_end = lifetime.end
            return lifetime.serve(create_front(supervisor, config), bound, lambda: announce(addresses))
        finally:
            supervisor.kill()


def replica_jobs(
    models: ServedModels,
    places: Sequence[Placement],
    config: ServerConfig,
    folder: Path,
    say: Callable[[str | VlmError], object],
) -> list[ReplicaJob]:
    """Returns what each replica does. Sockets lie in `folder`, which nobody else may enter; what is the same of all
    the first one says."""
    own = _behind_front(config, len(places))
    return [
        ReplicaJob(
            name=str(number),
            placement=place,
            models=replace(models, options=models.options.overridden_by(_share(models.options, place, len(places)))),
            config=own if config.grpc_port is None else replace(own, grpc_socket=folder / f"{number}.grpc"),
            socket=folder / str(number),
            say=_nothing if number else say,
            flags=renamed.flags.get({}),
        )
        for number, place in enumerate(places)
    ]


def _behind_front(config: ServerConfig, count: int) -> ServerConfig:
    """Returns how each of so many replicas listens: the front has checked who asks."""
    workers = config.preprocess_workers
    return replace(
        config,
        api_key=None,
        grpc_port=None,
        allowed_hosts=("*",),
        allowed_origins=(),
        max_connections=config.max_connections + MORE_CONNECTIONS,
        idle_seconds=A_DAY,
        preprocess_workers=max(min(workers, 2), workers // count),  # two: one may be held up by a file
        exit_when_broken=True,  # it is started again
    )


def _share(options: LoadOptions, place: Placement, count: int) -> LoadOptions:
    """Returns a replica's device, and on the CPU its share of the threads."""
    threads = {"threads": max(1, usable_cpus() // count)} if place.kind == "cpu" else {}
    return LoadOptions(runtime={**threads, **options.runtime, "device": place.kind})


def _nothing(sentence: str | VlmError) -> None:
    """Says nothing."""
