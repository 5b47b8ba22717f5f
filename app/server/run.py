"""Runs the application until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import uvicorn

from app.server.app import create_app
from app.server.config import ServerConfig
from vlm.errors import InputError
from vlm.pipeline import Pipeline


def run(pipelines: Mapping[str, Pipeline], config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; what runs then has `drain_seconds` to end. `announce` is told the address.

    Raises InputError when it cannot listen there.
    """
    listener = _listener(config.host, config.port)
    settings = uvicorn.Config(
        create_app(pipelines, config),
        log_level="warning",
        timeout_graceful_shutdown=config.drain_seconds,
        server_header=False,
    )
    host = f"[{config.host}]" if ":" in config.host else config.host
    announce(f"http://{host}:{listener.getsockname()[1]}")
    uvicorn.Server(settings).run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened at: {error.strerror}; give another --port.") from None
    return listener
