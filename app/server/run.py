"""Runs the application until it is told to end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from starlette.applications import Starlette

from vlm.api.pipeline import Pipeline
from vlm_app.core.listening import address, listener, reserve_files
from vlm_app.core.processes.watchdog import Watchdog
from vlm_app.server.app import create_app
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.http.http_server import Server
from vlm_app.server.repository.control import Repositories

GRACE_SECONDS = 5  # for models and workers to close, once all requests have ended
EXIT_BROKEN = 70  # EX_SOFTWARE


class Lifetime:
    """How long a server runs: until SIGTERM or SIGINT, or until it is told that it has broken; what runs then has
    `drain_seconds` to end. In the main thread the process ends a little later whatever hangs."""

    def __init__(self, config: ServerConfig):
        self._config = config
        self._server: Server | None = None
        self._broken: list[str] = []
        in_main = threading.current_thread() is threading.main_thread()
        self._watchdog = Watchdog(config.drain_seconds + GRACE_SECONDS) if in_main else None

    def end(self, reason: str) -> None:
        """Notes what is beyond recovery, and ends the server if it is to end with that."""
        self._broken.append(reason.splitlines()[0].rstrip("."))
        if self._config.exit_when_broken:
            if self._server:
                self._server.should_exit = True
            if self._watchdog:
                self._watchdog.end(EXIT_BROKEN)

    def serve(self, app: Starlette, bound: socket.socket, announce: Callable[[], object]) -> str | None:
        """Serves at this socket, and by `app.state.grpc` where that is something; `announce` is called once they can be
        asked. Returns why it ended where something has broken. Raises KeyboardInterrupt when SIGINT ended it."""

        def drain_grpc() -> None:
            if app.state.grpc is not None:
                app.state.grpc.drain()

        self._server = Server(app, self._config, self._config.drain_seconds, on_drain=drain_grpc, on_start=announce)
        self._server.run(sockets=[bound])
        if self._server.interrupted:
            raise KeyboardInterrupt
        return self._broken[0] if self._broken and self._config.exit_when_broken else None


def run(
    pipelines: dict[str, Pipeline],
    config: ServerConfig,
    announce: Callable[[str], None],
    repositories: Repositories | None = None,
) -> str | None:
    """Serves these models, which it owns from now on, at the address of the configuration. `announce` is told the
    addresses.

    Returns why it ended where an engine was beyond recovery. Raises InputError when it cannot listen there,
    KeyboardInterrupt when SIGINT ended it.
    """
    bound = listener(config.host, config.port)
    config, addresses = settle_addresses(bound, config)
    return run_at(bound, pipelines, config, lambda: announce(addresses), repositories)


def run_at(
    bound: socket.socket,
    pipelines: dict[str, Pipeline],
    config: ServerConfig,
    announce: Callable[[], None],
    repositories: Repositories | None = None,
) -> str | None:
    """Does the same at a socket, of whatever family; `announce` is called once it can be asked."""
    reserve_files(config.max_connections)
    lifetime = Lifetime(config)
    app = create_app(
        pipelines, config, repositories, lambda name, error: lifetime.end(f"the engine of {name} has broken: {error}")
    )
    return lifetime.serve(app, bound, announce)


def settle_addresses(bound: socket.socket, config: ServerConfig) -> tuple[ServerConfig, str]:
    """Returns the configuration with the port of gRPC that is used, and all addresses in words. Raises InputError for a
    port that is taken."""
    config, addresses = _with_grpc_port(config), [address(config.host, bound.getsockname()[1])]
    if config.grpc_port is not None:
        addresses.append(address(config.host, config.grpc_port, "grpc"))
    return config, " and ".join(addresses)


def _with_grpc_port(config: ServerConfig) -> ServerConfig:
    """Returns the configuration with a port that is free now, for 0. Raises InputError for one that is taken."""
    if config.grpc_port is None:
        return config
    with listener(config.host, config.grpc_port, option="--grpc-port") as probe:
        return replace(config, grpc_port=probe.getsockname()[1])
