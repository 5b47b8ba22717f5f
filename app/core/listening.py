"""The address that a server listens at."""

from __future__ import annotations

import re
import resource
import socket
from collections.abc import Iterable

from vlm.errors import InputError
from vlm.ranges import between

PORTS = between(0, 65535, "0 is any that is free")
ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+")
ROOT_PATH = re.compile(r"(?!/v[12](/|$))(/[\w.~-]+)*", re.ASCII)
OWN_FILES = 256  # weights, workers, libraries, and connections that are being closed


def check_names(hosts: Iterable[str], origins: Iterable[str]) -> None:
    """Raises InputError for what no browser would send as a host or an origin."""
    for host in hosts:
        if not host or "/" in host or "@" in host:
            raise InputError(f"{host!r} is no host's name; give --allowed-host as in ai.example, or *.")
    for origin in origins:
        if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
            raise InputError(f"{origin!r} is no origin; give --allowed-origin as in https://app.example, or *.")


def check_host(host: str) -> None:
    """Raises InputError for an empty one, as a shell's variable is that is not set: it would be everywhere."""
    if not host.strip():
        raise InputError("the host is empty; give --host 127.0.0.1, or 0.0.0.0 for everywhere.")


def check_root_path(path: str) -> None:
    """Raises InputError for what is no beginning of a path, and where the server's own routes are."""
    if not ROOT_PATH.fullmatch(path):
        raise InputError(f"{path!r} is no path to be shown under; give --root-path as in /llm, without /v1 or /v2.")


def listener(host: str, port: int, option: str = "--port") -> socket.socket:
    """Returns a socket bound there, over IPv4 or IPv6 as the host has it. Raises InputError where that cannot be."""
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


def address(host: str, port: int, protocol: str = "http") -> str:
    """Returns the URL of a server that listens there."""
    return f"{protocol}://{f'[{host}]' if ':' in host else host}:{port}"


def reserve_files(connections: int, *, files_each: int = 1) -> None:
    """Lets the process open so many connections, of so many files each, in addition to its own files. Raises
    InputError where it may not."""
    files = files_each * connections + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and hard < files:
        raise InputError(
            f"max_connections is {connections}; this process may open {hard} files, {OWN_FILES} of them for itself:"
            " give a lower max_connections, or raise `ulimit -n`.",
            settings=("max_connections",),
        )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
