"""Runs the application until it is told to end."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn

from vlm.pipeline import Pipeline
from vlm_app.listening import listener
from vlm_app.server.app import create_app
from vlm_app.server.config import ServerConfig
from vlm_app.server.control import Repositories


def run(
    pipelines: dict[str, Pipeline],
    config: ServerConfig,
    announce: Callable[[str], None],
    repositories: Repositories | None = None,
) -> str | None:
    """Serves these models, which it owns from now on, until SIGTERM or SIGINT; what runs then has `drain_seconds` to
    end. `announce` is told the address.

    Returns why it ended where an engine was beyond recovery. Raises InputError when it cannot listen there.
    """
    bound = listener(config.host, config.port)
    broken: list[str] = []

    def end(name: str, error: Exception) -> None:
        broken.append(f"the engine of {name} has broken: {error}".splitlines()[0])
        server.should_exit = server.should_exit or config.exit_when_broken

    settings = uvicorn.Config(
        create_app(pipelines, config, repositories, end),
        log_level="warning",
        timeout_graceful_shutdown=config.drain_seconds,
        server_header=False,
    )
    server = uvicorn.Server(settings)
    host = f"[{config.host}]" if ":" in config.host else config.host
    announce(f"http://{host}:{bound.getsockname()[1]}")
    server.run(sockets=[bound])
    return broken[0] if broken and config.exit_when_broken else None
