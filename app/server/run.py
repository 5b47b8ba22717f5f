"""Runs the application until it is told to end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from vlm.api.pipeline import Pipeline
from vlm_app.core.listening import address, listener, reserve_files
from vlm_app.core.watchdog import Watchdog
from vlm_app.server.app import create_app
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.http.http_server import Server
from vlm_app.server.repository.control import Repositories

GRACE_SECONDS = 5  # for models and workers to close, once all requests have ended
EXIT_BROKEN = 70  # EX_SOFTWARE


def run(
    pipelines: dict[str, Pipeline],
    config: ServerConfig,
    announce: Callable[[str], None],
    repositories: Repositories | None = None,
) -> str | None:
    """Serves these models, which it owns from now on, until SIGTERM or SIGINT; what runs then has `drain_seconds` to
    end. In the main thread the process ends a little later whatever hangs. `announce` is told the addresses.

    Returns why it ended where an engine was beyond recovery. Raises InputError when it cannot listen there,
    KeyboardInterrupt when SIGINT ended it.
    """
    reserve_files(config.max_connections)
    bound = listener(config.host, config.port)
    config, addresses = _with_grpc_port(config), [address(config.host, bound.getsockname()[1])]
    if config.grpc_port is not None:
        addresses.append(address(config.host, config.grpc_port, "grpc"))
    broken: list[str] = []
    in_main = threading.current_thread() is threading.main_thread()
    watchdog = Watchdog(config.drain_seconds + GRACE_SECONDS) if in_main else None

    def end(name: str, error: Exception) -> None:
        broken.append(f"the engine of {name} has broken: {error}".splitlines()[0].rstrip("."))
        if config.exit_when_broken:
            server.should_exit = True
            if watchdog:
                watchdog.end(EXIT_BROKEN)

    app = create_app(pipelines, config, repositories, end)

    def drain_grpc() -> None:
        if app.state.grpc is not None:
            app.state.grpc.drain()

    server = Server(app, config, config.drain_seconds, on_drain=drain_grpc)
    bound.listen()  # who reads the address may ask at once
    announce(" and ".join(addresses))
    server.run(sockets=[bound])
    if server.interrupted:
        raise KeyboardInterrupt
    return broken[0] if broken and config.exit_when_broken else None


def _with_grpc_port(config: ServerConfig) -> ServerConfig:
    """Returns the configuration with a port that is free now, for 0. Raises InputError for one that is taken."""
    if config.grpc_port is None:
        return config
    with listener(config.host, config.grpc_port, option="--grpc-port") as probe:
        return replace(config, grpc_port=probe.getsockname()[1])
