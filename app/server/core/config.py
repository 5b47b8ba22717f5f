"""What the server is started with; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass, field

from vlm.backends.threads import usable_cpus
from vlm.errors import InputError
from vlm.limits import MAX_PIXELS
from vlm.processing.worker_process import Budget
from vlm_app.core.listening import check_names, check_port


@dataclass(frozen=True)
class ConnectionLimits:
    header_seconds: float = 10  # from a connection, or a request's first byte, to the end of its headers
    body_seconds: float = 30  # for a body to come, or an answer to be read; one more for every 64 KB
    idle_seconds: float = 75  # between two requests of a connection
    max_connections: int = 512

    def __post_init__(self) -> None:
        for name in ("header_seconds", "body_seconds", "idle_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be a number above 0.")
        if self.max_connections < 1:
            raise InputError(f"max_connections is {self.max_connections}; it must be at least 1.")


@dataclass(frozen=True)
class ServerConfig(ConnectionLimits):
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None  # None: everybody may ask
    max_requests: int = 256  # of a model, running or waiting; more get 429
    max_body_mb: int = 64
    max_images: int = 16  # a request; pages of PDFs count
    max_image_pixels: int = MAX_PIXELS
    # two at least: one may be held up by a file, as long as its budget lasts; 0: threads, without a budget
    preprocess_workers: int = field(default_factory=lambda: max(2, min(8, usable_cpus() // 2)))
    media: Budget = field(default_factory=Budget)  # of the images of a request
    drain_seconds: int = 30  # for what runs when the server is told to end, or a model to go
    model_control: bool = False  # may clients load and unload the models of repositories?
    exit_when_broken: bool = True  # end with an error once an engine is beyond recovery, for a supervisor to restart
    grpc_port: int | None = None  # of KServe's protocol over gRPC; None: HTTP alone

    allowed_hosts: tuple[str, ...] = ()  # names in Host but the machine's own; "*": any. A loopback has no others
    allowed_origins: tuple[str, ...] = ()  # of web pages on other hosts that may ask; "*": any

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_requests", "max_body_mb", "max_images", "max_image_pixels"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("preprocess_workers", "drain_seconds"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        for port in (self.port, self.grpc_port or 0):
            check_port(port)
        if self.port and self.port == self.grpc_port:
            raise InputError(f"port {self.port} is given to HTTP and gRPC; give another --grpc-port.")
        check_names(self.allowed_hosts, self.allowed_origins)
        if self.api_key is not None and not (self.api_key and self.api_key.isascii()):
            raise InputError("the API key must be a non-empty ASCII text.")
