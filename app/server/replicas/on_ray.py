"""Replicas by Ray Serve, on one machine or many: it starts them, at first and again, and routes between them."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from vlm.errors import EngineError, InputError, VlmError, counted
from vlm.parallel.environment import be_no_rank
from vlm_app.core import renamed
from vlm_app.core.listening import address, listener
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.processes.ray_cluster import first_line, join_cluster
from vlm_app.core.renamed import with_flags
from vlm_app.server.app import create_app
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.config import ReplicaConfig
from vlm_app.server.repository.served_models import ServedModels

EXTRA = "pip install 'vlm-runtime[ray]'"
NAME = "vlm"
_CLASS = re.compile(r"^[\w.]+Error: ")


def run_on_ray(
    models: ServedModels, config: ServerConfig, placing: ReplicaConfig, announce: Callable[[str], None]
) -> None:
    """Serves these models until the main thread is interrupted. Raises InputError where there is no cluster, or one
    that is too small or serves already; EngineError where the replicas cannot be started."""
    has_gpus = join_cluster("ray.serve", EXTRA)
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    device = models.options.device if models.options.device != "auto" else "cuda" if has_gpus else "cpu"
    served = replace(models, options=models.options.overridden_by(LoadOptions(runtime={"device": device})))
    share = replica_share(ray.cluster_resources(), placing, device, models.ranks)
    if serve.status().proxies:
        raise InputError("Ray Serve runs on this cluster already; end it (serve shutdown) or use another cluster.")
    with listener(config.host, config.port) as probe:  # Ray itself takes no port that is any
        port = probe.getsockname()[1]
    quiet: Any = {"log_level": "ERROR"}
    try:
        serve.start(http_options={"host": config.host, "port": port}, logging_config=quiet)
        serve.run(_deployment(served, config, placing, share), name=NAME, logging_config=quiet)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Ray has put its own there, which ends nothing well
        announce(address(config.host, port))
        threading.Event().wait()
    except RuntimeError as error:
        raise EngineError(f"Ray Serve has not started the replicas: {_reason(error, serve.status())}.") from error
    finally:
        serve.shutdown()


def _reason(error: RuntimeError, status: Any) -> str:
    """Returns what the replicas raised, where Ray's status tells it, or what Ray did."""
    deployments = status.applications[NAME].deployments.values() if NAME in status.applications else ()
    told = [RuntimeError(each.message) for each in deployments if each.message]
    return _CLASS.sub("", first_line(told[0] if told else error))


def replica_share(
    resources: Mapping[str, float], placing: ReplicaConfig, device: str, ranks: int
) -> Mapping[str, float]:
    """Returns what Ray sets apart for a replica: a GPU a rank, or a core, or its part of those that there are. Raises
    InputError where the first replicas do not fit."""
    count = placing.replicas or 1
    if not device.startswith("cuda"):
        return {"num_cpus": min(1.0, resources.get("CPU", 1.0) / (placing.max_replicas or count))}
    gpus = int(resources.get("GPU", 0))
    if gpus < count * ranks:
        raise InputError(
            f"the Ray cluster has {counted(gpus, 'GPU')}, too few for {counted(count, 'replica')} of {ranks}; give"
            " fewer --replicas, or cpu."
        )
    return {"num_gpus": ranks}


def _deployment(models: ServedModels, config: ServerConfig, placing: ReplicaConfig, share: Mapping[str, float]) -> Any:
    from ray import serve

    flags = renamed.flags.get({})

    def build() -> FastAPI:
        """Is called in each replica's own process."""
        be_no_rank()  # of what has started Ray
        renamed.flags.set(flags)
        try:
            pipelines, repositories = models.load(lambda error: print(with_flags(error)))
        except VlmError as error:  # of which Ray passes on the words alone
            raise EngineError(with_flags(error)) from None
        return create_app(pipelines, config, repositories, _end)

    count, most = placing.replicas or 1, placing.max_replicas
    number: dict[str, Any] = {"num_replicas": count}
    if most is not None:
        number = {"autoscaling_config": {"min_replicas": count, "max_replicas": most}}
    return serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        ray_actor_options=dict(share),
        max_ongoing_requests=config.max_requests,
        graceful_shutdown_timeout_s=config.drain_seconds,
        **number,
    ).bind()


def _end(name: str, error: Exception) -> None:
    """Ends the process of a replica whose engine has broken, for Ray to start another one."""
    os.kill(os.getpid(), signal.SIGTERM)
