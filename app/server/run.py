"""Runs the application until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from vlm.pipeline import Pipeline
from vlm_app.listening import listener
from vlm_app.server.app import create_app
from vlm_app.server.config import ServerConfig
from vlm_app.server.control import Repositories


class _Server(uvicorn.Server):
    """Lets gRPC calls end while HTTP requests do: both have the same time for it."""

    def __init__(self, settings: uvicorn.Config, app: FastAPI):
        super().__init__(settings)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._app.state.grpc is not None:
            self._app.state.grpc.drain()
        await super().shutdown(sockets)


def run(
    pipelines: dict[str, Pipeline],
    config: ServerConfig,
    announce: Callable[[str], None],
    repositories: Repositories | None = None,
) -> str | None:
    """Serves these models, which it owns from now on, until SIGTERM or SIGINT; what runs then has `drain_seconds` to
    end. `announce` is told the addresses.

    Returns why it ended where an engine was beyond recovery. Raises InputError when it cannot listen there.
    """
    bound = listener(config.host, config.port)
    config, addresses = _with_grpc_port(config), [f"http://{_address(config.host, bound.getsockname()[1])}"]
    if config.grpc_port is not None:
        addresses.append(f"grpc://{_address(config.host, config.grpc_port)}")
    broken: list[str] = []

    def end(name: str, error: Exception) -> None:
        broken.append(f"the engine of {name} has broken: {error}".splitlines()[0])
        server.should_exit = server.should_exit or config.exit_when_broken

    app = create_app(pipelines, config, repositories, end)
    settings = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=config.drain_seconds,
        server_header=False,
    )
    server = _Server(settings, app)
    announce(" and ".join(addresses))
    server.run(sockets=[bound])
    return broken[0] if broken and config.exit_when_broken else None


def _with_grpc_port(config: ServerConfig) -> ServerConfig:
    """Returns the configuration with a port that is free now, for 0. Raises InputError for one that is taken."""
    if config.grpc_port is None:
        return config
    with listener(config.host, config.grpc_port, option="--grpc-port") as probe:
        return replace(config, grpc_port=probe.getsockname()[1])


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
