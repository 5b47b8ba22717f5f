"""The address that a server listens at."""

from __future__ import annotations

import socket

from vlm.errors import InputError


def check_port(port: int) -> None:
    """Raises InputError for one that there is not."""
    if not 0 <= port < 65536:
        raise InputError(f"port is {port}; it must lie in [0, 65535], 0 is any that is free.")


def listener(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket bound there, over IPv4 or IPv6 as the host has it. Raises InputError where that cannot be."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise InputError(
            f"{host}:{port} cannot be listened at: {error.strerror}; give another --host or {option}."
        ) from None
    return bound
